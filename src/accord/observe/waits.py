"""Who waited for whom, and how long: at joins, in mailboxes, for keys, rooms and people.

On the critical path or not: it is what one pattern of synchronization costs beside another. What a
request waits for at the engine is in the time table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

import msgspec

from accord.clock import NANOSECONDS
from accord.log.events import CallStarted, Envelope, Joined
from accord.log.fold import Call, Calls

WAITING = ("sleep", "send", "receive", "watch", "interrupt")
"""Calls that only wait."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of one kind for one thing, in seconds.

    ``join``       a branch that is done, for the others of its join
    ``node``       an input of a graph's node, for its other inputs
    ``receive``    for a message; ``send`` for room in a mailbox; ``watch`` for a key or an event;
    ``interrupt``  for a person; ``sleep`` for the time to pass
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
    for kind, name, ns in (*_at_joins(envelopes), *_in_calls(calls.by_start.values())):
        if ns > 0:
            taken.setdefault((kind, name), []).append(ns)
    found = [_wait(kind, name, sorted(each)) for (kind, name), each in taken.items()]
    return sorted(found, key=lambda wait: (-wait.total_s, wait.kind, wait.name))


def _at_joins(envelopes: Sequence[Envelope]) -> Iterator[tuple[str, str, int]]:
    for envelope in envelopes:
        match envelope.event:
            case Joined():
                kind, name = "join", ""
            case CallStarted(kind="node", name=node) if len(envelope.causes) > 1:
                kind, name = "node", node
            case _:
                continue
        for cause in envelope.causes:
            yield kind, name, envelope.at - envelopes[cause].at


def _in_calls(calls: Iterable[Call]) -> Iterator[tuple[str, str, int]]:
    for call in calls:
        if call.started.kind in WAITING and call.duration_ns is not None:
            name = "" if call.started.kind == "sleep" else call.started.name
            yield call.started.kind, name, call.duration_ns


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
