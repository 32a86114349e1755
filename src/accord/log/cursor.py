"""A place in a log, and what came since: what mailboxes, live views and streams are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accord.log.events import Envelope
from accord.log.log import Log

Filter = Callable[[Envelope], bool]


class Cursor:
    """Each event that passes ``only``, once, in order.

    Iterating gives what came since, and may give nothing. An event counts as seen when the next
    is asked for: one that was cancelled in its consumer's hands comes again.
    """

    def __init__(self, log: Log, *, start: int = 0, only: Filter | None = None) -> None:
        self._log = log
        self._only = only
        self.position = start

    def __iter__(self) -> Iterator[Envelope]:
        envelopes = self._log.envelopes
        while self.position < len(envelopes):
            envelope = envelopes[self.position]
            if self._only is None or self._only(envelope):
                yield envelope
            self.position += 1

    async def ready(self) -> None:
        """Return when there is an event that was not looked at."""
        await self._log.changed(self.position)
