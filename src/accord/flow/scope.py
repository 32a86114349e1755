"""Where in the flow we are.

A scope is a path such as ``0/2/1``: the second call of the third branch of the first join.
Paths come from program order, so branches that finish in another order have the same paths
on a replay. Each scope also knows its *frontier*: the last events that its code has seen,
which are the causes of whatever it does next.

A task that the flow started by itself (``asyncio.gather``, ``TaskGroup``) gets a scope at the
first thing it does here, named after the task if it was given a name, else after that first
call and its input: ``0/~write.5fK2aa``. Nothing else about it is the same on a replay.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from accord.clock import NANOSECONDS
from accord.errors import UsageError
from accord.flow.failure import failures_in_flight
from accord.log.fold import is_within

if TYPE_CHECKING:
    from accord.engine.base import Usage
    from accord.flow.execution import Execution
    from accord.flow.hold import Hold
    from accord.log.events import CallKind, Rung
    from accord.schedule.budget import Budget

AFTER_OTHERS = -1
"""The priority of what runs ahead, as long as that may be for nothing."""
_AUTOMATIC_NAME = re.compile(r"Task-\d+")


class Tap(Protocol):
    """Takes a reply while it is being written."""

    def begin(self, seq: int) -> None:
        """An attempt begins that follows from event ``seq``: the text comes from its beginning."""
        ...

    def take(self, text: str) -> None:
        """The next piece."""
        ...


class Scope:
    """A place in the flow of one run, at work in one task."""

    __slots__ = (
        "_loose",
        "_priority",
        "adopted",
        "after",
        "agent",
        "askers",
        "began",
        "budget",
        "children",
        "deadline_ns",
        "execution",
        "frontier",
        "handling",
        "hold",
        "outer",
        "path",
        "remaining_s",
        "tap",
        "task",
    )

    def __init__(
        self,
        path: str,
        frontier: tuple[int, ...],
        execution: Execution,
        task: asyncio.Task[object] | None,
        outer: Scope | None = None,
    ) -> None:
        self.path = path
        self.frontier = frontier
        self.outer = outer
        """The scope of the code that this was called by, or branched off from."""
        self.began: tuple[str, tuple[int, ...]] | None = None
        """Where and after what this branched off; None if it runs in the place of its caller."""
        self.agent: str = "" if outer is None else outer.agent
        """The agent at work here, if any."""
        self._priority: int | None = None
        self.askers: Callable[[], Iterable[Scope]] | None = None
        """Who waits for what is done here."""
        self.deadline_ns: int | None = None if outer is None else outer.deadline_ns
        """By when the replies to requests made here are of use, on the run's clock."""
        self.remaining_s: float = 0.0 if outer is None else outer.remaining_s
        """The longest chain of work from here to the end of the run, where it was declared."""
        self.budget: Budget | None = None if outer is None else outer.budget
        """What the requests made here may use."""
        self.hold: Hold | None = None if outer is None else outer.hold
        """What runs here runs ahead of what it depends on."""
        self.after = ""
        """A branch beside this one that had ended when this began: what it did is known here."""
        self.execution = execution
        self.task = task
        self.tap: Tap | None = None
        """Who takes the replies of agents that are called right here, while they are written."""
        self.handling: tuple[int, ...] = () if outer is None else outer.handling
        """The failures in flight where this scope began."""
        self.children = 0
        """Calls and joins made here."""
        self.adopted: dict[str, int] | None = None
        """Tasks started here that have done something, by label."""
        self._loose: dict[str, int] | None = None

    @property
    def priority(self) -> int:
        """Of the requests made here: larger is more urgent, zero is none.

        Its own, or that of whom it works for, if that is larger: of the code that called it, and of
        those who have asked it and wait.
        """
        return self._urgency(set())

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = priority

    def _urgency(self, seen: set[int]) -> int:
        if id(self) in seen:  # they wait for each other
            return 0
        seen.add(id(self))
        if self.hold is not None and not self.hold.is_certain:
            found = AFTER_OTHERS
        else:
            outer = 0 if self.outer is None else self.outer._urgency(seen)  # noqa: SLF001  # its kind
            own = self._priority
            found = outer if own is None else own if not outer else max(own, outer)
        for asker in self.who_asks():
            urgency = asker._urgency(seen)  # noqa: SLF001
            found = max(found, urgency) if urgency or found == AFTER_OTHERS else found
        return found

    async def certain(self) -> None:
        """Return when all that the code here depends on is certain; others may see what it does."""
        if self.hold is not None:
            began = self.execution.log.now()
            await self.hold.wait()
            self.be_seen()
            self._put_off(self.execution.log.now() - began)

    def _put_off(self, held_ns: int) -> None:
        """Deadlines and limits of the code that was held do not count the time."""
        each: Scope | None = self
        while held_ns and each is not None and each.hold is self.hold:
            if each.deadline_ns is not None:
                each.deadline_ns += held_ns
            limit = each.limit if isinstance(each, CallScope) else None
            if limit is not None and (when := limit.when()) is not None and not limit.expired():
                limit.reschedule(when + held_ns / NANOSECONDS)
            each = each.outer

    def be_seen(self) -> None:
        """What comes next here can be seen: it follows from what made it certain, too."""
        if self.hold is not None:
            known = set(self.frontier)
            self.frontier += tuple(seq for seq in self.hold.causes if seq not in known)

    def who_asks(self) -> Iterable[Scope]:
        """Those who wait for what is done here."""
        return () if self.askers is None else self.askers()

    def due_by(self, deadline_ns: int) -> None:
        """What is done here is of use until then, or for a shorter time if that was said before."""
        outer = self.deadline_ns
        self.deadline_ns = deadline_ns if outer is None else min(outer, deadline_ns)

    def handling_now(self) -> tuple[int, ...]:
        """The failures that are dealt with here: in an ``except`` or ``finally``, or around it."""
        return failures_in_flight(self.execution.log) or self.handling

    @property
    def place(self) -> str:
        """The path of the next call, join or note."""
        return f"{self.path}/{self.children}" if self.path else str(self.children)

    def next_path(self) -> str:
        """The path of the call, join or note that is made now."""
        path = self.place
        self.children += 1
        return path

    def take_causes(self) -> tuple[int, ...]:
        """What the next event here follows from; asked once for each event."""
        if self._loose is None:
            return self.frontier
        ends = set(self.frontier).union(self._loose.values())
        self._loose = None
        return tuple(sorted(ends))

    def knows(self, path: str, seq: int) -> bool:
        """Whether event ``seq`` at ``path`` came before what runs here, and not beside it."""
        if is_within(path, self.path) or (self.after and is_within(path, self.after)):
            return True
        if self.began is not None and seq > self.execution.replay.began(*self.began):
            return False
        return self.outer is None or self.outer.knows(path, seq)

    def follow(self, seq: int) -> None:
        """What comes next here also follows from event ``seq``, made elsewhere."""
        self.frontier = (*self.frontier, seq)

    def branch(self, path: str, causes: tuple[int, ...], handling: tuple[int, ...]) -> Scope:
        """A scope for code that runs beside other code from here on."""
        scope = Scope(path, causes, self.execution, None, self)
        scope.began = (path.rpartition("/")[0], causes)
        scope.handling = handling
        return scope

    def saw_end(self, seq: int) -> None:
        """A call or join made here ended with event ``seq``."""
        self.frontier = (seq,)

    def saw_end_of_task(self, path: str, seq: int) -> None:
        """A task started here ended a call; what follows here may depend on it."""
        if self._loose is None:
            self._loose = {}
        self._loose[path] = seq

    def adopt(self, task: asyncio.Task[object] | None, label: str) -> Scope:
        """A scope for a task that the flow itself started here."""
        if self.adopted is None:
            self.adopted = {}
        count = self.adopted.get(label, 0)
        self.adopted[label] = count + 1
        path = f"{self.path}/{numbered(label, count)}".lstrip("/")
        scope = _LooseScope(path, self.frontier, self.execution, task, self)
        scope.began = (path, self.frontier)
        return scope


