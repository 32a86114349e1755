"""``gather``: branches at once, and one join.

Choose it when the parts do not need each other. It costs one event, and the time of the
slowest branch that it waits for. Every branch has ended before ``gather`` returns: there are no
orphans. What it waits for, by ``until``:

``"all"``       every branch
``"any"``       the first that succeeds
``k``           the first ``k`` that succeed

With ``deadline_s``, it waits no longer than that. The branches that it does not wait for are
dropped: cancelled, and accounted for as such; which ones is recorded, so a replay drops the same.
(To give slow branches a second attempt instead, see :class:`accord.sync.hedge.Hedge`.)

Policies, when a branch fails:

``fail_fast``   the others are cancelled, and the first failure is raised
``isolate``     the others go on; the result holds the exception in the failed one's place
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from contextvars import Context
from typing import Any, Literal, TypeVar, cast, overload

from accord.errors import JoinError, UsageError
from accord.flow.fork import Fork
from accord.flow.suspend import Suspended

T = TypeVar("T")
Policy = Literal["fail_fast", "isolate"]
Until = Literal["all", "any"] | int


@overload
async def gather(
    branches: Iterable[Awaitable[T]],
    /,
    *,
    policy: Literal["fail_fast"] = "fail_fast",
    limit: int | None = None,
    until: Until = "all",
    deadline_s: float | None = None,
) -> list[T]: ...
@overload
async def gather(
    branches: Iterable[Awaitable[T]],
    /,
    *,
    policy: Literal["isolate"],
    limit: int | None = None,
    until: Until = "all",
    deadline_s: float | None = None,
) -> list[T | Exception]: ...
@overload
async def gather(
    *branches: Awaitable[Any],
    policy: Policy = "fail_fast",
    limit: int | None = None,
    until: Until = "all",
    deadline_s: float | None = None,
) -> list[Any]: ...


async def gather(
    *branches: Any,
    policy: Policy = "fail_fast",
    limit: int | None = None,
    until: Until = "all",
    deadline_s: float | None = None,
) -> list[Any]:
    """Run ``branches`` at once and return the results of those it waited for, in the order given.

    Takes one iterable of awaitables, or several awaitables. At most ``limit`` run at a time.
    Raises :class:`accord.errors.JoinError` if fewer than ``until`` can succeed any more.
    """
    work = _listed(branches)
    try:
        _check(policy, limit, deadline_s)
        wanted = _wanted(until, len(work))
        with Fork("gather", len(work)) as fork:
            at_once = _Branches(
                fork, work, policy=policy, limit=limit, wanted=wanted, deadline_s=deadline_s
            )
            return await at_once.run()
    finally:
        _close_unstarted(work)


class Group(asyncio.TaskGroup):
    """Cancels its tasks in the order in which they were started.

    asyncio's own keeps them in a set, whose order is another each time: so would the log's be.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started: list[asyncio.Task[None]] = []
        self._dropped: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
        """Run ``work`` beside the others."""
        task = self.create_task(work, context=context)
        self._started.append(task)
        return task

    def drop(self) -> None:
        """Cancel those that are still at work, once, but for the one that runs this.

        In the turn of what made it necessary: a second failure in that turn would be recorded, too,
        and a replay might take it for the first.
        """
        running = asyncio.current_task()
        for task in self._started:
            if not (task.done() or task is running or task in self._dropped):
                self._dropped.add(task)
                task.cancel()

    def _abort(self) -> None:
        self._aborting = True
        self.drop()


