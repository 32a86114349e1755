"""How many requests may be at an engine at once: up by one at a time, down at once (AIMD).

An engine that refuses (429) is asked by half as many. A refusal counts once for all that were sent
before it was known: they are one answer. With a target for the slowest, an engine that is too slow
is asked by fewer. Where they wait longer in front of it than they gain there, the cut is undone,
and the next one tried later, each time twice as late.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

DEFAULT_CONCURRENCY = 64
CAUTIOUS = 8
"""How many to begin with where too many are refused, and nobody says how many those are."""
WINDOW = 128
"""Requests that the 99th percentile is taken over."""
TRIAL = 64
"""Requests sent after a cut by which it is judged."""


def slowest(ratios: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(ratios)[ceil(0.99 * len(ratios)) - 1]


def next_concurrency(current: int, ratio: float, most: int) -> int:
    """The next number, given what the slowest took, as a share of what they may take."""
    return max(1, min(most, current + 1 if ratio <= 1.0 else current * 9 // 10))


class Concurrency:
    """The number for one engine."""

    def __init__(self, most: int, *, cautious: bool = False) -> None:
        self.most = most
        self.limit: int = min(most, CAUTIOUS) if cautious else most
        self.round = 0
        """Grows with each cut: what was sent in an earlier round does not cut again."""
        self._grows = cautious
        """Nothing has been refused yet: each that is let in makes room for another."""
        self._successes = 0
        self._ratios: list[float] = []
        self._cut: tuple[int, float] | None = None
        """What was cut, and how slow it was before."""
        self._pause = 0
        """Windows before the next cut is tried."""
        self._next_pause = 1

    def begun(self) -> None:
        """The engine has begun to answer."""
        if self._grows:
            self.limit = min(self.most, self.limit + 1)

    def refused(self, sent_in: int, active: int) -> None:
        """The engine refused a request sent in round ``sent_in``, of ``active`` at once."""
        if sent_in == self.round:
            self.round += 1
            self.limit = max(1, min(self.limit, active) // 2)
            self._successes, self._grows = 0, False
            self._cut = None  # a trial under way is over: what it undoes is no longer there
            self._ratios.clear()

    def succeeded(self, ratio: float | None, sent_in: int = 0) -> None:
        """A request was answered, in ``ratio`` of the time that it may take, if that is bounded."""
        if ratio is None:
            self._successes += 1
            if self._successes >= self.limit and not self._grows:
                self.limit, self._successes = min(self.most, self.limit + 1), 0
            return
        if self._cut is not None and sent_in < self.round:
            return
        self._ratios.append(ratio)
        if len(self._ratios) >= (WINDOW if self._cut is None else TRIAL):
            self._steer(slowest(self._ratios))
            self._ratios.clear()

    def _steer(self, ratio: float) -> None:
        """A window is over, in which the slowest took ``ratio`` of what they may."""
        if self._cut is not None:
            (before, ratio_before), self._cut = self._cut, None
            if ratio > ratio_before:
                self.limit = before
                self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
                return
        found = next_concurrency(self.limit, ratio, self.most)
        if found >= self.limit:
            self.limit = found
        elif self._pause:
            self._pause -= 1
        else:
            self._cut = self.limit, ratio
            self.limit, self._grows = found, False
            self.round += 1
