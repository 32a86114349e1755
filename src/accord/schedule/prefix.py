"""Prefix single-flight: of requests that begin alike, one goes ahead, and the others find it read.

Engines take in what comes at once side by side, each reading the same text; measured on llama.cpp,
eight agents on one brief of 1,740 tokens took three times as long as with one ahead.
"""

from __future__ import annotations

from accord.engine.prefix import BYTES_A_TOKEN, common_bytes

WORTH_TOKENS = 256
"""A shared beginning shorter than this is not worth waiting for."""
HEAD_BYTES = WORTH_TOKENS * BYTES_A_TOKEN
DECODE_COST = 8
"""What it takes to write a token, in tokens read."""


def shared_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two prompts begin with alike, about."""
    return common_bytes(one, other) // BYTES_A_TOKEN


def waits_for_leader(shared: int, held: int) -> bool:
    """For one that has not begun to answer, and shares ``shared`` tokens, ``held`` already there.

    It waits until what both begin with has been read.
    """
    return shared - held >= WORTH_TOKENS


def waits_for_slot(shared: int, expected: int) -> bool:
    """For one that has begun to answer, on an engine whose cache belongs to slots.

    It waits for the slot if reading ``shared`` tokens anew takes longer than to write a reply of
    ``expected``.
    """
    return shared >= WORTH_TOKENS and expected * DECODE_COST < shared
