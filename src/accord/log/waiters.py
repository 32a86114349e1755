"""Who waits for something to happen, in the order in which they began to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Waiters:
    """All are woken at once; each looks again whether it was for what it waits for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def wait(self) -> None:
        """Return when :meth:`wake` is called next."""
        await wait_for_any([self])

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Wake ``waiter`` next time."""
        self._waiting[waiter] = None

    def drop(self, waiter: asyncio.Future[None]) -> None:
        """It waits no more."""
        self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """Wake all who wait."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)


async def wait_for_any(several: Sequence[Waiters]) -> None:
    """Return when one of ``several`` is woken next."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for each in several:
        each.add(waiter)
    try:
        await waiter
    finally:
        for each in several:
            each.drop(waiter)
