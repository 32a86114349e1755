"""Where in the flow we are.

A scope is a path such as ``0/2/1``: the second call of the third branch of the first join.
Paths come from program order, so branches that finish in another order have the same paths
on a replay. Each scope also knows its *frontier*: the last events that its code has seen,
which are the causes of whatever it does next.

A task that the flow started by itself (``asyncio.gather``, ``TaskGroup``) gets a scope named
after its first call, ``0/~write.5fK2``, since nothing else about it is the same on a replay.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING

from accord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from accord.engine.base import Usage
    from accord.flow.execution import Execution


class Scope:
    """A place in the flow of one run."""

    __slots__ = (
        "_adopted",
        "_loose",
        "children",
        "execution",
        "frontier",
        "partial",
        "path",
        "task",
        "thread_running",
    )

    def __init__(
        self,
        path: str,
        frontier: tuple[int, ...],
        execution: Execution,
        task: asyncio.Task[object] | None,
    ) -> None:
        self.path = path
        self.frontier = frontier
        self.execution = execution
        self.task = task
        self.children = 0
        self.partial: Callable[[], tuple[Usage | None, float | None]] | None = None
        """What a request has cost so far, in tokens and dollars, should it be cancelled."""
        self.thread_running = False
        """A thread works for this call; if the call ends first, the thread is left behind."""
        self._adopted: dict[str, int] | None = None
        self._loose: dict[str, int] | None = None

    def next_path(self) -> str:
        """The path of the next call or join."""
        index = self.children
        self.children = index + 1
        return f"{self.path}/{index}" if self.path else str(index)

    def causes(self) -> tuple[int, ...]:
        """What the next event here follows from."""
        if self._loose is None:
            return self.frontier
        ends = set(self.frontier).union(self._loose.values())
        self._loose = None
        return tuple(sorted(ends))

    def adopt(self, task: asyncio.Task[object] | None, name: str, key: str) -> Scope:
        """A scope for a task that the flow itself started here, at that task's first call."""
        label = f"~{name}.{key[:6]}"
        if self._adopted is None:
            self._adopted = {}
        count = self._adopted[label] = self._adopted.get(label, -1) + 1
        path = f"{self.path}/{label}.{count}" if count else f"{self.path}/{label}"
        return LooseScope(path.lstrip("/"), self.frontier, self.execution, task, self)

    def saw_end(self, seq: int) -> None:
        """A call or join made here ended with event ``seq``."""
        self.frontier = (seq,)

    def saw_end_of(self, path: str, seq: int) -> None:
        """A task started here ended a call; what follows here may depend on it."""
        if self._loose is None:
            self._loose = {}
        self._loose[path] = seq


class LooseScope(Scope):
    """The scope of a task that the flow itself started; its parent cannot know when it ends."""

    __slots__ = ("_parent",)

    def __init__(
        self,
        path: str,
        frontier: tuple[int, ...],
        execution: Execution,
        task: asyncio.Task[object] | None,
        parent: Scope,
    ) -> None:
        super().__init__(path, frontier, execution, task)
        self._parent = parent

    def saw_end(self, seq: int) -> None:
        """A call of this task ended; the code that started the task may have seen it."""
        self.frontier = (seq,)
        self._parent.saw_end_of(self.path, seq)


_current: ContextVar[Scope] = ContextVar("accord_scope")


def current_scope(what: str) -> Scope:
    """The scope of the running code; ``what`` names the caller in the error outside of a run."""
    try:
        return _current.get()
    except LookupError:
        msg = (
            f"{what} was called outside of a run; "
            "start one with accord.run(flow, ...) and make the call inside the flow"
        )
        raise UsageError(msg) from None


enter = _current.set
leave = _current.reset
