"""Bounds on tokens: reserved before a request goes out, settled when it is back.

Over what an agent may use in a run stands a ladder, taken one rung at a time: a shorter reply, a
cheaper model, others shown as summaries, and at last a refusal that says what was left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from accord.errors import BudgetExceededError
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Rung,
)
from accord.log.log import Log
from accord.log.waiters import Waiters

FLOOR_TOKENS = 64
"""A reply is not cut shorter than this."""


class Budget:
    """The tokens that the requests of one piece of work may use, prompt and completion together.

    Counted are requests that were answered: what failed attempts cost is in the tax report.
    ``what`` names the work; ``outer`` is the budget of what that is part of.
    """

    def __init__(self, tokens: int, what: str, outer: Budget | None = None) -> None:
        self.tokens = tokens
        self.what = what
        self.used = 0
        self._outer = outer
        self._reserved = 0

    @property
    def left(self) -> int:
        """What may still be reserved."""
        return self.tokens - self.used - self._reserved

    @contextmanager
    def reserved(self, tokens: int, who: str) -> Generator[None]:
        """Hold back what a request may use at most, for as long as it is under way.

        Raises :class:`accord.errors.BudgetExceededError` if there is not as much.
        """
        if tokens > self.left:
            raise BudgetExceededError(
                f"{who} may use {tokens:,} tokens, and {self.what} has {max(0, self.left):,} of "
                f"its {self.tokens:,} left: give it a larger budget, or the agent a smaller "
                "max_tokens or less to read",
                left=max(0, self.left),
            )
        self._reserved += tokens
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.reserved(tokens, who):
                    yield
        finally:
            self._reserved -= tokens

    def settle(self, tokens: int) -> None:
        """So much was used."""
        self.used += tokens
        if self._outer is not None:
            self._outer.settle(tokens)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a request would use.

    ``cuts`` says that a shorter reply is of use, ``weight`` what a token of the cheaper model
    counts; None without one.
    """

    prompt: int
    max_tokens: int
    cuts: bool = True
    weight: float | None = None

    @property
    def least(self) -> int:
        """The shortest reply that is of use."""
        return min(self.max_tokens, FLOOR_TOKENS) if self.cuts else self.max_tokens


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a request fits: on which rung of the ladder, with how long a reply."""

    max_tokens: int
    rung: Rung = ""


def fit(wanted: Wanted, left: float) -> Fit | None:
    """The first rung on which ``left`` tokens are enough; None if there is none."""
    if wanted.prompt + wanted.max_tokens <= left:
        return Fit(max_tokens=wanted.max_tokens)
    if wanted.prompt + wanted.least <= left:
        return Fit(max_tokens=int(left) - wanted.prompt, rung="shorter")
    if wanted.weight is not None:
        room = int(left / wanted.weight) - wanted.prompt
        if room >= wanted.least:
            return Fit(max_tokens=min(wanted.max_tokens, room), rung="cheaper")
    return None


class Spending:
    """What the requests of each agent have used: a :class:`accord.log.log.Fold`.

    It keeps how that has grown, so that it can say what had been used at any position.
    """

    def __init__(self) -> None:
        self._agents: dict[int, str] = {}
        """Of the requests under way, by the number of their call."""
        self._grown: dict[str, list[_Sum]] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        match envelope.event:
            case CallStarted(kind="request", name=name):
                self._agents[envelope.seq] = name
            case (
                CallFinished(call=call, usage=usage, rung=rung)
                | CallCancelled(call=call, usage=usage, rung=rung)
                | AttemptFailed(call=call, usage=usage, rung=rung)
            ) if usage is not None and call in self._agents:
                tokens = usage.prompt + usage.completion
                self._book(envelope.seq, self._agents[call], tokens, cheaper=rung == "cheaper")
            case _:
                pass
        if isinstance(envelope.event, CallFinished | CallCancelled | CallFailed):
            self._agents.pop(envelope.event.call, None)

    def _book(self, seq: int, agent: str, tokens: int, *, cheaper: bool) -> None:
        sums = self._grown.setdefault(agent, [_Sum(-1, 0, 0)])
        _, own, other = sums[-1]
        grown = _Sum(seq, own, other + tokens) if cheaper else _Sum(seq, own + tokens, other)
        sums.append(grown)

    def used(self, agent: str, weight: float | None, position: int | None = None) -> float:
        """What counts as used by ``agent``, by events before ``position``."""
        sums = self._grown.get(agent)
        if sums is None:
            return 0.0
        last = len(sums) if position is None else bisect_left(sums, position, key=_seq)
        _, own, cheaper = sums[last - 1]
        return own + cheaper * (1.0 if weight is None else weight)


class _Sum(NamedTuple):
    """Tokens up to an event."""

    seq: int
    own: int
    cheaper: int


def _seq(grown: _Sum) -> int:
    return grown.seq


class Allowance:
    """The tokens that agents of one name may use in one run. What is used is read off the log.

    Agents of one name share what is used; how much that may be each says for itself.
    """

    def __init__(self, agent: str, log: Log) -> None:
        self._agent = agent
        self._log = log
        self._reserved = 0.0
        self._freed = Waiters()

    def share(self, tokens: int) -> float:
        """How much of ``tokens`` is used."""
        return self._used(None) / tokens

    @asynccontextmanager
    async def held(self, wanted: Wanted, tokens: int) -> AsyncGenerator[Fit]:
        """Hold back what a request may use of ``tokens``, on the rung that it gets, under way.

        Before it gets less than it wants, it waits for what others of the agent have reserved.
        Raises :class:`accord.errors.BudgetExceededError` below the last rung.
        """
        weight = wanted.weight
        while wanted.prompt + wanted.max_tokens > self._left(tokens, weight) and self._reserved:
            await self._freed.wait()
        found = fit(wanted, self._left(tokens, weight))
        if found is None:
            raise self._exceeded(wanted, tokens)
        counts = weight if found.rung == "cheaper" and weight is not None else 1.0
        reserved = (wanted.prompt + found.max_tokens) * counts
        self._reserved += reserved
        try:
            yield found
        finally:
            self._reserved -= reserved
            self._freed.wake()

    def _left(self, tokens: int, weight: float | None) -> float:
        """What is neither used nor reserved."""
        return tokens - self._used(weight) - self._reserved

    def _used(self, weight: float | None) -> float:
        return self._log.fold(Spending).used(self._agent, weight)

    def _exceeded(self, wanted: Wanted, tokens: int) -> BudgetExceededError:
        left = max(0, int(self._left(tokens, wanted.weight)))
        least = wanted.prompt + wanted.least
        return BudgetExceededError(
            f"a request of {self._agent!r} takes at least {least:,} tokens, and of its budget of "
            f"{tokens:,} for run {self._log.run} {left:,} are left: give the agent a larger "
            "budget, a cheaper model to fall back on (cheaper=), or less to read",
            left=left,
        )
