"""Branches of a flow, and where they meet: what every way of waiting for each other stands on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextvars import Context, copy_context
from typing import Literal, Self

from accord.clock import NANOSECONDS
from accord.flow.failure import ends_in, mark
from accord.flow.scope import Scope, enter, own_scope
from accord.flow.suspend import Suspended, merged
from accord.log.events import Joined


class Fork:
    """``branches`` scopes side by side at the next place of the running code, and one join.

    Raises :class:`accord.errors.FlowChangedError` if the log recorded something else here.
    """

    def __init__(self, what: str, branches: int) -> None:
        self._scope = own_scope(what, what)
        self._path = self._scope.next_path()
        execution = self._scope.execution
        self._recorded = execution.replay.join_at(self._path, self._scope, branches)
        recorded = None if self._recorded is None else self._recorded.event
        self._dropped = frozenset(recorded.dropped if isinstance(recorded, Joined) else ())
        self._failures: set[int] = set()
        before = self._before = self._scope.take_causes()
        self._began_ns = execution.replay.began_ns(self._path, before, execution.log)
        self._joined: int | None = None
        """The number of the event with which they met."""
        self._ends: tuple[int, ...] = ()
        handling = self._scope.handling_now()
        self._scopes = [
            self._scope.branch(f"{self._path}/{index}", before, handling)
            for index in range(branches)
        ]

    def __enter__(self) -> Self:
        self._scope.execution.branches += len(self._scopes)
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.execution.branches -= len(self._scopes)

    @property
    def has_met(self) -> bool:
        """It is decided which branches the join waits for."""
        return self._joined is not None or bool(self._dropped)

    @property
    def is_over(self) -> bool:
        """The recorded flow went on from where the branches met: they do no more than they did."""
        if self._recorded is None:
            return False
        return self._scope.execution.replay.led_on_from(self._recorded.seq)

    def place(self, index: int) -> str:
        """The place in the flow of branch ``index``."""
        return self._scopes[index].path

    def was_dropped(self, index: int) -> bool:
        """The recorded join did not wait for branch ``index``: it need not run again."""
        return index in self._dropped

    def elapsed_s(self) -> float:
        """How long ago the branches began, on the run's clock: before a crash, perhaps."""
        return (self._scope.execution.log.now() - self._began_ns) / NANOSECONDS

    def scope(self, index: int) -> Scope:
        """The scope of branch ``index``."""
        return self._scopes[index]

    def context(self, index: int) -> Context:
        """The context for the task of branch ``index``: in it, the branch's scope is current."""
        context = copy_context()
        context.run(enter, self._scopes[index])
        return context

    def begin(self, index: int) -> None:
        """The running task is branch ``index``."""
        self._scopes[index].task = asyncio.current_task()

    def failed(self, error: BaseException) -> None:
        """A branch ended with ``error``: what ends the join is its failure, too."""
        self._failures.update(ends_in(error, self._scope.execution.log))

    def suspended(self, suspensions: Iterable[Suspended]) -> Suspended:
        """What to raise where branches wait for answers and the others have ended."""
        found = merged(suspensions)
        ends = {seq for scope in self._scopes for seq in scope.take_causes()}
        mark(found, self._scope.execution.log, *sorted(self._failures | ends))
        return found

    def check_complete(self, index: int) -> None:
        """Branch ``index`` ended without failure: it has done all that was recorded of it."""
        self._scope.execution.replay.check_complete(self._scopes[index])

    def join(self, policy: Literal["fail_fast", "isolate"], *, dropped: Iterable[int] = ()) -> None:
        """Record that the branches have met: one event in place of as many causes.

        Called again when all branches have ended, it only lets the code here go on.
        """
        if not self._scopes:
            return
        execution = self._scope.execution
        dropped = self._dropped.union(dropped)
        if self._joined is None:
            came = [scope for index, scope in enumerate(self._scopes) if index not in dropped]
            causes = tuple(sorted({seq for scope in came for seq in scope.take_causes()}))
            causes = causes or self._before
            replay = execution.replay
            if self._recorded is not None and replay.same_causes(self._recorded.causes, causes):
                self._joined = self._recorded.seq
            elif execution.log.failed:
                return
            else:
                joined = Joined(
                    branches=len(self._scopes), policy=policy, dropped=tuple(sorted(dropped))
                )
                self._joined = execution.log.append(self._path, causes, joined)
            self._ends = (*causes, self._joined)
        self._scope.saw_end(self._joined)
        in_flight = sys.exc_info()[1]
        if in_flight is not None:
            ends = self._failures.union(ends_in(in_flight, execution.log), self._ends)
            mark(in_flight, execution.log, *sorted(ends))
