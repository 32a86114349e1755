"""The queue in front of an engine, in the order of a policy.

Where tickets keep their order while they wait, the key of each is found once; else those of all
are found anew for each decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from accord.schedule.policy import Key, Policy
from accord.schedule.ticket import Ticket

if TYPE_CHECKING:
    from accord.schedule.place import Place, Stage


def _zero() -> int:
    return 0


def _nothing() -> float:
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a caller says of a request.

    ``priority`` and ``used`` (the share of its agent's budget) are asked for again while it waits:
    who waits for it may become more urgent.
    """

    run: str = ""
    agent: str = ""
    prompt: bytes = b""
    prefill: int = 0
    decode: int = 0
    deadline_s: float | None = None
    remaining_s: float = 0.0
    through_s: float = 0.0
    priority: Callable[[], int] = _zero
    used: Callable[[], float] = _nothing
    runs: Callable[[], Collection[str]] = tuple
    """Those of others who wait for it."""


@dataclass(eq=False, kw_only=True)
class Waiting:
    """A ticket in the queue, and who waits with it."""

    ask: Ask
    ticket: Ticket
    turn: asyncio.Future[Place]
    key: tuple[Key, int] | None = None
    behind: tuple[Place, Stage] | None = None
    """The request that it lets go ahead, as long as that is where it was."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list[asyncio.TimerHandle])
    """At its deadline, and where the patience of a limit ends."""

    def stop_timers(self) -> None:
        """It waits no more."""
        for timer in self.timers:
            timer.cancel()


class Line:
    """Who waits."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: list[Waiting] = []
        self._sorted = True

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Put it in the line."""
        self._waiting.append(waiting)
        self._sorted = False

    def remove(self, waiting: Waiting) -> None:
        """It waits no more; nothing happens if it does not."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def prune(self) -> None:
        """Drop those who have been cancelled, and whose tasks have not yet heard of it."""
        self._waiting = [each for each in self._waiting if not each.turn.done()]

    def refresh(self, fresh: Callable[[Waiting], Ticket]) -> None:
        """Bring up to date what an order goes by that changes."""
        if not self._policy.lasting:
            for each in self._waiting:
                each.ticket = fresh(each)

    def sort(self, now_s: float) -> None:
        """Bring all in their order. Raises what a policy raises."""
        if self._sorted and self._policy.lasting:
            return
        lasting = self._policy.lasting
        for each in self._waiting:
            if each.key is None or not lasting:
                key = self._policy.key(each.ticket, 0.0 if lasting else now_s)
                each.key = key, each.ticket.number
        self._waiting.sort(key=_key)
        self._sorted = True

    def lift(self) -> None:
        """Ask again how urgent each is."""
        for each in self._waiting:
            if (priority := each.ask.priority()) != each.ticket.priority:
                each.ticket, each.key = replace(each.ticket, priority=priority), None
                self._sorted = False

    def take(self, may_go: Callable[[Waiting], bool], most: int) -> list[Waiting]:
        """Take out the first ``most`` that may go."""
        taken: list[int] = []
        for index, each in enumerate(self._waiting):
            if len(taken) >= most:
                break
            if may_go(each):
                taken.append(index)
        found = [self._waiting[index] for index in taken]
        for index in reversed(taken):
            del self._waiting[index]
        return found


def _key(waiting: Waiting) -> tuple[Key, int]:
    assert waiting.key is not None
    return waiting.key
