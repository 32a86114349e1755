"""The checkpoints of one thread, folded from its log.

A checkpoint is saved as what changed against its parent. Which values it has follows from that
alone, never from versions: two branches of a thread may give one channel the same version.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from accord.errors import UnserializableError, UsageError
from accord.langgraph.pieces import Node
from accord.log.events import (
    CheckpointSaved,
    Envelope,
    Event,
    RunStarted,
    SavedWrite,
    Value,
    WritesSaved,
)

FLOW = "langgraph"
WHOLE_EVERY = 32
"""So many checkpoints are read at most to know one."""
STATES_KEPT = 256

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, kw_only=True)
class State:
    """What a checkpoint says of channels and nodes: three tables that grow with the graph."""

    channel_versions: dict[str, Any] = field(default_factory=dict[str, Any])
    versions_seen: dict[str, Any] = field(default_factory=dict[str, Any])
    channel_values: dict[str, Node] = field(default_factory=dict[str, Node])

    def changes_from(self, before: State) -> Value:
        """What makes this of ``before``."""
        changes: dict[str, Any] = {}
        gone: dict[str, list[str]] = {}
        for name, new, old in _tables(self, before):
            changed = {k: v for k, v in new.items() if k not in old or old[k] != v}
            if changed:
                changes[name] = changed
            if lost := [k for k in old if k not in new]:
                gone[name] = lost
        try:
            return Value(msgspec.json.encode(changes | ({"gone": gone} if gone else {})))
        except (UnicodeEncodeError, TypeError) as error:
            raise UnserializableError(
                f"a channel, node or version cannot be recorded ({error}); rename it"
            ) from error

    def changed_by(self, changes: Value) -> State:
        """The state after ``changes``."""
        new: dict[str, Any] = _decode(changes)
        gone: dict[str, list[str]] = new.pop("gone", {})
        tables = {
            name: {k: v for k, v in old.items() if k not in lost} | new.get(name, {})
            for name, _, old in _tables(self, self)
            for lost in [set(gone.get(name, ()))]
        }
        return State(**tables)


def _tables(one: State, other: State) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    yield "channel_versions", one.channel_versions, other.channel_versions
    yield "versions_seen", one.versions_seen, other.versions_seen
    yield "channel_values", one.channel_values, other.channel_values


NOTHING_YET = State()


@dataclass(frozen=True, eq=False)
class Saved:
    """A checkpoint in the log. ``base`` is what its changes refer to."""

    seq: int
    event: CheckpointSaved
    base: Saved | None
    depth: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Pending:
    """A write that waits at a checkpoint for the step to end."""

    task: str
    path: str
    write: SavedWrite
    seq: int

    @property
    def order(self) -> tuple[str, str, int]:
        """LangGraph's ``writes_sort_key``: the order in which a step applies its writes."""
        return self.path, self.task, self.write.index


class History:
    """A fold: the checkpoints of each namespace, and the writes that wait at them."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, Saved]] = {}
        self._pending: dict[tuple[str, str], dict[tuple[str, int], Pending]] = {}
        self._states: dict[Saved, State] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        match envelope.event:
            case CheckpointSaved() as event:
                base = None if event.whole else self.find(event.namespace, event.parent)
                depth = 0 if base is None else base.depth + 1
                saved = Saved(envelope.seq, event, base, depth)
                self.by_namespace.setdefault(event.namespace, {})[event.id] = saved
            case WritesSaved() as event:
                here = self._pending.setdefault((event.namespace, event.checkpoint), {})
                for one in event.writes:
                    here[event.task, one.index] = Pending(
                        task=event.task, path=event.path, write=one, seq=envelope.seq
                    )
            case RunStarted(flow=flow, run=run) if flow != FLOW:
                msg = f"run {run!r} is no LangGraph thread; use another log or another thread_id"
                raise UsageError(msg)
            case _:
                pass

    def all(self) -> set[Saved]:
        """Every checkpoint."""
        return {saved for there in self.by_namespace.values() for saved in there.values()}

    def find(self, namespace: str, checkpoint: str | None) -> Saved | None:
        """A checkpoint by its id."""
        return self.by_namespace.get(namespace, {}).get(checkpoint or "")

    def latest(self, namespace: str) -> Saved | None:
        """The checkpoint with the largest id: LangGraph's ids grow with time."""
        there = self.by_namespace.get(namespace)
        return there[max(there)] if there else None

    def pending(self, namespace: str, checkpoint: str) -> list[Pending]:
        """What waits at a checkpoint, in the order in which it will be applied."""
        here = self._pending.get((namespace, checkpoint), {})
        return sorted(here.values(), key=lambda pending: pending.order)

    def has_write(self, namespace: str, checkpoint: str, task: str, index: int) -> bool:
        """Whether a task's write is there."""
        return (task, index) in self._pending.get((namespace, checkpoint), {})

    def state(self, saved: Saved) -> State:
        """What the checkpoint says of channels and nodes."""
        chain: list[Saved] = []
        at: Saved | None = saved
        while at is not None and at not in self._states:
            chain.append(at)
            at = at.base
        state = NOTHING_YET if at is None else self._states[at]
        if len(self._states) > STATES_KEPT:
            self._states.clear()
        for one in reversed(chain):
            state = self._states[one] = state.changed_by(one.event.changes)
        return state

    def ancestors(self, saved: Saved) -> Iterator[Saved]:
        """The checkpoints that it came from, nearest first."""
        at = self.find(saved.event.namespace, saved.event.parent)
        while at is not None:
            yield at
            at = self.find(at.event.namespace, at.event.parent)


def without(envelopes: list[Envelope], dropped: set[Saved], history: History) -> list[Envelope]:
    """The log as if ``dropped`` had never been, but for the names that others call them by.

    Whatever comes after something dropped gets another number, so whoever has read this log
    before sees that it is another one.
    """
    lost = {(saved.event.namespace, saved.event.id) for saved in dropped}
    seqs = {saved.seq: saved for saved in history.all()}
    kept: list[Envelope] = []
    numbers: dict[int, int] = {}
    for envelope in envelopes:
        event: Event = envelope.event
        match event:
            case CheckpointSaved(namespace=namespace, id=name):
                saved = seqs.get(envelope.seq)
                if saved is None or (namespace, name) in lost:
                    continue  # dropped, or saved again later
                if saved.base is None or saved.base in dropped or saved.base.seq not in numbers:
                    changes = history.state(saved).changes_from(NOTHING_YET)
                    event = msgspec.structs.replace(event, whole=True, changes=changes)
            case WritesSaved(namespace=namespace, checkpoint=name) if (namespace, name) in lost:
                continue
            case _:
                pass
        causes = tuple(numbers[seq] for seq in envelope.causes if seq in numbers)
        if kept and not causes:
            causes = (0,)
        numbers[envelope.seq] = len(kept)
        kept.append(Envelope(len(kept), envelope.at, envelope.scope, causes, event))
    return kept
