"""What the last run of a flow did: what to expect of the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from accord.clock import Clock
from accord.errors import LogError
from accord.log.codec import decode_envelope
from accord.log.events import (
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Joined,
    Note,
    RunFinished,
    RunStarted,
    Value,
)
from accord.log.log import Log, read_log
from accord.log.store.base import Store

LOOKED_AT = 20
"""How many of the newest runs are looked at."""


def last_run(store: Store, flow: str, clock: Clock) -> Log | None:
    """The log of the last run of ``flow`` that finished; None if there is none among the last.

    ``flow`` is as runs record it.
    """
    for info in store.runs(limit=LOOKED_AT):
        with suppress(LogError):  # whatever is wrong with it, it is no reason not to run
            last, first = decode_envelope(info.last), store.read(info.run, limit=1)
            started = decode_envelope(first[0]).event
            is_one = isinstance(started, RunStarted) and started.flow == flow
            if is_one and isinstance(last.event, RunFinished):
                return read_log(store, info.run, clock)
    return None


class Following(NamedTuple):
    """A call of an agent that came when all of the calls at the places ``before`` had ended."""

    agent: str
    place: str
    before: frozenset[str]


def following(envelopes: Sequence[Envelope]) -> dict[str, list[Following]]:
    """The calls of agents that followed right on each call, by its place."""
    after: dict[str, list[Following]] = {}
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, CallStarted) and event.kind == "agent":
            before = frozenset(_ends_before(envelopes, envelope))
            found = Following(event.name, envelope.scope, before)
            for place in before:
                after.setdefault(place, []).append(found)
    return after


def _ends_before(envelopes: Sequence[Envelope], envelope: Envelope) -> Iterator[str]:
    """The places of the calls whose ends it followed from, through joins and notes."""
    waiting, seen = list(envelope.causes), set[int]()
    while waiting:
        seq = waiting.pop()
        if seq in seen:
            continue
        seen.add(seq)
        match envelopes[seq].event:
            case CallFinished() | CallFailed() | CallCancelled():
                yield envelopes[seq].scope
            case Joined() | Note():
                waiting += envelopes[seq].causes
            case _:
                pass


class Given(NamedTuple):
    """What a call gave, and the event that says so."""

    value: Value
    seq: int


class Results:
    """What calls have given: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str], Given] = {}
        """By place and name."""
        self.by_key: dict[tuple[str, str], Given] = {}
        """By name and key: of the same input."""
        self._started: dict[int, CallStarted] = {}
        self.keys: dict[str, str] = {}
        """Of the call that began last at each place."""

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        if isinstance(event, CallStarted):
            self._started[envelope.seq] = event
            self.keys[envelope.scope] = event.key
        elif isinstance(event, CallFinished) and event.call in self._started:
            started = self._started.pop(event.call)
            given = Given(event.output, envelope.seq)
            self.by_place[envelope.scope, started.name] = given
            self.by_key[started.name, started.key] = given
