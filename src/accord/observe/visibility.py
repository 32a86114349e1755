"""What visibility policies kept out of prompts: by the agent that wrote, and the one that reads.

Agents record what each of their looks showed them, and what all of it would have taken
(:class:`accord.log.events.View`); a call shows it with each of its requests. Estimated tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from accord.engine.base import Prices
from accord.log.events import Envelope, Looked, View
from accord.log.fold import Calls


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """From one agent's writing (``writer``; empty is the flow) to another's prompts.

    ``full`` is what showing all of it with each request would have taken, ``sent`` what was in
    the prompts, ``new`` what of that the reader had not been sent before. ``saved_dollars`` counts
    at the price of cached input what the reader had seen, else at that of fresh input.
    """

    writer: str
    reader: str
    policy: str
    full: int
    sent: int
    new: int
    saved_dollars: float | None

    @property
    def saved(self) -> int:
        """Tokens that were not sent; below 0 where handles and titles took more."""
        return self.full - self.sent


def edges_of(
    envelopes: Iterable[Envelope], calls: Calls, prices: Prices | None = None
) -> list[Edge]:
    """The edges along which agents read each other, by writer, reader and policy."""
    requests = _requests_by_agent_call(calls)
    sums: dict[tuple[str, str, str], _Sum] = {}
    for looked, place in _looks(envelopes):
        times = max(1, requests[agent_call(place, calls)])
        for view in looked.views:
            edge = (view.writer, looked.by, view.policy)
            dollars = _dollars(view, times, prices, known=edge in sums)
            sums.setdefault(edge, _Sum()).add(view, times, dollars)
    return [
        Edge(
            writer=writer,
            reader=reader,
            policy=policy,
            full=total.full,
            sent=total.sent,
            new=total.new,
            saved_dollars=None if prices is None else total.dollars,
        )
        for (writer, reader, policy), total in sorted(sums.items(), key=lambda each: each[0])
    ]


@dataclass(slots=True)
class _Sum:
    """What the looks along one edge add up to, so far."""

    full: int = 0
    sent: int = 0
    new: int = 0
    dollars: float = 0.0

    def add(self, view: View, times: int, dollars: float) -> None:
        self.full += view.full * times
        self.sent += view.sent * times
        self.new += view.new
        self.dollars += dollars


def _dollars(view: View, times: int, prices: Prices | None, *, known: bool) -> float:
    if prices is None:
        return 0.0
    cached = prices.prompt if prices.cached is None else prices.cached
    saved = view.full - view.sent
    first = saved * (cached if known else prices.prompt)
    return (first + saved * (times - 1) * cached) / 1_000_000


def _looks(envelopes: Iterable[Envelope]) -> Iterator[tuple[Looked, str]]:
    for envelope in envelopes:
        if isinstance(envelope.event, Looked) and envelope.event.views:
            yield envelope.event, envelope.scope


def _requests_by_agent_call(calls: Calls) -> Counter[str]:
    requests = (call for call in calls.by_start.values() if call.started.kind == "request")
    return Counter(agent_call(call.scope, calls) for call in requests)


def agent_call(place: str, calls: Calls) -> str:
    """The nearest call of an agent around a place."""
    while place:
        place = place.rpartition("/")[0]
        call = calls.by_scope.get(place)
        if call is not None and call.started.kind == "agent":
            return place
    return ""
