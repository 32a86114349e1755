"""Time is handed in.

A :class:`Clock` gives a run its time in integer nanoseconds, so that the parts of a report add
up exactly. :class:`WallClock` reads the machine's clock. :class:`VirtualLoop` is an asyncio
loop whose time jumps: when every task waits, it moves straight to the next timer, so a run
of minutes replays in milliseconds and the same program gives the same log. A thread at work
(``run_in_executor``, ``asyncio.to_thread``, a step in a thread) holds the jump until it is
done; real sockets do not, so a virtual loop belongs with scripted or simulated engines.

This module is the one place that reads the machine's clock or sleeps.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

from accord.errors import DeadlockError, UsageError

T = TypeVar("T")

NANOSECONDS = 1_000_000_000


class Clock(Protocol):
    """Where a run reads its time."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes backwards."""
        ...

    def epoch_s(self) -> float:
        """Seconds since 1970, for people and for leases between processes."""
        ...


class WallClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        return time.monotonic_ns()

    def epoch_s(self) -> float:
        """Seconds since 1970."""
        return time.time()


class VirtualClock:
    """The time of the running :class:`VirtualLoop`; 1970 begins when the loop does."""

    def now_ns(self) -> int:
        """Virtual nanoseconds since the loop began."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            msg = "a VirtualClock needs a loop whose time is virtual: accord.clock.run_virtual(...)"
            raise UsageError(msg)
        return loop.virtual_ns

    def epoch_s(self) -> float:
        """Virtual seconds since the loop began."""
        return self.now_ns() / NANOSECONDS


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time.

    Raises :class:`accord.errors.DeadlockError` out of the waiting program when every task
    waits, no timer is set and no thread is at work.
    """

    def __init__(self) -> None:
        self.virtual_ns = 0
        self.threads_in_flight = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop began."""
        return self.virtual_ns / NANOSECONDS

    def thread_started(self) -> None:
        """Hold the jump: a thread will wake this loop with ``call_soon_threadsafe``."""
        self.threads_in_flight += 1

    def thread_finished(self) -> None:
        """Let time jump again. Call it on the loop, in the same callback that wakes the task."""
        self.threads_in_flight -= 1

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run ``func`` in a thread; time stands still for as long."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self.thread_started()
        future.add_done_callback(lambda _: self.thread_finished())
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """Join the executor's threads, from a thread that asyncio does not tell us of."""
        self.thread_started()
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.thread_finished()


class _JumpingSelector(selectors.DefaultSelector):
    """Where asyncio would sleep, jump. asyncio calls ``select`` with the time to its next timer."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.threads_in_flight:
            return super().select(None)
        if timeout is None:
            msg = (
                "every task waits, no timer is set and no thread is at work; "
                "look for a reply that nobody sends or a join whose branch never starts"
            )
            raise DeadlockError(msg)
        # To the nearest: rounding up would add a nanosecond to every other sleep. asyncio counts
        # a timer as due up to 1 ns early; never 0, or a late timer would come here for ever.
        self._loop.virtual_ns += max(1, round(timeout * NANOSECONDS))
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a new :class:`VirtualLoop`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end: in this thread, or in another if a loop runs here already."""
    if not _loop_runs_here():
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "accord-run") as pool:
        return pool.submit(copy_context().run, asyncio.run, work).result()


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
