"""What is appended for a checkpoint and for a task's writes, given the thread so far."""
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# LangGraph is not installed where everything else is checked.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP

from accord.langgraph.history import NOTHING_YET, WHOLE_EVERY, History, State
from accord.langgraph.pieces import Node, Packer
from accord.langgraph.place import Place
from accord.langgraph.thread import Addition
from accord.log.codec import ValueCodec
from accord.log.events import CheckpointSaved, SavedWrite, Value, WritesSaved

TABLES = ("channel_versions", "versions_seen", "channel_values")


def checkpoint_added(
    history: History,
    packer: Packer,
    codec: ValueCodec,
    *,
    place: Place,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    new_versions: Mapping[str, Any],
) -> Iterator[Addition]:
    """The event of a checkpoint, whose parent is the one that ``place`` names.

    Its causes are the parent and the writes that waited there.
    """
    parent = history.find(place.namespace, place.checkpoint)
    before = NOTHING_YET if parent is None else history.state(parent)
    after = _state_of(checkpoint, new_versions, before, packer.pack)
    whole = parent is None or parent.depth + 1 >= WHOLE_EVERY
    rest = {k: v for k, v in checkpoint.items() if k != "id" and k not in TABLES}
    causes: set[int] = set()
    if parent is not None:
        waiting = history.pending(place.namespace, parent.event.id)
        causes = {parent.seq, *(pending.seq for pending in waiting)}
    yield (
        tuple(sorted(causes)),
        CheckpointSaved(
            id=checkpoint["id"],
            namespace=place.namespace,
            parent=place.checkpoint or "",
            whole=whole,
            changes=after.changes_from(NOTHING_YET if whole else before),
            rest=codec.encode(rest, "the checkpoint"),
            metadata=codec.encode(dict(metadata), "the checkpoint's metadata"),
        ),
    )


def writes_added(
    history: History,
    packer: Packer,
    *,
    place: Place,
    checkpoint: str,
    writes: Sequence[tuple[str, Any]],
    task: str,
    path: str,
) -> Iterator[Addition]:
    """The event of those of a task's writes that are not there yet, if there are any.

    A task that ran twice has added what it added first; its errors and interrupts are replaced.
    """
    namespace = place.namespace
    new: list[SavedWrite] = []
    for number, (channel, value) in enumerate(writes):
        index: int = WRITES_IDX_MAP.get(channel, number)
        if index < 0 or not history.has_write(namespace, checkpoint, task, index):
            node = msgspec.json.encode(packer.pack(value))
            new.append(SavedWrite(index, channel, Value(node)))
    if new:
        at = history.find(namespace, checkpoint)
        event = WritesSaved(
            checkpoint=checkpoint, namespace=namespace, task=task, path=path, writes=tuple(new)
        )
        yield (() if at is None else (at.seq,), event)


def _state_of(
    checkpoint: Mapping[str, Any],
    new_versions: Mapping[str, Any],
    before: State,
    pack: Callable[[Any], Node],
) -> State:
    """The checkpoint's tables. A value that is no newer than the parent's is the parent's."""
    versions: dict[str, Any] = checkpoint["channel_versions"]
    values: dict[str, Any] = checkpoint["channel_values"]

    def inherited(channel: str) -> bool:
        return (
            channel not in new_versions
            and channel in before.channel_values
            and before.channel_versions.get(channel) == versions.get(channel)
        )

    nodes = {
        channel: before.channel_values[channel] if inherited(channel) else pack(value)
        for channel, value in values.items()
    }
    for channel in versions:
        if channel not in values and inherited(channel):
            nodes[channel] = before.channel_values[channel]
    return State(
        channel_versions=dict(versions),
        versions_seen={node: dict(seen) for node, seen in checkpoint["versions_seen"].items()},
        channel_values=nodes,
    )
