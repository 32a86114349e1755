"""Public traces as programs: what each session asks, in which order, and how long it thinks.

A program is a list of turns; a turn is a request (its prompt as text, four bytes a token, equal
text where the trace says that the blocks are equal) or a group of sub-agents that run beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accord.engine.base import Message, Request

TRACES = Path(__file__).resolve().parent.parent.parent / "shared" / "traces"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request. Sizes are tokens, times seconds."""

    pause_s: float
    """Between the end of the turn before and this."""
    blocks: tuple[int, ...]
    block_tokens: int
    prompt: int
    reply: int
    beside: tuple[tuple[Turn, ...], ...] = ()
    """Sub-agents that run first, each beside the others."""


def request_of(turn: Turn, scope: str, agent: str) -> Request:
    """The turn as a request; ``scope`` is whose block numbers these are."""
    size = turn.block_tokens * 4
    unit = [f"{scope}{block:x}.".ljust(16, "-") for block in turn.blocks]
    text = "".join((each * (size // 16 + 1))[:size] for each in unit)[: turn.prompt * 4]
    return Request(
        messages=(Message(role="user", content=text),), agent=agent, max_tokens=max(1, turn.reply)
    )


def claude_code() -> dict[str, list[Turn]]:
    """The sessions, by name."""
    found: dict[str, list[Turn]] = {}
    for path in sorted((TRACES / "claude_code").glob("*.json")):
        trace = json.loads(path.read_text())
        found[path.stem[-4:]] = _turns(trace["requests"], trace["block_size"])
    return found


def _turns(requests: list[dict[str, Any]], size: int) -> list[Turn]:
    turns: list[Turn] = []
    beside: list[tuple[Turn, ...]] = []
    for each in requests:
        if "requests" in each:
            beside.append(tuple(_turns(each["requests"], size)))
            continue
        turns.append(
            Turn(
                pause_s=float(each.get("think_time") or 0.0),
                blocks=tuple(each["hash_ids"]),
                block_tokens=size,
                prompt=each["in"],
                reply=max(1, each["out"]),
                beside=tuple(beside),
            )
        )
        beside = []
    return turns


def mooncake() -> list[tuple[float, Turn]]:
    """The requests and when they arrive, in seconds."""
    found: list[tuple[float, Turn]] = []
    with (TRACES / "mooncake" / "conversation_trace.jsonl").open() as lines:
        for line in lines:
            each = json.loads(line)
            turn = Turn(
                pause_s=0.0,
                blocks=tuple(each["hash_ids"]),
                block_tokens=512,
                prompt=each["input_length"],
                reply=max(1, each["output_length"]),
            )
            found.append((each["timestamp"] / 1000, turn))
    return found
