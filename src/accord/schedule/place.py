"""A request at an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from accord.schedule.limits import Reservation
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
        reserved: Reservation,
        warmed: Callable[[Place], None],
    ) -> None:
        self.ticket = ticket
        self.sent_s = sent_s
        self.sent_in = sent_in
        """The round of the engine's concurrency."""
        self.stage: Stage = "reading"
        self.leads_until_s = sent_s
        """Others may follow it up to then, and no longer."""
        self.reads = 0
        """Tokens of its prompt that the engine does not have."""
        self.completion: int | None = None
        self.used: int | None = None
        self._reserved = reserved
        self._warmed = warmed

    def warm(self) -> None:
        """The engine has begun to answer: it has read the prompt."""
        if self.stage == "reading":
            self.stage = "writing"
            self._warmed(self)

    def settle(self, prompt: int, completion: int) -> None:
        """So much was used, by the engine's own count or the best there is."""
        self.completion, self.used = completion, prompt + completion
        self._reserved.settle(self.used)

    def leave(self, *, sent: bool) -> None:
        """It is over. What was sent counts as a request, also if no tokens of it are known."""
        self.stage = "gone"
        if not sent:
            self._reserved.give_back()
        elif self.used is None:
            self._reserved.settle(0)
