"""The states that a graph went through, as a fold over the log: a checkpoint is a position in it.

What each node wrote is the output of its call, and what it saw follows from the causes of the call.
So there is nothing to save at a node, and no state is kept that the log has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accord.flow.execution import Sent, Token
from accord.graph.firing import ORDER
from accord.graph.node import as_command, state_after
from accord.graph.shape import Shape
from accord.graph.state import State, merge
from accord.log.codec import ValueCodec
from accord.log.events import CallFinished, CallStarted, Envelope
from accord.log.fold import is_within

THE_INPUT = "the input"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state after one node. ``position`` is the number of the event with which it ended.

    ``label`` names the firing, ``place`` is its place in the flow (to fork from), ``update`` what
    it wrote, ``values`` the state that those see who come after it, ``running`` the firings that
    were at work by then.
    """

    position: int
    at_ns: int
    node: str
    label: str
    place: str
    update: dict[str, Any]
    values: dict[str, Any]
    running: tuple[str, ...]


@dataclass(slots=True)
class _Point:
    """A firing, from its start on."""

    node: str
    label: str
    depth: int
    order: tuple[int, ...]
    state: State
    sends: int = 0


class History:
    """The states of all executions of one graph in a run."""

    def __init__(self, shape: Shape, values: ValueCodec | None = None) -> None:
        self.values = values
        """Decodes what the log holds."""
        self.snapshots: list[Snapshot] = []
        self._shape = shape
        self._graphs: dict[str, dict[str, _Point]] = {}
        """Firings by label, and their ends by number, of each execution, by its place."""
        self._ends: dict[int, _Point] = {}
        self._started: dict[int, tuple[str, _Point]] = {}

    def add(self, envelope: Envelope) -> Snapshot | None:
        """Take in the next event; the snapshot that it makes, if it is the end of a node."""
        event = envelope.event
        match event:
            case CallStarted(kind="graph") if self._is_one(envelope, event):
                self._begin(envelope, event)
            case CallStarted(kind="node"):
                self._fire(envelope, event)
            case CallFinished() if event.call in self._started:
                return self._finish(envelope, event)
            case _:
                self._follow(envelope)
        return None

    def news(self, item: Envelope | Sent | Token) -> Iterator[tuple[str, Any]]:
        """What ``item`` of a run's stream is, to those who stream the graph."""
        if isinstance(item, Token):
            yield "tokens", (item.text, item.agent)
        if isinstance(item, Envelope) and (snapshot := self.add(item)) is not None:
            yield "updates", {snapshot.node: snapshot.update}
            yield "values", snapshot.values

    def _is_one(self, envelope: Envelope, event: CallStarted) -> bool:
        """It is an execution of this graph, and not of one within it that goes by its name."""
        within = any(is_within(envelope.scope, place) for place in self._graphs)
        return event.name == self._shape.name and (envelope.scope in self._graphs or not within)

    def _decoded(self, value: Any) -> Any:
        assert self.values is not None
        return self.values.decode(value)

    def _begin(self, envelope: Envelope, event: CallStarted) -> None:
        schema = self._shape.schema
        [given] = self._decoded(event.input)
        state = State(schema, {}, b"").write(schema.first(given), by=THE_INPUT, depth=0)
        point = _Point("", "", 0, (), state)
        self._graphs[envelope.scope] = {"": point}
        self._ends[envelope.seq] = point

    def _fire(self, envelope: Envelope, event: CallStarted) -> None:
        place, _, segment = envelope.scope.rpartition("/")
        graph = self._graphs.get(place)
        if graph is None or event.name not in self._shape.index:
            return
        label = segment.removeprefix("~")
        number = self._shape.index[event.name]
        sources = {id(p): p for seq in envelope.causes if (p := self._ends.get(seq)) is not None}
        came = sorted(sources.values(), key=lambda p: (p.order, p.label)) or [graph[""]]
        depth = 1 + max(each.depth for each in came)
        order: tuple[int, ...] = (number, depth)
        if label.endswith("]"):
            order = (number, *came[0].order[-ORDER:], came[0].sends)
            came[0].sends += 1
        elif label.endswith(">"):
            order = (number, *came[0].order[-ORDER:], 0)
        state = merge([each.state for each in came], f"node {event.name!r}")
        point = _Point(event.name, label, depth, order, state)
        graph[label] = point
        self._started[envelope.seq] = envelope.scope, point

    def _finish(self, envelope: Envelope, event: CallFinished) -> Snapshot:
        place, point = self._started.pop(event.call)
        output = self._decoded(event.output)
        point.state = state_after(point.state, output, by=point.node, depth=point.depth)
        self._ends[envelope.seq] = point
        snapshot = Snapshot(
            position=envelope.seq,
            at_ns=envelope.at,
            node=point.node,
            label=point.label,
            place=place,
            update=dict(as_command(output).update or {}),
            values=point.state.values,
            running=tuple(other.label for _, other in self._started.values()),
        )
        self.snapshots.append(snapshot)
        return snapshot

    def _follow(self, envelope: Envelope) -> None:
        """What a router did after a node stands for the node's end."""
        place, arrow, _ = envelope.scope.partition("→")
        if not arrow:
            return
        above, _, segment = place.rpartition("/")
        point = self._graphs.get(above, {}).get(segment.removeprefix("~"))
        if point is not None:
            self._ends[envelope.seq] = point
