"""State read off the log: pure folds over envelopes.

The index of calls is the one that everything else shares: replay looks calls up in it, the
tree prints it, the tax report adds it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Joined,
    RunEnded,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
)

S = TypeVar("S")


def fold(step: Callable[[S, Envelope], S], state: S, envelopes: Iterable[Envelope]) -> S:
    """``step`` over all ``envelopes``, in order."""
    for envelope in envelopes:
        state = step(state, envelope)
    return state


@dataclass(slots=True)
class Call:
    """All that the log says of one call, so far."""

    scope: str
    started: CallStarted
    start: Envelope
    end: Envelope | None = None
    ended: CallEnded | None = None
    attempts: list[AttemptFailed] = field(default_factory=list[AttemptFailed])
    led_on: bool = False
    """Something began, or succeeded, because of its end: the flow went on past it."""

    @property
    def name(self) -> str:
        return self.started.name

    @property
    def duration_ns(self) -> int | None:
        """None while it runs."""
        return None if self.end is None else self.end.at - self.start.at


@dataclass(slots=True)
class Calls:
    """The calls of a run, by their place in the flow and in the order in which they started."""

    by_scope: dict[str, Call] = field(default_factory=dict[str, Call])
    joined: dict[str, Envelope] = field(default_factory=dict[str, Envelope])
    run: RunStarted | None = None
    ended: RunEnded | None = None
    _by_start: dict[int, Call] = field(default_factory=dict[int, Call])
    _by_end: dict[int, Call] = field(default_factory=dict[int, Call])
    _joins: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])

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
                call = Call(envelope.scope, event, envelope)
                self.by_scope[envelope.scope] = self._by_start[envelope.seq] = call
            case CallFinished() | CallFailed() | CallCancelled():
                call = self._by_start[event.call]
                call.end, call.ended = envelope, event
                self._by_end[envelope.seq] = call
            case AttemptFailed():
                self._by_start[event.call].attempts.append(event)
            case Joined():
                self.joined[envelope.scope] = envelope
                self._joins[envelope.seq] = envelope.causes
        if isinstance(event, CallStarted | CallFinished | RunFinished):
            self._went_on_past(envelope.causes)

    def _went_on_past(self, causes: tuple[int, ...]) -> None:
        for cause in causes:
            if (call := self._by_end.get(cause)) is not None:
                call.led_on = True
            elif (branches := self._joins.pop(cause, None)) is not None:
                self._went_on_past(branches)


def index_calls(envelopes: Iterable[Envelope]) -> Calls:
    """The calls of a run, from its events."""
    calls = Calls()
    for envelope in envelopes:
        calls.add(envelope)
    return calls
