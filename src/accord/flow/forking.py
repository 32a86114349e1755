"""A fork: a new log that shares with another all that does not follow from one change.

The outputs of some calls are replaced, and what causally follows from them is left out. Of that,
the calls that neither wrote nor looked at anything shared are *spare*: if one comes again at its
place with the same input, it answers as it did in the other run. So only what depends on the change
is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from accord.errors import UsageError
from accord.log.blobs import Blobs
from accord.log.codec import ValueCodec, blobs_in, encode_envelope
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Event,
    Joined,
    Looked,
    MessageTaken,
    Note,
    RunEnded,
    RunStarted,
    Value,
    Written,
)
from accord.log.fold import Call, Calls, index_calls
from accord.log.store.base import Store
from accord.log.store.holder import this_process
from accord.observe.places import above_all

NUMBERED = ("send", "receive", "watch", "search", "interrupt")
"""Calls whose output holds numbers of events, or that ask a person: they are made again."""


def forked(
    envelopes: Sequence[Envelope], outputs: Mapping[str, Value], started: RunStarted
) -> list[Envelope]:
    """The events of a run that begins as ``started`` says, with other ``outputs`` at some places.

    The place of the run itself, ``""``, stands for its input. Raises ``UsageError`` for a place
    where no call finished.
    """
    calls = index_calls(envelopes)
    ends = {_end_at(calls, place, started.forked_from): v for place, v in outputs.items()}
    after = _following(envelopes, set(ends))
    started = replace(started, forked_at=tuple(sorted(ends)))
    return _Copy(envelopes, _kept(envelopes, calls, after), ends, started).made()


def write_fork(
    store: Store, envelopes: Sequence[Envelope], changes: Mapping[str, Any], started: RunStarted
) -> None:
    """Write the log of a new run in ``store``; ``changes`` are other outputs by their places."""
    changed = Blobs(store.blob)
    values, new = ValueCodec(changed), changed.pending
    outputs = {place: values.encode(v, f"the change at {place!r}") for place, v in changes.items()}
    records = [encode_envelope(each) for each in forked(envelopes, outputs, started)]

    def fetch(digests: set[str]) -> dict[str, bytes]:
        return {d: new[d] for d in digests & new.keys()} | store.blobs(digests - new.keys())

    lease = store.acquire(started.run, this_process())
    store.append(lease, 0, records, blobs_in([*records, *new.values()], fetch))
    store.release(lease)


def spare_calls(envelopes: Sequence[Envelope], forked_at: Iterable[int]) -> dict[str, Call]:
    """The calls of the run forked from that may answer again, by their places."""
    calls = index_calls(envelopes)
    after = _following(envelopes, set(forked_at))
    shared = (e.scope for e in envelopes if isinstance(e.event, Note | Joined))
    tainted = {place for path in shared for place in above_all(path)}
    return {
        call.scope: call
        for call in calls.by_scope.values()
        if call.start.seq in after
        and isinstance(call.ended, CallFinished)
        and call.scope not in tainted
        and call.started.kind not in NUMBERED
    }


def _end_at(calls: Calls, place: str, run: str) -> int:
    if not place:
        return 0
    call = calls.by_scope.get(place)
    if call is None or call.end is None or not isinstance(call.ended, CallFinished):
        why = "has no call" if call is None else f"has {call.started.name!r}, which did not finish"
        raise UsageError(
            f"{place!r} {why}, so nothing of it can be changed in a fork; `accord show` tells the "
            f"places of a run (for {run!r})"
        )
    return call.end.seq


def _following(envelopes: Sequence[Envelope], changed: set[int]) -> set[int]:
    """The events that causally follow from those ``changed``."""
    after = set(changed)
    for envelope in envelopes:
        if not after.isdisjoint(envelope.causes):
            after.add(envelope.seq)
    return after - changed


def _kept(envelopes: Sequence[Envelope], calls: Calls, after: set[int]) -> set[int]:
    """What does not follow from the change, but for how the run ended.

    Answers to questions that are asked again are left out, for the question may be another.
    """
    again = {
        place
        for place, call in calls.by_scope.items()
        if call.started.kind == "interrupt" and call.start.seq in after
    }
    return {
        envelope.seq
        for envelope in envelopes
        if envelope.seq not in after
        and not isinstance(envelope.event, RunEnded)
        and not (isinstance(envelope.event, Written) and envelope.event.key in again)
    }


class _Copy:
    """Writes down what is kept, with new numbers."""

    def __init__(
        self,
        envelopes: Sequence[Envelope],
        kept: set[int],
        ends: Mapping[int, Value],
        started: RunStarted,
    ) -> None:
        self._envelopes = envelopes
        self._kept = kept
        self._ends = ends
        self._started = started
        self._numbers: dict[int, tuple[int, ...]] = {}
        """What stands for each old event: itself, or what it followed from."""
        self._copied: list[Envelope] = []

    def made(self) -> list[Envelope]:
        """The new log."""
        for old in self._envelopes:
            causes = self._renumbered(old.causes)
            event = self._event(old)
            if event is None:
                self._numbers[old.seq] = causes
                continue
            number = len(self._copied)
            self._numbers[old.seq] = (number,)
            self._copied.append(Envelope(number, old.at, old.scope, causes, event))
        return self._copied

    def _renumbered(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({new for old in numbers for new in self._numbers[old]}))

    def _only(self, old: int) -> int:
        return self._numbers[old][0]

    def _event(self, old: Envelope) -> Event | None:
        event = old.event
        if isinstance(event, RunStarted):
            given = self._ends.get(old.seq, event.input)
            return replace(self._started, input=given)
        if isinstance(event, CallEnded) and event.call in self._kept:
            call = self._only(event.call)
            if old.seq in self._ends:
                return replace(event, call=call, output=self._ends[old.seq])
            if old.seq not in self._kept:
                # It had begun before the change and ended after it: it is begun again.
                return CallCancelled(call=call, suspended=True)
        if old.seq not in self._kept:
            return None
        return self._with_numbers(event)

    def _with_numbers(self, event: Event) -> Event:
        if isinstance(event, CallStarted | Note):
            event = replace(event, handling=self._standing(event.handling))
        match event:
            case CallFinished():
                call = self._only(event.call)
                return replace(event, call=call, output=self._output(event))
            case AttemptFailed():
                return replace(event, call=self._only(event.call))
            case CallFailed() | CallCancelled():
                because = self._standing(event.because)
                return replace(event, call=self._only(event.call), because=because)
            case MessageTaken():
                return replace(event, message=self._only(event.message))
            case Looked():
                return replace(event, took=self._standing(event.took))
            case Written():
                # Messages from outside have numbers in the post of their own run.
                return replace(event, post=-1 if event.post else 0)
            case _:
                return event

    def _output(self, event: CallFinished) -> Value:
        """The output of a call; what waits gives the number of the event that it waited for."""
        started = self._envelopes[event.call].event
        assert isinstance(started, CallStarted)
        if started.kind not in ("send", "receive", "watch"):
            return event.output
        return Value(str(self._only(int(bytes(event.output)))).encode())

    def _standing(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._only(old) for old in numbers if old in self._kept)
