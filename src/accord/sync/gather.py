"""``gather``: branches at once, and one join.

Choose it when the parts do not need each other. It costs one event, and the time of the
slowest branch. Every branch ends before ``gather`` does: there are no orphans.

Policies, when a branch fails:

``fail_fast``   the others are cancelled, and the first failure is raised
``isolate``     the others go on; the result holds the exception in the failed one's place
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextvars import copy_context
from typing import Any, Literal, TypeVar, cast, overload

from accord.errors import UsageError
from accord.flow.call import check_all_made
from accord.flow.scope import Scope, current_scope, enter
from accord.log.events import Joined

T = TypeVar("T")


@overload
async def gather(
    branches: Iterable[Awaitable[T]],
    /,
    *,
    policy: Literal["fail_fast"] = "fail_fast",
    limit: int | None = None,
) -> list[T]: ...
@overload
async def gather(
    branches: Iterable[Awaitable[T]],
    /,
    *,
    policy: Literal["isolate"],
    limit: int | None = None,
) -> list[T | Exception]: ...
@overload
async def gather(
    *branches: Awaitable[Any],
    policy: Literal["fail_fast", "isolate"] = "fail_fast",
    limit: int | None = None,
) -> list[Any]: ...


async def gather(
    *branches: Any,
    policy: Literal["fail_fast", "isolate"] = "fail_fast",
    limit: int | None = None,
) -> list[Any]:
    """Run ``branches`` at once and return their results in the order given.

    Takes one iterable of awaitables, or several awaitables. At most ``limit`` run at a time.
    """
    if policy not in ("fail_fast", "isolate"):
        msg = f"gather knows the policies 'fail_fast' and 'isolate', not {policy!r}"
        raise UsageError(msg)
    if limit is not None and limit < 1:
        msg = f"gather needs a limit of at least 1, not {limit}"
        raise UsageError(msg)
    work = _listed(branches)
    scope = current_scope("gather")
    path = scope.next_path()
    fork = scope.causes()
    join = _Join(scope, path, fork, policy, asyncio.Semaphore(limit) if limit else None)
    try:
        await join.run(work)
    finally:
        join.record()
    return join.results


def _listed(branches: tuple[Any, ...]) -> list[Awaitable[Any]]:
    if len(branches) == 1 and not isinstance(branches[0], Awaitable):
        return list(cast("Iterable[Awaitable[Any]]", branches[0]))
    return list(branches)


class _Join:
    def __init__(
        self,
        scope: Scope,
        path: str,
        fork: tuple[int, ...],
        policy: Literal["fail_fast", "isolate"],
        places: asyncio.Semaphore | None,
    ) -> None:
        self.results: list[Any] = []
        self._scope = scope
        self._path = path
        self._fork = fork
        self._policy: Literal["fail_fast", "isolate"] = policy
        self._places = places
        self._branches: list[Scope] = []
        self._first_failure: Exception | None = None

    async def run(self, work: list[Awaitable[Any]]) -> None:
        self.results = [None] * len(work)
        log = self._scope.execution.log
        log.branches += len(work)
        try:
            async with asyncio.TaskGroup() as group:
                for index, branch in enumerate(work):
                    path = f"{self._path}/{index}"
                    scope = Scope(path, self._fork, self._scope.execution, None)
                    self._branches.append(scope)
                    context = copy_context()
                    context.run(enter, scope)
                    group.create_task(self._branch(index, branch, scope), context=context)
        except BaseExceptionGroup:
            # Branches record only Exceptions, so a group without one is not ours to unwrap.
            if self._first_failure is None:
                raise
            raise self._first_failure from None
        finally:
            log.branches -= len(work)

    async def _branch(self, index: int, branch: Awaitable[Any], scope: Scope) -> None:
        scope.task = asyncio.current_task()
        try:
            if self._places is None:
                self.results[index] = await branch
            else:
                async with self._places:
                    self.results[index] = await branch
            check_all_made(scope)
        except Exception as error:
            if self._policy == "isolate":
                self.results[index] = error
                return
            if self._first_failure is None:
                self._first_failure = error
            raise

    def record(self) -> None:
        """One event in place of as many causes for whatever comes next."""
        ends = {seq for branch in self._branches for seq in branch.causes()}
        causes = tuple(sorted(ends)) or self._fork
        log = self._scope.execution.log
        recorded = self._scope.execution.recorded.joined.get(self._path)
        if recorded is not None and recorded.causes == causes:
            self._scope.saw_end(recorded.seq)
            return
        joined = Joined(branches=len(self._branches), policy=self._policy)
        self._scope.saw_end(log.append(self._path, causes, joined))
