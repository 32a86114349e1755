"""How the stages of a pipeline have spent their time: read off the log, so after a run, or within.

A stage is at work on an item from the first to the last event at the item's place; one whose
function makes no calls leaves no trace, and takes no time. Between items, a stage is *starved*
until the stage before has ended with the next one, and *held* from then on: by a slow stage after
it.
"""

from __future__ import annotations

from dataclasses import dataclass

from accord.clock import NANOSECONDS
from accord.log.events import Envelope, Joined
from accord.log.log import Log
from accord.observe.places import above_all, pipelines_of


@dataclass(frozen=True, kw_only=True)
class StageStatistics:
    """One stage: the items that it made calls for, and its seconds, before and between them.

    ``busy_s`` is while it was at work on any item; the source of items is a stage, too.
    """

    name: str
    items: int
    busy_s: float
    starved_s: float
    held_s: float


@dataclass(frozen=True, kw_only=True)
class PipelineStatistics:
    """One pipeline: its place in the flow, and how long it has taken so far."""

    scope: str
    total_s: float
    stages: tuple[StageStatistics, ...]


def pipeline_statistics(log: Log) -> tuple[PipelineStatistics, ...]:
    """Of all pipelines of the run that ``log`` is of, in the order in which they began."""
    began: dict[str, _Pipeline] = {}
    for envelope in log.envelopes:
        for path, names in pipelines_of([envelope]).items():
            began.setdefault(path, _Pipeline(path, envelope.at, names))
        for path in above_all(envelope.scope):
            if path in began:
                began[path].add(envelope)
    return tuple(each.statistics() for each in began.values())


@dataclass
class _Span:
    began: int
    ended: int


class _Pipeline:
    def __init__(self, path: str, began: int, names: list[str]) -> None:
        self._path = path
        self._began = self._ended = began
        self._names = names
        self._lanes: list[dict[int, _Span]] = [{} for _ in names]

    def add(self, envelope: Envelope) -> None:
        self._ended = envelope.at
        if envelope.scope == self._path:
            assert isinstance(envelope.event, Joined)
            return
        lane, _, rest = envelope.scope[len(self._path) + 1 :].partition("/")
        index = rest.partition("/")[0]
        if not index.isdigit():  # the source cleans up
            return
        span = self._lanes[int(lane)].setdefault(int(index), _Span(envelope.at, envelope.at))
        span.ended = envelope.at

    def statistics(self) -> PipelineStatistics:
        return PipelineStatistics(
            scope=self._path,
            total_s=(self._ended - self._began) / NANOSECONDS,
            stages=tuple(self._stage(number) for number in range(len(self._names))),
        )

    def _stage(self, number: int) -> StageStatistics:
        busy = starved = held = 0
        until = self._began
        for index, span in sorted(self._lanes[number].items()):
            came = min(max(self._came(number, index), until), max(span.began, until))
            starved += came - until
            held += max(span.began, until) - came
            busy += max(0, span.ended - max(span.began, until))
            until = max(until, span.ended)
        return StageStatistics(
            name=self._names[number],
            items=len(self._lanes[number]),
            busy_s=busy / NANOSECONDS,
            starved_s=starved / NANOSECONDS,
            held_s=held / NANOSECONDS,
        )

    def _came(self, number: int, index: int) -> int:
        """When the last stage before that made calls for an item had ended with it."""
        spans = [lane[index] for lane in self._lanes[:number] if index in lane]
        return spans[-1].ended if spans else self._began
