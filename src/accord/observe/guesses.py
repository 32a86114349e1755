"""What was guessed, and what came of it: read off the log.

A guess is a note in the branch that runs ahead on it. Where that branch meets the call that was
guessed, the join says whether it was right: a wrong one is dropped.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallFinished,
    Envelope,
    Guessed,
    Joined,
    Value,
)
from accord.log.fold import is_within
from accord.observe.places import above, above_all

STEP, AHEAD, AGAIN = 0, 1, 2
"""The branches of a speculation: the call itself, what follows from a guess of it, and what
follows from what it really gave."""


@dataclass(slots=True)
class Guess:
    """One guess. Times are on the run's clock, in nanoseconds."""

    site: str
    value: Value
    began_at: int
    """When work on it began."""
    right: bool | None = None
    """None as long as that is open."""
    tokens: int = 0
    """Those that the branch ahead has used, guessing included, once that is known."""
    given_at: int = 0
    """When the call gave something last."""
    worked_at: int = 0
    """When the branch ahead did something last."""

    @property
    def worked_ns(self) -> int:
        """How long was worked ahead: until the call had ended, or until there was no more to do."""
        return max(0, min(self.given_at or self.worked_at, self.worked_at) - self.began_at)


class Guesses:
    """All guesses of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.by_branch: dict[str, Guess] = {}
        """By the branch that runs ahead."""
        self._open: dict[str, Guess] = {}
        """By the place of the fork."""
        self._tokens: Counter[str] = Counter()
        """Used at or below each place, by all attempts."""
        self._wasted: Counter[str] = Counter()

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        path, event = envelope.scope, envelope.event
        if isinstance(event, Guessed):
            guess = Guess(event.site, event.value, envelope.at, worked_at=envelope.at)
            self.by_branch[above(path)] = self._open[above(above(path))] = guess
        elif isinstance(event, Joined) and path in self._open:
            self._settle(path, event)
        elif isinstance(event, CallFinished | CallCancelled | AttemptFailed) and event.usage:
            for place in above_all(path):
                self._tokens[place] += event.usage.prompt + event.usage.completion
        for fork, guess in self._open.items():
            if is_within(path, f"{fork}/{AHEAD}"):
                guess.worked_at = envelope.at
            elif is_within(path, f"{fork}/{STEP}"):
                guess.given_at = envelope.at

    def _settle(self, fork: str, joined: Joined) -> None:
        """The verdict, unless the join was cut off: it is made anew then."""
        if joined.dropped:
            guess = self._open.pop(fork)
            guess.right = AHEAD not in joined.dropped
            guess.tokens = self._tokens[f"{fork}/{AHEAD}"]
            self._wasted[guess.site] += 0 if guess.right else guess.tokens

    def tokens(self, place: str) -> int:
        """Used at or below a place of the flow."""
        return self._tokens[place]

    def wasted(self, site: str) -> int:
        """Tokens that wrong guesses at ``site`` have used."""
        return self._wasted[site]
