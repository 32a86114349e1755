"""Limits on a rate: reserved before a request goes out, settled when its usage is known.

What is reserved counts as used until it is settled, so requests that go out together cannot use
more than there is. A window slides: what was sent ``per_s`` ago no longer counts. A request larger
than a whole limit goes alone, when nothing else counts.

Loops of several threads may share a :class:`Book`: all that reads or changes it holds its lock.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

from accord.errors import UsageError
from accord.schedule.ticket import Ticket


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At most so many ``tokens`` and ``requests`` in any ``per_s`` seconds.

    A request that would wait longer than ``patience_s`` raises
    :class:`accord.errors.BudgetExceededError` at once.
    """

    tokens: int | None = None
    requests: int | None = None
    per_s: float = 60.0
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        counts = [each for each in (self.tokens, self.requests) if each is not None]
        whole = all(type(each) is int and each >= 1 for each in counts)
        if not counts or not whole or not self.per_s > 0 or not self.patience_s >= 0:
            raise UsageError(
                "a Limit has tokens, requests or both, of at least 1, a per_s above 0 and a "
                f"patience_s of at least 0, not {self}"
            )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """For each agent (by name, over all runs), for each run, and for each tenant.

    They count in this object: over all runs, engines and loops of the runtimes that are given it.
    Runtimes that are given others, though equal, count for themselves; so does another process.
    """

    agent: Limit | None = None
    run: Limit | None = None
    tenant: Limit | None = None

    def __post_init__(self) -> None:
        given: dict[str, Any] = {"agent": self.agent, "run": self.run, "tenant": self.tenant}
        for name, limit in given.items():
            if limit is not None and not isinstance(limit, Limit):
                raise UsageError(
                    f"Limits({name}=...) takes a Limit(tokens=, requests=), not {limit!r}"
                )

    def of(self, ticket: Ticket) -> Iterator[tuple[Limit, str]]:
        """Those that a ticket is under, and whose they are."""
        for limit, kind, name in (
            (self.agent, "agent", ticket.agent),
            (self.run, "run", ticket.run),
            (self.tenant, "tenant", ticket.tenant),
        ):
            if limit is not None:
                yield limit, f"{kind} {name!r}"

    @cached_property
    def book(self) -> Book:
        """What counts against them now."""
        return Book(self)


@dataclass(eq=False, kw_only=True, slots=True)
class Use:
    """What one request takes of one window."""

    at_s: float
    tokens: int


