"""What was guessed, and what came of it: read off the log.

A guess is a note in the branch that runs ahead on it. Where that branch meets the call that was
guessed, the join says whether it was right: a wrong one is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallFinished,
    Envelope,
    Guessed,
    Joined,
)
from accord.log.fold import is_within
from accord.observe.places import above

STEP, AHEAD, AGAIN = 0, 1, 2
"""The branches of a speculation: the call itself, what follows from a guess of it, and what
follows from what it really gave."""


@dataclass(slots=True)
class Guess:
    """One guess. ``right`` is None as long as that is open; times are the run's, in nanoseconds.

    ``tokens`` are those that the branch ahead has used, ``saved_ns`` is how long it had been at
    work, of use, when the call ended.
    """

    site: str
    path: str
    at: int
    right: bool | None = None
    tokens: int = 0
    saved_ns: int = 0
    step_ns: int = 0
    """When the call ended, as far as it has."""
    ahead_ns: int = 0
    """When the branch ahead did something last."""


class Guesses:
    """All guesses of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.all: list[Guess] = []
        self._open: dict[str, Guess] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        path, event = envelope.scope, envelope.event
        if isinstance(event, Guessed):
            fork = above(above(path))
            guess = Guess(event.site, fork, envelope.at, ahead_ns=envelope.at)
            self.all.append(guess)
            self._open[fork] = guess
            return
        if isinstance(event, Joined) and (guess := self._open.pop(path, None)) is not None:
            guess.right = AGAIN in event.dropped  # where the call failed, none is dropped
            if guess.right:
                guess.saved_ns = max(0, min(guess.step_ns, guess.ahead_ns) - guess.at)
            return
        for guess in self._open.values():
            if is_within(path, f"{guess.path}/{AHEAD}"):
                guess.ahead_ns = envelope.at
                guess.tokens += _tokens(event)
            elif is_within(path, f"{guess.path}/{STEP}"):
                guess.step_ns = envelope.at

    def wasted(self, site: str) -> int:
        """Tokens that wrong guesses at ``site`` have used."""
        return sum(each.tokens for each in self.all if each.site == site and each.right is False)


def _tokens(event: object) -> int:
    if not isinstance(event, CallFinished | CallCancelled | AttemptFailed) or event.usage is None:
        return 0
    return event.usage.prompt + event.usage.completion
