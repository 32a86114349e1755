"""Checkpoints as LangGraph wants to see them, and which of them it asks for."""
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# LangGraph is not installed where everything else is checked.

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from langgraph.checkpoint.base import CheckpointTuple

from accord.langgraph.history import History, Pending, Saved, State
from accord.langgraph.pieces import Node, Serde, Unpacker
from accord.langgraph.place import Place
from accord.langgraph.thread import ThreadLog
from accord.log.codec import ValueCodec
from accord.log.events import CheckpointSaved

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which checkpoints of a thread a listing shows."""

    namespace: str | None = None
    only: str | None = None
    below: str | None = None
    metadata: Mapping[str, Any]

    def of(self, history: History, thread: ThreadLog) -> list[Saved]:
        """Those that fit, in no order."""
        found = [saved for saved in history.all() if self._names(saved.event)]
        if not self.metadata:
            return found
        bodies = thread.fetch((), [saved.event.metadata for saved in found])
        codec = thread.codec(bodies)
        return [saved for saved in found if self._matches(codec.decode(saved.event.metadata))]

    def _names(self, saved: CheckpointSaved) -> bool:
        return (
            self.namespace in (None, saved.namespace)
            and self.only in (None, saved.id)
            and (self.below is None or saved.id < self.below)
        )

    def _matches(self, metadata: Mapping[str, Any]) -> bool:
        return all(metadata.get(key) == value for key, value in self.metadata.items())


@dataclass(frozen=True, kw_only=True)
class _Found:
    saved: Saved
    state: State
    pending: list[Pending]


def tuples_of(
    thread: ThreadLog, history: History, serde: Serde, place: Place, wanted: Sequence[Saved]
) -> list[CheckpointTuple]:
    """The checkpoints in full, for one look at the store a level of pieces.

    ``place`` names the thread.
    """
    found = [
        _Found(
            saved=saved,
            state=history.state(saved),
            pending=history.pending(saved.event.namespace, saved.event.id),
        )
        # Oldest first: each is then one step from one that is known.
        for saved in sorted(wanted, key=lambda saved: saved.seq)
    ]
    nodes: list[Node] = []
    values: list[msgspec.Raw] = []
    for one in found:
        nodes += one.state.channel_values.values()
        nodes += [_decode(pending.write.value) for pending in one.pending]
        values += [one.saved.event.rest, one.saved.event.metadata]
    bodies = thread.fetch(nodes, values)
    unpacker, codec = Unpacker(serde, bodies), thread.codec(bodies)
    made = {one.saved: _tuple(one, unpacker, codec, place.thread) for one in found}
    return [made[saved] for saved in wanted]


def _tuple(one: _Found, unpacker: Unpacker, codec: ValueCodec, thread: str) -> CheckpointTuple:
    event, state = one.saved.event, one.state
    place = Place(thread=thread, namespace=event.namespace, checkpoint=event.id)
    checkpoint: Any = {
        **codec.decode(event.rest),
        "id": event.id,
        "channel_versions": dict(state.channel_versions),
        "versions_seen": {node: dict(seen) for node, seen in state.versions_seen.items()},
        "channel_values": {
            channel: unpacker.unpack(node) for channel, node in state.channel_values.items()
        },
    }
    return CheckpointTuple(
        config=place.config(),
        checkpoint=checkpoint,
        metadata=codec.decode(event.metadata),
        parent_config=place.config(event.parent) if event.parent else None,
        pending_writes=[
            (pending.task, pending.write.channel, unpacker.unpack(_decode(pending.write.value)))
            for pending in one.pending
        ],
    )


def deltas_of(
    thread: ThreadLog, history: History, serde: Serde, saved: Saved, channels: Sequence[str]
) -> dict[str, Any]:
    """What each channel took in on the way to ``saved``, since its last stored value.

    As ``BaseCheckpointSaver.get_delta_channel_history`` promises: ancestors only, oldest first.
    """
    seeds: dict[str, Node] = {}
    writes: dict[str, list[Pending]] = {channel: [] for channel in channels}
    for one in history.ancestors(saved):
        open_channels = writes.keys() - seeds.keys()
        if not open_channels:
            break
        for pending in reversed(history.pending(one.event.namespace, one.event.id)):
            if pending.write.channel in open_channels:
                writes[pending.write.channel].append(pending)
        values = history.state(one).channel_values
        seeds.update((channel, values[channel]) for channel in open_channels & values.keys())
    nodes = {p: _decode(p.write.value) for found in writes.values() for p in found}
    unpack = Unpacker(serde, thread.fetch([*seeds.values(), *nodes.values()], ())).unpack
    return {
        channel: {"writes": [(p.task, channel, unpack(nodes[p])) for p in reversed(found)]}
        | ({"seed": unpack(seeds[channel])} if channel in seeds else {})
        for channel, found in writes.items()
    }


def saved_by(runs: Collection[str], thread: ThreadLog, history: History) -> set[Saved]:
    """The checkpoints whose metadata names one of LangGraph's ``runs``."""
    everything = history.all()
    codec = thread.codec(thread.fetch((), [saved.event.metadata for saved in everything]))
    return {
        saved for saved in everything if codec.decode(saved.event.metadata).get("run_id") in runs
    }


def superseded(history: History, codec: ValueCodec) -> set[Saved]:
    """All but the latest of each namespace, and what its delta channels are made of."""
    kept: set[Saved] = set()
    for namespace in history.by_namespace:
        latest = history.latest(namespace)
        assert latest is not None
        kept.add(latest)
        deltas: Any = codec.decode(latest.event.metadata).get("counters_since_delta_snapshot")
        missing = set(deltas or ()) - history.state(latest).channel_values.keys()
        for one in history.ancestors(latest):
            if not missing:
                break
            kept.add(one)
            missing -= history.state(one).channel_values.keys()
    return history.all() - kept