class Window:
    """What counts against one limit, now."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.tokens = 0
        """Used or reserved, of all that counts."""
        self._open: dict[Use, None] = {}
        """Under way: they count, however old they are."""
        self._closed: deque[Use] = deque()
        """By their time."""

    def forget(self, now_s: float) -> None:
        """Drop what no longer counts."""
        horizon = now_s - self.limit.per_s
        while self._closed and self._closed[0].at_s <= horizon:
            self.tokens -= self._closed.popleft().tokens

    @property
    def _requests(self) -> int:
        return len(self._open) + len(self._closed)

    @property
    def share(self) -> float:
        """How much of the limit counts as used."""
        limit = self.limit
        return max(
            self.tokens / limit.tokens if limit.tokens else 0.0,
            self._requests / limit.requests if limit.requests else 0.0,
        )

    @property
    def left(self) -> int | None:
        """Tokens left."""
        return None if self.limit.tokens is None else max(0, self.limit.tokens - self.tokens)

    def free_at(self, now_s: float, tokens: int) -> float | None:
        """When there will be room for ``tokens``; None if that depends on what is under way."""
        self.forget(now_s)
        used, count, at_s = self.tokens, self._requests, now_s
        for use in self._closed:
            if self._fits(used, count, tokens):
                break
            used, count, at_s = used - use.tokens, count - 1, use.at_s + self.limit.per_s
        return at_s if self._fits(used, count, tokens) else None

    def _fits(self, used: int, count: int, tokens: int) -> bool:
        limit = self.limit
        if limit.requests is not None and count >= limit.requests:
            return False
        return limit.tokens is None or not count or used + tokens <= limit.tokens

    def reserve(self, now_s: float, tokens: int) -> Use:
        """Take room for ``tokens``."""
        use = Use(at_s=now_s, tokens=tokens)
        self._open[use] = None
        self.tokens += tokens
        return use

    def settle(self, use: Use, tokens: int) -> None:
        """So much was used in the end."""
        self.tokens += tokens - use.tokens
        use.tokens = tokens
        del self._open[use]
        insort(self._closed, use, key=_at_s)

    def give_back(self, use: Use) -> None:
        """It was not sent."""
        del self._open[use]
        self.tokens -= use.tokens


def _at_s(use: Use) -> float:
    return use.at_s


@dataclass(frozen=True, kw_only=True)
class Short:
    """A limit without room: ``at_s`` is when there will be, None if that depends on others.

    ``whose`` limit it is, ``left`` what it has left in tokens.
    """

    at_s: float | None
    whose: str
    left: int | None
    patience_s: float

    def is_too_long(self, since_s: float, now_s: float) -> bool:
        """Whoever waits ``since_s`` would wait longer than its patience, or has."""
        if self.at_s is None:
            return now_s - since_s >= self.patience_s - 1e-6  # timers come up to that early
        return self.at_s - since_s > self.patience_s


class Watcher(Protocol):
    """Who waits for room."""

    def look(self) -> None:
        """There may be room again."""
        ...


class Book:
    """The windows of all agents, runs and tenants under some limits."""

    def __init__(self, limits: Limits) -> None:
        self.lock = RLock()
        self._limits = limits
        self._windows: dict[str, Window] = {}
        self._latest_s = 0.0
        self._watchers: WeakKeyDictionary[Watcher, ref[asyncio.AbstractEventLoop]] = (
            WeakKeyDictionary()
        )

    def patiences_s(self, ticket: Ticket) -> list[float]:
        """How long ``ticket`` may wait for each of its limits."""
        return [limit.patience_s for limit, _ in self._limits.of(ticket)]

    def short(self, ticket: Ticket, now_s: float) -> list[Short]:
        """Those limits of ``ticket`` that have no room for it now."""
        found: list[Short] = []
        for window, whose in self._of(ticket, now_s):
            at_s = window.free_at(now_s, ticket.size)
            if at_s is None or at_s > now_s:
                patience_s = window.limit.patience_s
                found.append(Short(at_s=at_s, whose=whose, left=window.left, patience_s=patience_s))
        return found

    def names(self, ticket: Ticket) -> list[str]:
        """Whose limits ``ticket`` is under."""
        return [whose for _, whose in self._limits.of(ticket)]

    def reserve(self, ticket: Ticket, now_s: float) -> Reservation:
        """Take room for ``ticket`` under each of its limits."""
        windows = [window for window, _ in self._of(ticket, now_s)]
        return Reservation(self, [(each, each.reserve(now_s, ticket.size)) for each in windows])

    def share(self, ticket: Ticket, now_s: float) -> float:
        """The largest share used of the limits that ``ticket`` is under."""
        shares = [0.0]
        for window, _ in self._of(ticket, now_s):
            window.forget(now_s)
            shares.append(window.share)
        return max(shares)

    def ended(self, run: str) -> None:
        """No more will come of ``run``."""
        with self.lock:
            self._windows.pop(f"run {run!r}", None)

    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher``, on the running loop, when there may be room again."""
        with self.lock:
            self._watchers[watcher] = ref(asyncio.get_running_loop())

    def freed(self) -> None:
        """There may be room again."""
        with self.lock:
            watchers = [(each, loop()) for each, loop in self._watchers.items()]
        for watcher, loop in watchers:
            if loop is asyncio.get_running_loop():
                watcher.look()
            elif loop is not None:
                with suppress(RuntimeError):  # it has been closed
                    loop.call_soon_threadsafe(watcher.look)

    def _of(self, ticket: Ticket, now_s: float) -> Iterator[tuple[Window, str]]:
        if now_s < self._latest_s:  # a virtual loop begins anew: what counted was of another time
            self._windows.clear()
        self._latest_s = now_s
        for limit, whose in self._limits.of(ticket):
            window = self._windows.get(whose)
            if window is None:
                window = self._windows[whose] = Window(limit)
            yield window, whose


class Reservation:
    """What one request takes of all its limits, until it is settled or given back."""

    def __init__(self, book: Book, uses: list[tuple[Window, Use]]) -> None:
        self._book = book
        self._uses = uses

    def settle(self, tokens: int) -> None:
        """So much was used in the end."""
        with self._book.lock:
            for window, use in self._uses:
                window.settle(use, tokens)
            self._uses = []

    def give_back(self) -> None:
        """It was not sent."""
        with self._book.lock:
            for window, use in self._uses:
                window.give_back(use)
            self._uses = []
