"""The calls of a run, folded from its events.

The one index that everything else shares: replay looks calls up in it, the tree prints it, the
tax report adds it up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from accord.errors import LogCorruptError
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallStarted,
    CheckpointSaved,
    Envelope,
    Joined,
    Note,
    PrefetchEnded,
    PrefetchStarted,
    RunEnded,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    WritesSaved,
)


@dataclass(slots=True)
class Call:
    """All that the log says of one call, so far."""

    start: Envelope
    started: CallStarted
    end: Envelope | None = None
    ended: CallEnded | None = None
    all_ends: list[Envelope] = field(default_factory=list[Envelope])
    """Also those that a later process did not let stand: what they cost was paid for."""
    attempts: list[AttemptFailed] = field(default_factory=list[AttemptFailed])
    led_on: bool = False
    """Something began, or succeeded, because of its end: the flow went on past it."""
    cleaned_up: bool = False
    """Something began because of its end while its failure was in flight."""

    @property
    def scope(self) -> str:
        """Its place in the flow."""
        return self.start.scope

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.start.seq if self.end is None else self.end.seq

    @property
    def duration_ns(self) -> int | None:
        """None while it runs."""
        return None if self.end is None else self.end.at - self.start.at


@dataclass(slots=True)
class Calls:
    """The calls of a run, by their place in the flow and in the order in which they started."""

    by_scope: dict[str, Call] = field(default_factory=dict[str, Call])
    """The last call at each place."""
    propagated: set[int] = field(default_factory=set[int])
    """The ends of calls whose failure or cancellation went on to end what was around them."""
    by_start: dict[int, Call] = field(default_factory=dict[int, Call])
    """Every call, also those that a changed one has taken the place of."""
    joined: dict[str, Envelope] = field(default_factory=dict[str, Envelope])
    notes: dict[str, Envelope] = field(default_factory=dict[str, Envelope])
    """What was written and looked at, by its place."""
    run: RunStarted | None = None
    ended: RunEnded | None = None
    foreign: bool = False
    """It is a thread of another framework (LangGraph), which alone goes on with it."""
    _cleaned_up: bool = False
    _by_end: dict[int, Call] = field(default_factory=dict[int, Call])
    _joins: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Joins that nothing has followed yet, with the ends of their branches."""

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        match event:
            case RunStarted():
                self.run = event
            case RunResumed():
                self.ended = None
            case RunFinished() | RunFailed() | RunInterrupted():
                self.ended = event
            case CallStarted():
                self._begin(envelope, event)
            case CallFinished() | CallFailed() | CallCancelled():
                call = self._started(event.call, envelope)
                call.end, call.ended = envelope, event
                call.all_ends.append(envelope)
                self._by_end[envelope.seq] = call
            case AttemptFailed():
                self._started(event.call, envelope).attempts.append(event)
            case Joined():
                self.joined[envelope.scope] = envelope
                self._joins[envelope.seq] = envelope.causes
            case Note():
                self.notes[envelope.scope] = envelope
            case CheckpointSaved() | WritesSaved():
                self.foreign = True
            case PrefetchStarted() | PrefetchEnded():
                pass  # at no place
        self._lead_on(envelope)

    def _lead_on(self, envelope: Envelope) -> None:
        event = envelope.event
        match event:
            case CallStarted() | Note():
                self._went_on_past(envelope.causes, frozenset(event.handling))
            case CallFinished() | RunFinished():
                self._went_on_past(envelope.causes, frozenset())
            case RunFailed() | RunInterrupted() | CallFailed() | CallCancelled():
                self.propagated.update(event.because)
            case _:
                pass

    def _begin(self, envelope: Envelope, started: CallStarted) -> None:
        scope = envelope.scope
        if scope in self.by_scope or scope in self.joined:
            # Another takes the place: what the one before did below it no longer counts.
            for places in (self.by_scope, self.joined, self.notes):
                for path in [path for path in places if is_within(path, scope)]:
                    del places[path]
        if self._cleaned_up:
            self._end_cleaning_up(scope, started)
        self._cleaned_up = self._cleaned_up or bool(started.handling)
        self.by_scope[scope] = self.by_start[envelope.seq] = Call(envelope, started)

    def _end_cleaning_up(self, scope: str, started: CallStarted) -> None:
        """Where a failure was cleaned up after stands a join now, if a call begins below it."""
        above = scope.rpartition("/")[0]
        while above:
            call = self.by_scope.get(above)
            if call is not None and not _shared(call.started, started) and call.started.handling:
                for path in [path for path in self.by_scope if is_within(path, above)]:
                    if _shared(self.by_scope[path].started, call.started):
                        del self.by_scope[path]
            above = above.rpartition("/")[0]

    def _started(self, start: int, envelope: Envelope) -> Call:
        call = self.by_start.get(start)
        if call is None:
            msg = f"record {envelope.seq} is of a call that never started; run `accord doctor`"
            raise LogCorruptError(msg)
        return call

    def _went_on_past(self, causes: tuple[int, ...], handling: frozenset[int]) -> None:
        waiting = list(causes)
        while waiting:
            cause = waiting.pop()
            call = self._by_end.get(cause)
            if cause in handling:
                waiting += self._joins.get(cause, ())
                if call is not None:
                    call.cleaned_up = True
                continue
            waiting += self._joins.pop(cause, ())
            if call is not None:
                call.led_on = True


def _shared(one: CallStarted, other: CallStarted) -> bool:
    """Both were made while one failure was in flight."""
    return not set(one.handling).isdisjoint(other.handling)


def index_calls(envelopes: Iterable[Envelope]) -> Calls:
    """The calls of a run, from its events."""
    calls = Calls()
    for envelope in envelopes:
        calls.add(envelope)
    return calls


def is_within(path: str, above: str) -> bool:
    """Whether a place is ``above``, or lies below it."""
    return not above or path == above or path.startswith(f"{above}/")
