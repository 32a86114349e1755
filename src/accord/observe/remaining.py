"""How far it is to the end of a run, from each of its requests: read off an earlier run's log.

The longest chain of causes from a request to the end, and from the beginning through it, counting
what each event of it took, and not what it waited for others at a join, or for a place at the
engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

from accord.clock import NANOSECONDS
from accord.log.events import CallFinished, CallStarted, Envelope


class Way(NamedTuple):
    """Seconds of work: from a request to the end, and of the longest chain that goes through it."""

    left_s: float
    whole_s: float


NO_WAY = Way(0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """The way of each request, by its place, and by its agent on the mean."""

    by_place: Mapping[str, Way] = field(default_factory=dict[str, Way])
    by_agent: Mapping[str, Way] = field(default_factory=dict[str, Way])

    def of(self, place: str, agent: str) -> Way | None:
        """From the request at ``place``; where that is not known, from one of that agent; else 0.

        None if nothing is known of the whole run: what is declared in its place is no measurement,
        and never stands beside one.
        """
        if not self.by_place and not self.by_agent:
            return None
        return self.by_place.get(place, self.by_agent.get(agent, NO_WAY))


def remaining_of(envelopes: Sequence[Envelope]) -> Remaining:
    """What a run that has ended says of another of the same flow."""
    before, left = _before(envelopes), _left(envelopes)
    by_place: dict[str, Way] = {}
    by_agent: defaultdict[str, list[Way]] = defaultdict(list)
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, CallStarted) and event.kind == "request":
            to_end = left[envelope.seq]
            way = Way(to_end / NANOSECONDS, (before[envelope.seq] + to_end) / NANOSECONDS)
            by_place[envelope.scope] = way
            by_agent[event.name].append(way)
    means = {
        agent: Way(mean(way.left_s for way in ways), mean(way.whole_s for way in ways))
        for agent, ways in by_agent.items()
    }
    return Remaining(by_place=by_place, by_agent=means)


def _before(envelopes: Sequence[Envelope]) -> list[int]:
    """For each event, the nanoseconds of the longest chain from the beginning to it."""
    before = [0] * len(envelopes)
    for envelope in envelopes:
        if envelope.causes:
            longest = max(before[cause] for cause in envelope.causes)
            before[envelope.seq] = longest + _took(envelopes, envelope)
    return before


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
    if isinstance(event, CallFinished) and event.saved is not None:
        return event.saved.took_ns  # next time it may have to be made
    if isinstance(event, CallFinished) and event.spent is not None:
        return min(took, event.spent.total_ns)
    return took
