"""The threads of one store: which are folded in memory, and how to wait for those being written."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import TypeVar

from accord.clock import Clock
from accord.errors import RunLockedError
from accord.langgraph.history import FLOW
from accord.langgraph.thread import ThreadLog, run_of, thread_of
from accord.log.store.base import Store

T = TypeVar("T")

THREADS_KEPT = 64
"""Threads whose logs stay folded in memory; others are read again when they are asked for."""
RUNS_PAGE = 1000
FIRST_WAIT_S, LONGEST_WAIT_S = 0.001, 0.05


class Threads:
    """Finds threads. An operation on one waits up to ``wait_s`` for another process's lease."""

    def __init__(self, store: Store, clock: Clock, *, wait_s: float) -> None:
        self._store = store
        self._clock = clock
        self._wait_s = wait_s
        self._kept: OrderedDict[str, ThreadLog] = OrderedDict()
        self._lock = Lock()

    def find(self, thread_id: str) -> ThreadLog:
        """The thread of this name, whether there is one or not."""
        with self._lock:
            thread = self._kept.get(thread_id)
            if thread is None:
                thread = ThreadLog(self._store, run_of(thread_id), self._clock)
                self._kept[thread_id] = thread
            self._kept.move_to_end(thread_id)
            if len(self._kept) > THREADS_KEPT:
                self._forget_one()
            return thread

    def ids(self) -> Iterator[str]:
        """The names of all threads in the store, newest first."""
        last: str | None = None
        while runs := self._store.runs(before=last, limit=RUNS_PAGE):
            yield from (thread_of(info.run) for info in runs if info.flow == FLOW)
            last = runs[-1].run

    def patiently(self, act: Callable[[], T]) -> T:
        """Do ``act``, again while another process writes; then ``RunLockedError``."""
        for wait_s in self._waits():
            try:
                return act()
            except RunLockedError:
                Event().wait(wait_s)
        return act()

    async def apatiently(self, act: Callable[[], T]) -> T:
        """As :meth:`patiently`. Nothing is done in another task or thread."""
        for wait_s in self._waits():
            try:
                return act()
            except RunLockedError:
                await asyncio.sleep(wait_s)
        return act()

    def _forget_one(self) -> None:
        """The one used longest ago; what has been kept in hand stays."""
        for thread_id, thread in self._kept.items():
            if not thread.held:
                del self._kept[thread_id]
                return

    def _waits(self) -> Iterator[float]:
        left_s, wait_s = self._wait_s, FIRST_WAIT_S
        while left_s > 0:
            yield wait_s
            left_s -= wait_s
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
