"""A fork: a new log that shares with another all that does not follow from one change.

The outputs of some calls are replaced. What causally follows from them is left out, but for the
calls that may still answer if they come again with the same input: those that neither wrote nor
looked at anything shared. Run again over that log, only what depends on the change is made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from accord.errors import UsageError
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


def forked(
    envelopes: Sequence[Envelope], outputs: Mapping[str, Value], started: RunStarted
) -> list[Envelope]:
    """The events of a run that begins as ``started`` says, with other ``outputs`` at some places.

    The place of the run itself, ``""``, stands for its input. Raises ``UsageError`` for a place
    where no call finished.
    """
    calls = index_calls(envelopes)
    ends = {_end_at(calls, place, started.run): value for place, value in outputs.items()}
    after = _following(envelopes, set(ends))
    kept = _kept(envelopes, calls, after)
    return _Copy(envelopes, kept, ends, started).made()


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
    """What does not follow, and the calls that may answer all the same."""
    shared = [
        envelope.scope
        for envelope in envelopes
        if envelope.seq in after and isinstance(envelope.event, Note | Joined)
    ]
    tainted = {place for path in shared for place in _above(path)}
    kept = {
        envelope.seq
        for envelope in envelopes
        if envelope.seq not in after and not isinstance(envelope.event, RunEnded)
    }
    asked = [p for p, call in calls.by_scope.items() if call.started.kind == "interrupt"]
    again = {place for place in asked if calls.by_scope[place].start.seq in after}
    kept -= {e.seq for e in envelopes if isinstance(e.event, Written) and e.event.key in again}
    for call in calls.by_scope.values():
        if _may_answer(call, tainted, after):
            assert call.end is not None
            kept.update((call.start.seq, call.end.seq))
    return kept


def _above(path: str) -> list[str]:
    """The places that ``path`` lies within, itself included."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _may_answer(call: Call, tainted: set[str], after: set[int]) -> bool:
    if call.end is None or call.start.seq not in after:
        return False  # what began before the change, and ended after it, may have waited for it
    return isinstance(call.ended, CallFinished) and call.scope not in tainted


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

    def _with_numbers(self, event: Event) -> Event | None:
        match event:
            case CallStarted():
                return replace(event, handling=self._standing(event.handling))
            case CallFinished() | AttemptFailed():
                return replace(event, call=self._only(event.call))
            case CallFailed() | CallCancelled():
                because = self._standing(event.because)
                return replace(event, call=self._only(event.call), because=because)
            case MessageTaken():
                return replace(event, message=self._only(event.message))
            case Looked():
                handling = self._standing(event.handling)
                return replace(event, took=self._standing(event.took), handling=handling)
            case Written():
                # Messages from outside have numbers in the post of their own run.
                return replace(event, post=-1 if event.post else 0)
            case _:
                return event

    def _standing(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._only(old) for old in numbers if old in self._kept)