class _Branches:
    def __init__(
        self,
        fork: Fork,
        work: list[Awaitable[Any]],
        *,
        policy: Policy,
        limit: int | None,
        wanted: int | None,
        deadline_s: float | None,
    ) -> None:
        self._fork = fork
        self._work = work
        self._policy: Policy = policy
        self._places = asyncio.Semaphore(limit) if limit is not None else None
        self._wanted = wanted
        self._deadline_s = deadline_s
        self._group = Group()
        self._results: dict[int, Any] = {}
        self._succeeded = 0
        self._released = False
        self._first_failure: Exception | None = None
        self._alone: JoinError | None = None
        self._suspended: list[Suspended] = []

    async def run(self) -> list[Any]:
        try:
            await self._all()
            if self._first_failure is not None:
                raise self._first_failure
            if self._alone is not None:
                raise self._alone
            if self._suspended and not self._released:
                raise self._fork.suspended(self._suspended)
        finally:
            if not self._suspended or self._released:
                self._fork.join(self._policy)
        return [self._results[index] for index in sorted(self._results)]

    async def _all(self) -> None:
        timer = None
        try:
            async with self._group as group:
                for index in range(len(self._work)):
                    if not self._fork.was_dropped(index):
                        group.start(self._branch(index), self._fork.context(index))
                if self._deadline_s is not None and not self._decided:
                    left_s = self._deadline_s - self._fork.elapsed_s()
                    timer = asyncio.get_running_loop().call_later(left_s, self._release)
        except BaseExceptionGroup:
            # The first failure is raised in its place, outside of here: with its own causes.
            # Branches note only Exceptions, so a group without one is not ours to unwrap.
            if self._first_failure is None:
                raise
        finally:
            if timer is not None:
                timer.cancel()

    async def _branch(self, index: int) -> None:
        self._fork.begin(index)
        try:
            if self._places is None:
                result = await self._work[index]
            else:
                async with self._places:
                    result = await self._work[index]
            self._fork.check_complete(index)
        except BaseException as error:
            if self._released and isinstance(error, Exception):
                return  # nobody waits for it any more; what failed is in the log
            self._fork.failed(error)
            if isinstance(error, Suspended):
                self._suspended.append(error)  # the others go on
                return
            if not isinstance(error, Exception):
                raise
            if self._policy == "isolate":
                self._came(index, error)
                return
            if self._first_failure is None:
                self._first_failure = error
                self._group.drop()
            raise
        else:
            self._came(index, result)

    def _came(self, index: int, result: Any) -> None:
        if self._released:
            return
        self._results[index] = result
        if self._wanted is None:
            return
        if not isinstance(result, Exception):
            self._succeeded += 1
        if self._succeeded == self._wanted:
            self._release()
        elif len(self._results) == len(self._work):
            # In the order given: which of them failed first may be another on a replay.
            came = (self._results[each] for each in sorted(self._results))
            failures = [each for each in came if isinstance(each, Exception)]
            self._alone = JoinError(
                f"a join waits for {self._wanted} of {len(self._work)} branches, and "
                f"{len(failures)} failed, the first with {type(failures[0]).__name__}: "
                f"{failures[0]}; wait for fewer, or give the failing ones a retry"
            )
            self._alone.__cause__ = failures[0]

    @property
    def _decided(self) -> bool:
        """What the join waits for is on record: all of it comes again."""
        return self._fork.has_met or self._fork.is_over

    def _release(self) -> None:
        """Go on with those that have come. Recorded before the others are told."""
        late = [index for index in range(len(self._work)) if index not in self._results]
        if late and not self._decided:
            self._released = True
            self._fork.join(self._policy, dropped=late)
            self._group.drop()


def _listed(branches: tuple[Any, ...]) -> list[Awaitable[Any]]:
    if len(branches) == 1 and not isinstance(branches[0], Awaitable):
        return list(cast("Iterable[Awaitable[Any]]", branches[0]))
    return list(branches)


def _check(policy: str, limit: int | None, deadline_s: float | None) -> None:
    if policy not in ("fail_fast", "isolate"):
        msg = f"gather knows the policies 'fail_fast' and 'isolate', not {policy!r}"
        raise UsageError(msg)
    if limit is not None and limit < 1:
        msg = f"gather needs a limit of at least 1, not {limit}"
        raise UsageError(msg)
    if deadline_s is not None and not deadline_s > 0:
        msg = f"a deadline_s is a time above 0, in seconds from now, not {deadline_s!r}"
        raise UsageError(msg)


def _wanted(until: Until, branches: int) -> int | None:
    """How many are to succeed; None for all of them, which is no race."""
    if until == "all":
        return None
    wanted: Any = 1 if until == "any" else until
    if not isinstance(wanted, int) or not 1 <= wanted <= branches:
        msg = f"gather waits until 'all', 'any' or 1 to {branches} (its branches), not {until!r}"
        raise UsageError(msg)
    return wanted


def _close_unstarted(work: list[Awaitable[Any]]) -> None:
    """A branch that never got its turn is not to be complained of as never awaited."""
    for branch in work:
        if isinstance(branch, Coroutine):
            branch.close()
