"""What the last run of a flow did: what to expect of the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Expected(NamedTuple):
    """A call of an agent that comes when all of the calls at the places ``before`` have ended."""

    agent: str
    place: str
    before: frozenset[str]


@dataclass
class Expectations:
    """What is known of who is called next in a run, and of the agents that may be meant."""

    agents: dict[str, Any] = field(default_factory=dict[str, Any])
    """By name."""
    after: dict[str, list[Expected]] = field(default_factory=dict[str, list[Expected]])
    """By the place of a call: those that follow on its end."""

    def add(self, expected: Expected) -> None:
        """It is to be expected, too."""
        for place in expected.before:
            self.after.setdefault(place, []).append(expected)


def calls_of_agents(envelopes: Sequence[Envelope]) -> Iterator[Expected]:
    """The calls of agents in a run, with what each came after."""
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, CallStarted) and event.kind == "agent":
            before = frozenset(_ends_before(envelopes, envelope))
            yield Expected(event.name, envelope.scope, before)


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


class Outputs:
    """What calls have given: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str], Value] = {}
        """By place and name."""
        self.by_key: dict[tuple[str, str], Value] = {}
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
            self.by_place[envelope.scope, started.name] = event.output
            self.by_key[started.name, started.key] = event.output