class CallScope(Scope):
    """The scope of a running call, and what its body has to say should it not end well."""

    __slots__ = ("attempts", "kind", "limit", "partial", "start", "thread_running")

    def __init__(
        self,
        path: str,
        start: int,
        outer: Scope,
        *,
        kind: CallKind,
        attempts: int,
    ) -> None:
        super().__init__(path, (start,), outer.execution, outer.task, outer)
        self.start = start
        """The number of the event with which the call started."""
        self.kind: CallKind = kind
        self.limit: asyncio.Timeout | None = None
        """When the call will have taken too long."""
        self.attempts = attempts
        """Attempts that an earlier process made of this call."""
        self.partial: Callable[[], tuple[Usage | None, float | None, Rung]] | None = None
        """What a request has cost so far, in tokens and dollars, and on which rung."""
        self.thread_running = False
        """A thread works for this call; if the call ends first, the thread is left behind."""


class _LooseScope(Scope):
    """The scope of a task that the flow itself started; its parent cannot know when it ends."""

    __slots__ = ()

    def saw_end(self, seq: int) -> None:
        """A call of this task ended; the code that started the task may have seen it."""
        self.frontier = (seq,)
        assert self.outer is not None
        self.outer.saw_end_of_task(self.path, seq)


_current: ContextVar[Scope] = ContextVar("accord_scope")

enter = _current.set
leave = _current.reset


def current_scope(what: str) -> Scope:
    """The scope that the running code is in; ``what`` names the caller in the error."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError(
            f"{what} was called outside of a run; "
            "start one with accord.run(flow, ...) and make the call inside the flow"
        ) from None


def own_scope(what: str, label: str | Callable[[Scope], str]) -> Scope:
    """The running task's own scope; a task that the flow started gets one, called ``label``.

    Tasks that begin alike may swap places on a replay, so a label says what one does first.
    """
    scope = current_scope(what)
    if scope.execution.fatal is not None:
        raise scope.execution.fatal
    try:
        task = asyncio.current_task()
    except RuntimeError:
        raise UsageError(
            f"{what} was called from a thread; give the value back, and use it in the flow or in "
            "an async function: a run's log belongs to its event loop"
        ) from None
    if task is scope.task or task is None:
        return scope
    if scope.task is not None and task.get_loop() is not scope.task.get_loop():
        raise UsageError(
            f"{what} was called from another event loop than its run's; "
            "await it in the flow instead of calling asyncio.run in a step"
        )
    name = task.get_name()
    if not _AUTOMATIC_NAME.fullmatch(name):
        label = name
    elif not isinstance(label, str):
        label = label(scope)
    scope = scope.adopt(task, f"~{label.replace('/', '_')}")  # a label is one step of a path
    enter(scope)
    return scope


def numbered(label: str, count: int) -> str:
    """The segment of the task with ``count`` like it before: ``~a``, then ``~a.1``."""
    return f"{label}.{count}" if count else label
