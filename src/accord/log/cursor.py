"""A place in a log, and what came since: mailboxes, live views and diffs are this with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accord.log.events import Envelope
from accord.log.log import Log

Filter = Callable[[Envelope], bool]


class Cursor:
    """A place in a log: each event that passes ``only`` is seen once, in order."""

    def __init__(self, log: Log, *, start: int = 0, only: Filter | None = None) -> None:
        self._log = log
        self._only = only
        self.position = start

    def read(self) -> Sequence[Envelope]:
        """What came since the last look; may be empty."""
        fresh = self._log.envelopes[self.position :]
        self.position += len(fresh)
        return fresh if self._only is None else [e for e in fresh if self._only(e)]

    async def ready(self) -> None:
        """Return when there is an event that was not looked at."""
        await self._log.changed(self.position)

    async def next(self) -> Sequence[Envelope]:
        """As :meth:`read`, waiting until there is something."""
        while True:
            await self.ready()
            fresh = self.read()
            if fresh:
                return fresh
