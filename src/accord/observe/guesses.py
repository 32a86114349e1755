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
    CallEnded,
    CallFinished,
    CallKind,
    CallStarted,
    Envelope,
    Guessed,
    Joined,
    Value,
)
from accord.log.fold import is_within
from accord.observe.places import above, above_all

STEP, AHEAD, AGAIN, JUDGE = 0, 1, 2, 3
"""The branches of a speculation: the call itself, what follows from a guess of it, what follows
from what it really gave, and whether the guess is accepted."""


WORK: tuple[CallKind, ...] = ("request", "step", "tool", "sleep", "search")
"""Calls that work, or wait for their own time; others only hold calls."""


@dataclass(slots=True)
class Guess:
    """One guess. Times are on the run's clock, in nanoseconds."""

    site: str
    value: Value
    preview: str
    followed: bool
    record: tuple[float, ...]
    began_at: int
    """When work on it began."""
    right: bool | None = None
    """None as long as that is open."""
    was_stopped: bool = False
    """It equals what the call gave, and was of no use: what followed could not be held back."""
    tokens: int = 0
    """Those that the branch ahead has used, guessing included, once that is known."""
    worked_until: int = 0
    """Up to when there was work ahead, and not yet what the call really gave."""

    @property
    def worked_ns(self) -> int:
        """How long was worked ahead."""
        return max(0, self.worked_until - self.began_at)


class Guesses:
    """All guesses of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.by_branch: dict[str, Guess] = {}
        """Those that were followed or scored, by the branch that runs ahead, or would have."""
        self.last: dict[str, Guess] = {}
        """By site."""
        self._open: dict[str, _Ahead] = {}
        """By the place of the fork."""
        self._tokens: Counter[str] = Counter()
        """Used at or below each place, by all attempts."""
        self._wasted: Counter[str] = Counter()

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        path, event = envelope.scope, envelope.event
        if isinstance(event, Guessed):
            self._begin(envelope, event)
        elif isinstance(event, Joined) and path in self._open:
            self._settle(path, event)
        elif isinstance(event, CallFinished | CallCancelled | AttemptFailed) and event.usage:
            for place in above_all(path):
                self._tokens[place] += event.usage.prompt + event.usage.completion
        for fork, ahead in self._open.items():
            if is_within(path, f"{fork}/{AHEAD}"):
                ahead.work(envelope)
            elif is_within(path, f"{fork}/{STEP}"):
                ahead.given(envelope, is_it=path == f"{fork}/{STEP}/0")

    def _begin(self, envelope: Envelope, event: Guessed) -> None:
        guess = Guess(
            event.site,
            event.value,
            event.preview,
            event.followed,
            event.record,
            envelope.at,
            event.right,
            worked_until=envelope.at,
        )
        self.last[event.site] = guess
        self.by_branch[above(envelope.scope)] = guess
        if event.followed:
            self._open[above(above(envelope.scope))] = _Ahead(guess, envelope.at)

    def _settle(self, fork: str, joined: Joined) -> None:
        """The verdict, unless the join was cut off: it is made anew then."""
        if joined.dropped:
            ahead = self._open.pop(fork)
            guess = ahead.guess
            guess.right = AHEAD not in joined.dropped
            guess.was_stopped = ahead.is_equal and not guess.right
            guess.tokens = self._tokens[f"{fork}/{AHEAD}"]
            self._wasted[guess.site] += 0 if guess.right else guess.tokens

    def tokens(self, place: str) -> int:
        """Used at or below a place of the flow."""
        return self._tokens[place]

    def wasted(self, site: str) -> int:
        """Tokens that wrong guesses at ``site`` have used."""
        return self._wasted[site]


class _Ahead:
    """What runs ahead on an open guess: whether it is at work, or held or done."""

    def __init__(self, guess: Guess, at: int) -> None:
        self.guess = guess
        self.is_equal = False
        self._last_at = at
        self._at_work: set[int] = set()

    def work(self, envelope: Envelope) -> None:
        self._last_at = envelope.at
        if isinstance(envelope.event, CallStarted) and envelope.event.kind in WORK:
            self._at_work.add(envelope.seq)
        elif isinstance(envelope.event, CallEnded):
            self._at_work.discard(envelope.event.call)

    def given(self, envelope: Envelope, *, is_it: bool) -> None:
        """The call that was guessed gave something, if ``is_it``; or does something yet."""
        self.guess.worked_until = envelope.at if self._at_work else self._last_at
        if is_it and isinstance(envelope.event, CallFinished):
            self.is_equal = envelope.event.output == self.guess.value
