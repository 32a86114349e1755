"""The queue in front of an engine, in the order of a policy.

Where tickets keep their order while they wait, each is put in its place once; else all are sorted
anew for each decision.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Iterator
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
    priority: Callable[[], int] = _zero
    used: Callable[[], float] = _nothing


@dataclass(eq=False, kw_only=True)
class Waiting:
    """A ticket in the queue, and who waits with it."""

    ask: Ask
    ticket: Ticket
    turn: asyncio.Future[Place]
    key: tuple[Key, int] = ((), 0)
    behind: tuple[Place, Stage] | None = None
    """The request that it lets go ahead, as long as that is where it was."""
    overdue: asyncio.TimerHandle | None = field(default=None)


class Line:
    """Who waits."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Put it in its place."""
        if self._policy.lasting:
            self._rank(waiting, 0.0)
            insort(self._waiting, waiting, key=_key)
        else:
            self._waiting.append(waiting)

    def remove(self, waiting: Waiting) -> None:
        """It waits no more; nothing happens if it does not."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def sort(self, now_s: float, fresh: Callable[[Waiting], Ticket]) -> None:
        """Bring a line up to date whose order changes."""
        if not self._policy.lasting:
            for each in self._waiting:
                each.ticket = fresh(each)
                self._rank(each, now_s)
            self._waiting.sort(key=_key)

    def lift(self) -> None:
        """Ask again how urgent each is."""
        for each in self._waiting:
            if (priority := each.ask.priority()) != each.ticket.priority:
                each.ticket = replace(each.ticket, priority=priority)
                if self._policy.lasting:
                    self._rank(each, 0.0)
        if self._policy.lasting:
            self._waiting.sort(key=_key)

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

    def _rank(self, waiting: Waiting, now_s: float) -> None:
        ticket = waiting.ticket
        waiting.key = self._policy.key(ticket, now_s), ticket.number


def _key(waiting: Waiting) -> tuple[Key, int]:
    return waiting.key
