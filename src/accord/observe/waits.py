"""Who was waited for, and how long: at joins, in mailboxes, for keys, rooms and people.

On the critical path or not: it is what one pattern of synchronization costs beside another. What a
request waits for at the engine is in the time table; pipelines and actors, of which none waits for
all, have statistics of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import msgspec

from accord.clock import NANOSECONDS
from accord.log.events import CallStarted, Envelope, Joined, MessageTaken
from accord.log.fold import Call, Calls
from accord.observe.places import above, actors_of, latest, pipelines_of, who

WAITING = ("sleep", "send", "receive", "watch", "interrupt")
"""Calls that only wait."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of one kind for one thing, in seconds. ``name`` is what was waited for.

    ``join``       a branch that is done, for the last of its join: the agent or step of that
    ``node``       an input of a graph's node, for the last of its inputs: the node that gave it
    ``receive``    for a message: its sender, or ``outside``
    ``send``       for room in a mailbox; ``watch`` for a key or an event
    ``interrupt``  for a person; ``sleep`` for the time to pass

    A name is empty where the flow's own code was waited for.
    """

    kind: str
    name: str
    count: int
    total_s: float
    p50_s: float
    p99_s: float


def waits_of(envelopes: Sequence[Envelope], calls: Calls) -> list[Wait]:
    """All waits that took time, the longest together first."""
    taken: dict[tuple[str, str], list[int]] = {}
    at_joins = _at_joins(envelopes, calls)
    for kind, name, ns in (*at_joins, *_in_calls(envelopes, calls.by_start.values())):
        if ns > 0:
            taken.setdefault((kind, name), []).append(ns)
    found = [_wait(kind, name, sorted(each)) for (kind, name), each in taken.items()]
    return sorted(found, key=lambda wait: (-wait.total_s, wait.kind, wait.name))


def _at_joins(envelopes: Sequence[Envelope], calls: Calls) -> Iterator[tuple[str, str, int]]:
    teams = {above(place) for place in actors_of(calls.by_start.values())}
    others = teams | pipelines_of(envelopes).keys()
    for envelope in envelopes:
        match envelope.event:
            case Joined() if envelope.scope not in others:
                kind = "join"
            case CallStarted(kind="node") if len(envelope.causes) > 1:
                kind = "node"
            case _:
                continue
        last = latest(envelopes, envelope.causes)
        name = who(envelopes, last.seq)
        for cause in envelope.causes:
            if cause != last.seq:
                yield kind, name, envelope.at - envelopes[cause].at


def _in_calls(
    envelopes: Sequence[Envelope], calls: Iterable[Call]
) -> Iterator[tuple[str, str, int]]:
    for call in calls:
        kind = call.started.kind
        if kind in WAITING and call.duration_ns is not None:
            yield kind, _waited_for(envelopes, call), call.duration_ns


def _waited_for(envelopes: Sequence[Envelope], call: Call) -> str:
    if call.started.kind == "sleep":
        return ""
    for cause in () if call.end is None else call.end.causes:
        taken = envelopes[cause].event
        if call.started.kind == "receive" and isinstance(taken, MessageTaken):
            return who(envelopes, taken.message)
    return call.started.name


def _wait(kind: str, name: str, taken: list[int]) -> Wait:
    def quantile(share: float) -> float:
        return taken[ceil(share * len(taken)) - 1] / NANOSECONDS

    return Wait(
        kind=kind,
        name=name,
        count=len(taken),
        total_s=sum(taken) / NANOSECONDS,
        p50_s=quantile(0.5),
        p99_s=quantile(0.99),
    )
