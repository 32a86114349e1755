"""A request at an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from accord.schedule.limits import Use, Window
from accord.schedule.ticket import Ticket

Stage = Literal["reading", "writing", "gone"]


class Place:
    """Held while a request is at the engine; who holds it says how it goes on."""

    def __init__(
        self,
        ticket: Ticket,
        *,
        sent_s: float,
        sent_in: int,
        uses: Sequence[tuple[Window, Use]],
        warmed: Callable[[Place], None],
    ) -> None:
        self.ticket = ticket
        self.sent_s = sent_s
        self.sent_in = sent_in
        """The round of the engine's concurrency."""
        self.stage: Stage = "reading"
        self.completion: int | None = None
        self.used: int | None = None
        self._uses = uses
        self._warmed = warmed

    def warm(self) -> None:
        """The engine has begun to answer: it has read the prompt."""
        if self.stage == "reading":
            self.stage = "writing"
            self._warmed(self)

    def settle(self, prompt: int, completion: int) -> None:
        """So much was used, by the engine's own count or the best there is."""
        self.completion, self.used = completion, prompt + completion
        for window, use in self._uses:
            window.settle(use, self.used)

    def leave(self) -> None:
        """It is over. What was reserved and not settled is given back."""
        self.stage = "gone"
        if self.used is None:
            for window, use in self._uses:
                window.give_back(use)
