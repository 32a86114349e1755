"""Code that runs ahead of what it depends on.

Nothing that others can see leaves it before that is certain: calls with effects, messages, waits
for people and for messages are held until then. What cannot wait, such as a write to the board,
stops the code with :class:`Premature`; it is run again once things are certain. So is code that
gave up waiting, in the hold or behind others: by itself, it might not have.
"""

from __future__ import annotations

import asyncio

from accord.log.events import CallKind
from accord.log.fold import is_within

OUTWARD: tuple[CallKind, ...] = ("handle", "send", "receive", "watch", "interrupt")
"""Calls that others can see, beside steps and tools with effects."""


class Premature(BaseException):  # no error: nothing may swallow it
    """Code that runs ahead came to what cannot wait."""


class Hold:
    """Whether what code here depends on is certain: the call at ``call``.

    ``outer`` is the hold around it.
    """

    def __init__(self, call: str, outer: Hold | None = None) -> None:
        self._call = call
        self.is_stopped = False
        """The code came to what cannot wait, or gave up waiting: it has to be run again."""
        self.is_dropped = False
        """It was all for nothing: whoever is still at it ends."""
        self._outer = outer
        self._settled = asyncio.Event()
        self._causes: tuple[int, ...] = ()

    @property
    def is_certain(self) -> bool:
        own = self._settled.is_set() and not self.is_dropped
        return own and (self._outer is None or self._outer.is_certain)

    @property
    def causes(self) -> tuple[int, ...]:
        """The events that made it certain: whatever is seen of the code follows from them."""
        return self._causes if self._outer is None else (*self._outer.causes, *self._causes)

    def release(self, causes: tuple[int, ...]) -> None:
        """It is certain, as far as this hold goes, because of the events ``causes``."""
        self._causes = causes
        self._settled.set()

    def drop(self) -> None:
        """It was all for nothing."""
        self.is_dropped = True
        self._settled.set()

    def stop(self) -> Premature:
        """The code came to what cannot wait; gives what to raise."""
        if self._outer is not None:
            self._outer.stop()
        self.is_stopped = self.is_stopped or not self._settled.is_set()
        return Premature()

    def depends_on(self, path: str) -> bool:
        """What is done at ``path`` is part of what the code here runs ahead of."""
        if is_within(path, self._call):
            return True
        return self._outer is not None and self._outer.depends_on(path)

    def hurried(self) -> None:
        """The code gave up on something that may have had to wait for others, as it runs ahead."""
        if not self.is_certain:
            self.stop()

    def check(self) -> None:
        """Raises ``CancelledError`` where it was all for nothing."""
        if self._outer is not None:
            self._outer.check()
        if self.is_dropped:
            raise asyncio.CancelledError

    async def wait(self) -> None:
        """Return when all is certain."""
        try:
            await self._settled.wait()
            if self._outer is not None:
                await self._outer.wait()
        except asyncio.CancelledError:
            self.stop()
            raise
        self.check()
