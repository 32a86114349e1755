"""A place at the engine for what nobody waits for yet: whoever asks in earnest takes it back."""

from __future__ import annotations

from collections.abc import Callable

from accord.engine.prefix import common_bytes
from accord.schedule.place import Place


class Spare:
    """The one place that something may be read ahead in, and how to preempt that."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._preempt: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        """Whether something is read ahead now."""
        return self._place is not None

    def holds(self, place: Place) -> bool:
        """Nobody has taken ``place`` back."""
        return self._place is place

    def give(self, place: Place, preempt: Callable[[], None]) -> None:
        """``place`` is given to what calls ``preempt`` ends at once."""
        self._place, self._preempt = place, preempt

    def left(self) -> None:
        """It has ended by itself."""
        self._place = self._preempt = None

    def take_back(self, prompt: bytes) -> Place | None:
        """Somebody asks with ``prompt``: the place that gives way, unless it is read for that."""
        place, preempt = self._place, self._preempt
        if place is None or preempt is None:
            return None
        ahead = place.ticket.prompt
        if common_bytes(ahead, prompt) >= len(ahead) // 2:
            return None
        self.left()
        preempt()
        return place
