"""``gather``: branches at once, and one join.

Choose it when the parts do not need each other. It costs one event, and the time of the
slowest branch. Every branch ends before ``gather`` does: there are no orphans.

Policies, when a branch fails:

``fail_fast``   the others are cancelled, and the first failure is raised
``isolate``     the others go on; the result holds the exception in the failed one's place
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import Context
from typing import Any, Literal, TypeVar, cast, overload

from accord.errors import UsageError
from accord.flow.fork import Fork

T = TypeVar("T")
Policy = Literal["fail_fast", "isolate"]


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
    *branches: Awaitable[Any], policy: Policy = "fail_fast", limit: int | None = None
) -> list[Any]: ...


async def gather(
    *branches: Any, policy: Policy = "fail_fast", limit: int | None = None
) -> list[Any]:
    """Run ``branches`` at once and return their results in the order given.

    Takes one iterable of awaitables, or several awaitables. At most ``limit`` run at a time.
    """
    work = _listed(branches)
    try:
        _check(policy, limit)
        with Fork("gather", len(work)) as fork:
            return await _Branches(fork, work, policy, limit).run()
    finally:
        _close_unstarted(work)


class _Group(asyncio.TaskGroup):
    """Cancels its tasks in the order in which they were started.

    asyncio's own keeps them in a set, whose order is another each time: so would the log's be.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> None:
        self._started.append(self.create_task(work, context=context))

    def _abort(self) -> None:
        self._aborting = True
        for task in self._started:
            if not task.done():
                task.cancel()


class _Branches:
    def __init__(
        self, fork: Fork, work: list[Awaitable[Any]], policy: Policy, limit: int | None
    ) -> None:
        self._fork = fork
        self._work = work
        self._policy: Policy = policy
        self._places = asyncio.Semaphore(limit) if limit is not None else None
        self._results: list[Any] = [None] * len(work)
        self._first_failure: Exception | None = None

    async def run(self) -> list[Any]:
        try:
            await self._all()
            if self._first_failure is not None:
                raise self._first_failure
        finally:
            self._fork.join(self._policy)
        return self._results

    async def _all(self) -> None:
        try:
            async with _Group() as group:
                for index in range(len(self._work)):
                    group.start(self._branch(index), self._fork.context(index))
        except BaseExceptionGroup:
            # The first failure is raised in its place, outside of here: with its own causes.
            # Branches note only Exceptions, so a group without one is not ours to unwrap.
            if self._first_failure is None:
                raise

    async def _branch(self, index: int) -> None:
        self._fork.begin(index)
        try:
            if self._places is None:
                self._results[index] = await self._work[index]
            else:
                async with self._places:
                    self._results[index] = await self._work[index]
            self._fork.check_complete(index)
        except BaseException as error:
            self._fork.failed(error)
            if not isinstance(error, Exception):
                raise
            if self._policy == "isolate":
                self._results[index] = error
                return
            if self._first_failure is None:
                self._first_failure = error
            raise


def _listed(branches: tuple[Any, ...]) -> list[Awaitable[Any]]:
    if len(branches) == 1 and not isinstance(branches[0], Awaitable):
        return list(cast("Iterable[Awaitable[Any]]", branches[0]))
    return list(branches)


def _check(policy: str, limit: int | None) -> None:
    if policy not in ("fail_fast", "isolate"):
        msg = f"gather knows the policies 'fail_fast' and 'isolate', not {policy!r}"
        raise UsageError(msg)
    if limit is not None and limit < 1:
        msg = f"gather needs a limit of at least 1, not {limit}"
        raise UsageError(msg)


def _close_unstarted(work: list[Awaitable[Any]]) -> None:
    """A branch that never got its turn is not to be complained of as never awaited."""
    for branch in work:
        if isinstance(branch, Coroutine):
            branch.close()
