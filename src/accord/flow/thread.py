"""Sync functions of a flow: each call in a daemon thread of its own, with the caller's context.

Not asyncio's executor: its threads are joined when the loop closes, so one stuck function would
keep the process from ending. A thread cannot be stopped from outside: one that outlives its
call is left behind, counted, and its result dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

from accord.clock import VirtualLoop
from accord.flow.scope import CallScope

T = TypeVar("T")


async def in_thread(scope: CallScope, work: Callable[[], T]) -> T:
    """Run ``work`` in a thread and wait for it. ``scope`` is told while the thread runs."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def arrive(give: Callable[[], None]) -> None:
        if isinstance(loop, VirtualLoop):
            loop.thread_finished()
        scope.thread_running = False
        if not outcome.cancelled():
            give()

    def body() -> None:
        try:
            result = context.run(work)
        except StopIteration as error:  # a future cannot carry it, nor a coroutine raise it
            stopped = RuntimeError(f"a step raised StopIteration({error.value!r})")
            give = _setter(outcome.set_exception, stopped)
        except BaseException as error:  # noqa: BLE001  # carried over to the waiting task
            give = _setter(outcome.set_exception, error)
        else:
            give = _setter(outcome.set_result, result)
        with suppress(RuntimeError):  # the loop has closed: the run ended without this thread
            loop.call_soon_threadsafe(arrive, give)

    context = copy_context()
    if isinstance(loop, VirtualLoop):
        loop.thread_started()
    scope.thread_running = True
    Thread(target=body, daemon=True, name="accord-step").start()
    return await outcome


V = TypeVar("V")


def _setter(setter: Callable[[V], None], value: V) -> Callable[[], None]:
    return lambda: setter(value)
