"""How far it is to the end of a run, from each of its requests: read off an earlier run's log.

The longest chain of causes from a request to the end, counting what each event of it took, and not
what it waited for others at a join, or for a place at the engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from accord.clock import NANOSECONDS, Clock
from accord.errors import LogError
from accord.log.codec import decode_envelope
from accord.log.events import CallFinished, CallStarted, Envelope, RunFinished, RunStarted
from accord.log.log import read_log
from accord.log.store.base import Store

LOOKED_AT = 20
"""How many of the newest runs are looked at."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Seconds to the end of the run, by the place of a request, and by agent on the mean."""

    by_place: Mapping[str, float] = field(default_factory=dict[str, float])
    by_agent: Mapping[str, float] = field(default_factory=dict[str, float])

    def of(self, place: str, agent: str) -> float | None:
        """From the request at ``place``; where that is not known, from one of that agent; else 0.

        None if nothing is known of the whole run: what is declared in its place is no measurement,
        and never stands beside one.
        """
        if not self.by_place and not self.by_agent:
            return None
        return self.by_place.get(place, self.by_agent.get(agent, 0.0))


def remaining_of(envelopes: Sequence[Envelope]) -> Remaining:
    """What a run that has ended says of another of the same flow."""
    left = _left(envelopes)
    by_place: dict[str, float] = {}
    by_agent: defaultdict[str, list[float]] = defaultdict(list)
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, CallStarted) and event.kind == "request":
            seconds = left[envelope.seq] / NANOSECONDS
            by_place[envelope.scope] = seconds
            by_agent[event.name].append(seconds)
    means = {agent: sum(each) / len(each) for agent, each in by_agent.items()}
    return Remaining(by_place=by_place, by_agent=means)


def last_remaining(store: Store, flow: str, clock: Clock) -> Remaining:
    """What the last run of ``flow`` that finished says; nothing, if there is none among the last.

    ``flow`` is as runs record it.
    """
    for info in store.runs(limit=LOOKED_AT):
        with suppress(LogError):  # whatever is wrong with it, it is no reason not to run
            last, first = decode_envelope(info.last), store.read(info.run, limit=1)
            started = decode_envelope(first[0]).event
            is_one = isinstance(started, RunStarted) and started.flow == flow
            if is_one and isinstance(last.event, RunFinished):
                return remaining_of(read_log(store, info.run, clock).envelopes)
    return Remaining()


def _left(envelopes: Sequence[Envelope]) -> list[int]:
    """For each event, the nanoseconds of the longest chain from it to an end."""
    left = [0] * len(envelopes)
    for envelope in reversed(envelopes):
        if not envelope.causes:
            continue
        took = _took(envelopes, envelope)
        for cause in envelope.causes:
            left[cause] = max(left[cause], took + left[envelope.seq])
    return left


def _took(envelopes: Sequence[Envelope], envelope: Envelope) -> int:
    """From the last of its causes to an event."""
    event = envelope.event
    took = envelope.at - max(envelopes[cause].at for cause in envelope.causes)
    if isinstance(event, CallFinished) and event.spent is not None:
        return min(took, event.spent.total_ns)
    return took
