"""Code that runs ahead of what it depends on.

Nothing that others can see leaves it before that is certain: calls with effects, messages, waits
for people and for messages are held until then. What cannot wait, such as a write to the board,
stops the code with :class:`Premature`; it is run again once things are certain.
"""

from __future__ import annotations

import asyncio
from typing import cast

from accord.log.events import CallKind

OUTWARD: tuple[CallKind, ...] = ("handle", "send", "receive", "watch", "interrupt")
"""Calls that others can see, beside steps and tools with effects."""


class Premature(BaseException):  # no error: nothing may swallow it
    """Code that runs ahead came to what cannot wait."""


class Hold:
    """Whether what code here depends on is certain; ``outer`` is the hold around it."""

    def __init__(self, outer: Hold | None = None) -> None:
        self._outer = outer
        self._certain = asyncio.Event()

    @property
    def is_certain(self) -> bool:
        return self._certain.is_set() and (self._outer is None or self._outer.is_certain)

    def release(self) -> None:
        """It is certain, as far as this hold goes."""
        self._certain.set()

    async def wait(self) -> None:
        """Return when all is certain."""
        await self._certain.wait()
        if self._outer is not None:
            await self._outer.wait()


def is_premature(error: BaseException) -> bool:
    """``error`` is a :class:`Premature`, or a group in which one is."""
    if not isinstance(error, BaseExceptionGroup):
        return isinstance(error, Premature)
    return any(map(is_premature, cast("BaseExceptionGroup[BaseException]", error).exceptions))
