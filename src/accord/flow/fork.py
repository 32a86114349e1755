"""Branches of a flow, and where they meet: what every way of waiting for each other stands on."""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context, copy_context
from typing import Literal, Self

from accord.flow.failure import ends_in, mark
from accord.flow.scope import enter, own_scope
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
        self._failures: set[int] = set()
        before = self._scope.take_causes()
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

    def check_complete(self, index: int) -> None:
        """Branch ``index`` ended without failure: it has done all that was recorded of it."""
        self._scope.execution.replay.check_complete(self._scopes[index])

    def join(self, policy: Literal["fail_fast", "isolate"]) -> None:
        """Record that the branches have met: one event in place of as many causes."""
        if not self._scopes:
            return
        execution = self._scope.execution
        causes = tuple(sorted({seq for scope in self._scopes for seq in scope.take_causes()}))
        replay = execution.replay
        if self._recorded is not None and replay.same_causes(self._recorded.causes, causes):
            seq = self._recorded.seq
        elif execution.log.failed:
            return
        else:
            joined = Joined(branches=len(self._scopes), policy=policy)
            seq = execution.log.append(self._path, causes, joined)
        self._scope.saw_end(seq)
        in_flight = sys.exc_info()[1]
        if in_flight is not None:
            ends = self._failures.union(ends_in(in_flight, execution.log), causes, (seq,))
            mark(in_flight, execution.log, *sorted(ends))
