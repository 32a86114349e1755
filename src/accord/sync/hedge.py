"""Hedging: a second attempt at what takes unusually long; the first answer wins.

Choose it where a join waits for many equal calls, of which a few are stragglers (a slow replica, a
long queue). It costs the second attempts, at most ``share`` of the calls, and saves the wait for
the slowest. After Dean and Barroso, "The Tail at Scale" (2013).

How long is unusual is learned from the log: from how long the calls of that name have taken in this
run, those included that still run. It is P95, at the lower end of where that may lie; or twice the
median, if that is less and few calls are known. When the share is nearly used up, one has to
have waited longer.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from math import floor, sqrt
from typing import Any, ParamSpec, TypeVar

from accord.clock import NANOSECONDS
from accord.errors import UsageError
from accord.flow.note import note
from accord.flow.scope import current_scope, own_scope
from accord.log.events import CallFinished, CallStarted, Envelope, Looked
from accord.log.log import Log
from accord.log.waiters import Waiters
from accord.observe.places import HEDGE
from accord.reuse.results import racing
from accord.sync.gather import gather

P = ParamSpec("P")
T = TypeVar("T")

QUANTILE = 0.95
FEW_CALLS = 8
"""With fewer finished calls, nothing has been learned."""
MANY_CALLS = 200
"""With fewer, some stragglers too many among them hide what is usual."""
_SIGMAS = 3.0


@dataclass(frozen=True, kw_only=True)
class HedgeStatistics:
    """Calls by that name, and how many of them were further attempts; what P95 is taken to be."""

    calls: int
    hedges: int
    p95_s: float | None


@dataclass(frozen=True, kw_only=True)
class Hedge:
    """Makes calls that are tried again, beside the first attempt, when that takes too long.

    ::

        hedge = Hedge()
        texts = await gather(hedge(writer, section) for section in sections)

    ``after_s``   when to begin a further attempt; None learns it: P95 of the calls of that name
    ``attempts``  the most attempts at one call, the first included
    ``share``     further attempts are at most this share of all calls of that name in the run
    """

    after_s: float | None = None
    attempts: int = 4
    share: float = 0.1

    def __post_init__(self) -> None:
        if self.after_s is not None and not self.after_s > 0:
            raise UsageError(f"Hedge: after_s is a time above 0 or None, not {self.after_s!r}")
        if self.attempts < 2 or not 0 < self.share <= 1:
            raise UsageError(f"Hedge: at least 2 attempts and a share up to 1, not {self}")

    async def __call__(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """``await function(*args, **kwargs)``, an agent or a pure step, of which one answer wins.

        The attempts that lose are cancelled, and accounted for as such. A failure is raised: trying
        again after failures is for the call's own retries.
        """
        name = str(getattr(function, "name", ""))
        has_effects = getattr(function, "has_effects", None)
        if not name or has_effects is None:
            raise UsageError(f"Hedge takes an agent or a step, not {function!r}; put @step on it")
        if has_effects:
            raise UsageError(
                f"{name!r} has effects (or tools with effects, or writes its answer), and both "
                "attempts would have them; mark it pure=True if making it twice does no harm, and "
                "write the answer that comes back"
            )

        async def attempt(number: int) -> T:
            if number:
                await _Patience(self, name, number).run_out()
            with racing() if number else nullcontext():
                answer = await function(*args, **kwargs)
            current_scope(name).execution.log.fold(Durations)  # those that waited for news wake
            return answer

        attempts: list[Coroutine[Any, Any, T]] = [attempt(each) for each in range(self.attempts)]
        return (await gather(attempts, until="any"))[0]

    def statistics(self, log: Log, name: str) -> HedgeStatistics:
        """How the calls of that name have gone, so far, in the run that ``log`` is of."""
        found = log.fold(Durations)
        limit_ns = found.p95_ns(name)
        return HedgeStatistics(
            calls=found.calls[name],
            hedges=found.hedges[name],
            p95_s=None if limit_ns is None else limit_ns / NANOSECONDS,
        )


class Durations:
    """How long calls have taken, by name: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.hedges: Counter[str] = Counter()
        self._taken: dict[str, list[int]] = {}
        """Durations of finished calls in nanoseconds, shortest first."""
        self._running: dict[int, tuple[str, int]] = {}
        self._news: dict[str, Waiters] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        match event:
            case CallStarted(kind="agent" | "step"):
                self.calls[event.name] += 1
                self._running[envelope.seq] = event.name, envelope.at
            case CallFinished() if event.call in self._running:
                name, began = self._running.pop(event.call)
                insort(self._taken.setdefault(name, []), envelope.at - began)
                if self.p95_ns(name) is not None:
                    self.news(name).wake()
            case Looked() if event.what.startswith(HEDGE):
                self.hedges[event.what.removeprefix(HEDGE)] += 1
            case _:
                pass

    def p95_ns(self, name: str) -> int | None:
        """What P95 of the calls is taken to be; None as long as too few have ended.

        Calls that still run take longer than all that is known of them, or they would have ended.
        """
        taken = self._taken.get(name, [])
        if len(taken) < FEW_CALLS:
            return None
        known = self.calls[name] - self.hedges[name]
        rank = QUANTILE * known - _SIGMAS * sqrt(known * QUANTILE * (1 - QUANTILE))
        limits = taken[max(0, floor(rank) - 1) :][:1]
        if known < MANY_CALLS and known // 2 < len(taken):
            limits.append(2 * taken[known // 2])
        return min(limits, default=None)

    def news(self, name: str) -> Waiters:
        """Wakes who waits until more is known of the calls of that name."""
        return self._news.setdefault(name, Waiters())


class _Patience:
    """Of one further attempt: it runs out when the attempts before have taken too long."""

    def __init__(self, hedge: Hedge, name: str, number: int) -> None:
        self._hedge = hedge
        self._name = name
        self._number = number
        self._scope = own_scope("a hedge", name)
        self._log = self._scope.execution.log
        self._began_ns = self._log.now()

    async def run_out(self) -> None:
        """Return when the attempt should begin, which is recorded; perhaps never."""
        if self._scope.place not in self._scope.execution.replay.notes:
            while (left_ns := self._left_ns()) is None or left_ns > 0:
                if left_ns is None:
                    await self._log.fold(Durations).news(self._name).wait()
                else:
                    await asyncio.sleep(left_ns / NANOSECONDS)
        note(f"{HEDGE}{self._name}", lambda scope, _: self._looked(scope.agent), self._scope)

    def _looked(self, agent: str) -> Looked:
        return Looked(what=f"{HEDGE}{self._name}", by=agent)

    def _left_ns(self) -> int | None:
        """How long to wait yet; None if there is no telling."""
        found = self._log.fold(Durations)
        after_s = self._hedge.after_s
        limit_ns = found.p95_ns(self._name) if after_s is None else round(after_s * NANOSECONDS)
        hedges = found.hedges[self._name]
        most = max(1.0, self._hedge.share * (found.calls[self._name] - hedges))
        if limit_ns is None or hedges + 1 > most:
            return None
        patience = limit_ns * (self._number + (hedges / most) ** 2)
        return round(self._began_ns + patience - self._log.now())
