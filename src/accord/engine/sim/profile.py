"""How long the steps of an engine take: the cost model, and the file that it is kept in.

One step of continuous batching reads ``p`` tokens of prompts and writes one token for each of
``n`` sequences::

    step = overhead_s + max(weights_s, token_s * (p + n)) + sequence_s * n
         + kv_s * (tokens of context of those n) + attention_s * (sum over p of context before it)

The ``max`` is the roofline of S. Williams et al. (doi:10.1145/1498765.1498785): few tokens wait for
the weights to be read from memory, many for arithmetic.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Literal

import msgspec

from accord.engine.base import Prices
from accord.errors import UsageError

MOST_SEQUENCES, MOST_SLOTS = 1 << 20, 1 << 12


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How a profile was come by: what was measured, and how far it is off where it was not."""

    url: str
    machine: str
    points: int
    error: float
    """The median relative error on the points that it was fitted to."""
    held_out: int
    held_out_error: float
    """The median relative error on ``held_out`` points that it was not fitted to."""
    most_sequences: int = 0
    """Of all points; beyond, and beyond the next, the profile is extrapolated."""
    longest_prompt: int = 0


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica of an engine. Times are in seconds, sizes in tokens."""

    name: str
    source: str
    """Where the numbers come from."""
    overhead_s: float = 0.0
    weights_s: float = 0.0
    token_s: float
    sequence_s: float = 0.0
    kv_s: float = 0.0
    attention_s: float = 0.0
    request_s: float = 0.0
    """What a request takes besides steps: the way there and back, taking the prompt apart."""
    door_s: float = 0.0
    """What the server takes to let a request in, one after another."""
    window: int
    """The most tokens of one request, prompt and reply together."""
    kv_tokens: int
    """What the KV cache holds."""
    block_tokens: int = 16
    concurrency: int
    """The most sequences in a step."""
    batch_tokens: int = 2048
    """The most tokens in a step; longer prompts are read in chunks."""
    cache: Literal["blocks", "slots", "none"] = "blocks"
    """What is shared: blocks, by all; or what a slot holds, by who gets it, as in llama.cpp."""
    aside_tokens: int = 0
    """With slots: what fits in the memory where contexts wait that have left theirs."""
    bytes_a_token: float = 4.0
    template_tokens: int = 0
    """What the chat template puts around a prompt."""
    prices: Prices | None = None
    fit: Fit | None = None

    def __post_init__(self) -> None:
        for name in _TIMES:
            if not 0 <= getattr(self, name) < 1e6:
                raise ValueError(f"{name} is a time of at least 0, not {getattr(self, name)!r}")
        if not 1e-9 <= self.token_s < 1e6:
            raise ValueError(f"token_s is a time of at least 1e-9, not {self.token_s!r}")
        for name in ("window", "kv_tokens", "block_tokens", "concurrency", "batch_tokens"):
            if not 1 <= getattr(self, name) < 1 << 50:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)!r}")
        if not 0.25 <= self.bytes_a_token <= 64:
            raise ValueError(f"bytes_a_token is between 0.25 and 64, not {self.bytes_a_token!r}")
        if not (0 <= self.aside_tokens < 1 << 50 and 0 <= self.template_tokens < self.window):
            raise ValueError("aside_tokens and template_tokens are at least 0")
        if self.concurrency > (MOST_SLOTS if self.cache == "slots" else MOST_SEQUENCES):
            raise ValueError(f"concurrency is less than {self.concurrency!r} on any engine")
        if self.kv_tokens < self.block_tokens:
            raise ValueError("kv_tokens is less than a block")

    @property
    def block_bytes(self) -> int:
        """Of the text of a block."""
        return max(1, round(self.block_tokens * self.bytes_a_token))

    def tokens(self, size: int) -> int:
        """How many tokens a text of ``size`` bytes has."""
        return ceil(size / self.bytes_a_token)

    def step_s(self, batch: Batch) -> float:
        """The first of the steps of ``batch``."""
        tokens = batch.prefill + batch.sequences
        time = self.overhead_s + max(self.weights_s, self.token_s * tokens)
        time += self.sequence_s * batch.sequences + self.kv_s * batch.resident
        return time + self.attention_s * batch.prefill * (batch.before + batch.prefill / 2)

    def growth_s(self, batch: Batch) -> float:
        """How much longer each following step is: contexts grow."""
        return self.kv_s * batch.sequences + self.attention_s * batch.prefill**2

    def steps_s(self, batch: Batch, steps: int) -> float:
        """The first ``steps`` steps of ``batch`` together, in closed form."""
        return steps * self.step_s(batch) + self.growth_s(batch) * (steps * (steps - 1) / 2)

    def steps_begun(self, batch: Batch, seconds: float) -> int:
        """How many steps of ``batch`` have begun before ``seconds`` are over; at least one."""
        first, growth = self.step_s(batch), self.growth_s(batch)
        if growth <= 1e-15:
            guess = seconds / first if first else 0.0
        else:
            half = first - growth / 2
            guess = ((half * half + 2 * growth * seconds) ** 0.5 - half) / growth
        steps = max(1, int(guess))
        while self.steps_s(batch, steps) < seconds:
            steps += 1
        while steps > 1 and self.steps_s(batch, steps - 1) >= seconds:
            steps -= 1
        return steps


_TIMES = (
    "overhead_s",
    "weights_s",
    "sequence_s",
    "kv_s",
    "attention_s",
    "request_s",
    "door_s",
)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What a step works on: tokens of prompts, and sequences that get their next token."""

    prefill: int = 0
    before: float = 0.0
    """Tokens of context before the prefill, as if it were of one prompt."""
    sequences: int = 0
    resident: int = 0
    """The sequences' contexts together."""


def load_profile(path: Path) -> Profile:
    """The profile in a file that ``accord calibrate`` wrote.

    Raises UsageError that says what is wrong with it, and where.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise UsageError(
            f"the profile {path} cannot be read ({error.strerror}); `accord calibrate URL` writes "
            "one, and sim:8b and sim:70b need none"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is no profile of an engine: {error}; write one with `accord calibrate URL`"
        ) from error
