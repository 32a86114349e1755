"""Limits on a rate: reserved before a request goes out, settled when its usage is known.

What is reserved counts as used until it is settled, so requests that go out together cannot use
more than there is. A window slides: what was sent ``per_s`` ago no longer counts. A request larger
than a whole limit goes alone, when nothing else counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

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
    """For each agent (by name, over all runs), for each run, and for each tenant."""

    agent: Limit | None = None
    run: Limit | None = None
    tenant: Limit | None = None

    def of(self, ticket: Ticket) -> Iterator[tuple[Limit, str]]:
        """Those that a ticket is under, and whose they are."""
        for limit, kind, name in (
            (self.agent, "agent", ticket.agent),
            (self.run, "run", ticket.run),
            (self.tenant, "tenant", ticket.tenant),
        ):
            if limit is not None:
                yield limit, f"{kind} {name!r}"


class Use:
    """What one request takes of one window."""

    __slots__ = ("at_s", "is_open", "tokens")

    def __init__(self, at_s: float, tokens: int) -> None:
        self.at_s = at_s
        self.tokens = tokens
        self.is_open = True
        """It is under way: it counts, however old it is."""


class Window:
    """What counts against one limit, now."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.tokens = 0
        """Used or reserved, of all that counts."""
        self._uses: deque[Use] = deque()

    def forget(self, now_s: float) -> None:
        """Drop what no longer counts."""
        horizon = now_s - self.limit.per_s
        if not self._uses or self._uses[0].at_s > horizon:
            return
        kept = [use for use in self._uses if use.is_open or use.at_s > horizon]
        if len(kept) < len(self._uses):
            self._uses = deque(kept)
            self.tokens = sum(use.tokens for use in kept)

    @property
    def is_empty(self) -> bool:
        """Nothing counts."""
        return not self._uses

    @property
    def share(self) -> float:
        """How much of the limit counts as used."""
        limit = self.limit
        return max(
            self.tokens / limit.tokens if limit.tokens else 0.0,
            len(self._uses) / limit.requests if limit.requests else 0.0,
        )

    @property
    def left(self) -> int | None:
        """Tokens left."""
        return None if self.limit.tokens is None else max(0, self.limit.tokens - self.tokens)

    def free_at(self, now_s: float, tokens: int) -> float | None:
        """When there will be room for ``tokens``; None if that depends on what is under way."""
        self.forget(now_s)
        limit = self.limit
        most = inf if limit.tokens is None else max(limit.tokens, tokens)
        many = inf if limit.requests is None else limit.requests
        if limit.tokens is not None and tokens > limit.tokens:
            many = 1  # alone
            most = tokens
        used, count, at_s = self.tokens, len(self._uses), now_s
        for use in sorted(self._uses, key=lambda use: (use.is_open, use.at_s)):
            if used + tokens <= most and count < many:
                break
            if use.is_open:
                return None
            used, count, at_s = used - use.tokens, count - 1, use.at_s + limit.per_s
        return at_s

    def reserve(self, now_s: float, tokens: int) -> Use:
        """Take room for ``tokens``."""
        use = Use(now_s, tokens)
        self._uses.append(use)
        self.tokens += tokens
        return use

    def settle(self, use: Use, tokens: int) -> None:
        """So much was used in the end."""
        self.tokens += tokens - use.tokens
        use.tokens, use.is_open = tokens, False

    def give_back(self, use: Use) -> None:
        """It was not sent, or came to nothing."""
        self._uses.remove(use)
        self.tokens -= use.tokens


@dataclass(frozen=True, kw_only=True)
class Room:
    """Whether there is room: ``at_s`` is when, or None if that depends on what is under way.

    ``whose`` limit it is that there is none of yet, ``left`` what it has left in tokens.
    """

    at_s: float | None
    whose: str = ""
    left: int | None = None
    patience_s: float = inf


class Book:
    """The windows of all agents, runs and tenants of one runtime, over all of its engines."""

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits or Limits()
        self._windows: dict[str, Window] = {}

    def room(self, ticket: Ticket, now_s: float) -> Room:
        """When there is room for ``ticket`` under each of its limits."""
        found = Room(at_s=now_s)
        for window, whose in self._of(ticket):
            at_s = window.free_at(now_s, ticket.size)
            if at_s is None or (found.at_s is not None and at_s > found.at_s):
                found = Room(
                    at_s=at_s,
                    whose=whose,
                    left=window.left,
                    patience_s=window.limit.patience_s,
                )
        return found

    def names(self, ticket: Ticket) -> list[str]:
        """Whose limits ``ticket`` is under."""
        return [whose for _, whose in self._limits.of(ticket)]

    def reserve(self, ticket: Ticket, now_s: float) -> list[tuple[Window, Use]]:
        """Take room for ``ticket`` under each of its limits."""
        return [(window, window.reserve(now_s, ticket.size)) for window, _ in self._of(ticket)]

    def share(self, ticket: Ticket, now_s: float) -> float:
        """The largest share used of the limits that ``ticket`` is under."""
        shares = [0.0]
        for window, _ in self._of(ticket):
            window.forget(now_s)
            shares.append(window.share)
        return max(shares)

    def ended(self, run: str) -> None:
        """No more will come of ``run``."""
        self._windows.pop(f"run {run!r}", None)

    def _of(self, ticket: Ticket) -> Iterator[tuple[Window, str]]:
        for limit, whose in self._limits.of(ticket):
            window = self._windows.get(whose)
            if window is None:
                window = self._windows[whose] = Window(limit)
            yield window, whose
