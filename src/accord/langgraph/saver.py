"""The checkpointer that LangGraph is given.

Each method is one operation on the log of one thread, whole or not at all, on the thread that
calls it. The asynchronous ones wait for another's lease without blocking their loop; else they do
not wait, so a task that is cancelled has either written or not begun to.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false
# LangGraph is not installed where everything else is checked.

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from accord.clock import WallClock
from accord.errors import RunNotFoundError, UsageError
from accord.langgraph.history import History, Saved
from accord.langgraph.looking import Wanted, deltas_of, saved_by, superseded, tuples_of
from accord.langgraph.pieces import Packer
from accord.langgraph.place import Place, place_of
from accord.langgraph.putting import checkpoint_added, writes_added
from accord.langgraph.thread import Addition, ThreadLog
from accord.langgraph.threads import Threads
from accord.log.store.base import LEASE_S, Durability, Store
from accord.log.store.open import open_store

Decide = Callable[[History], Iterator[Addition]]

PAGE = 128
"""So many checkpoints of a listing are read at once."""


class AccordSaver(BaseCheckpointSaver[Any]):
    """Keeps the threads of LangGraph in ``log``: a path, ``"memory"`` or a store.

    Any number of OS threads, event loops and processes may use one log, or one saver. An operation
    waits up to ``wait_s`` for another process's write to the same thread, then raises
    :class:`accord.errors.RunLockedError`. ``durability`` is ``sync`` (fsync for each write) or
    ``async`` (survives ``kill -9``, not a power cut).
    """

    def __init__(
        self,
        log: Store | Path | str | None = None,
        *,
        serde: SerializerProtocol | None = None,
        durability: Durability = "async",
        wait_s: float = LEASE_S + 5,
    ) -> None:
        super().__init__(serde=serde)
        clock = WallClock()
        self.store = open_store(log, clock=clock, durability=durability)
        threads = self._threads = Threads(self.store, clock, wait_s=wait_s)
        self._thread = threads.find
        self._patiently, self._apatiently = threads.patiently, threads.apatiently

    @contextmanager
    def hold(self, thread_id: str) -> Generator[None]:
        """Keep all others from writing to a thread for the block, such as one ``invoke``.

        Without it, two processes that work on one thread both go on, each on its own branch.
        Raises :class:`accord.errors.RunLockedError` at once if another holds the thread, and
        :class:`accord.errors.FencedError` out of the next write if the lease was lost.
        """
        with self._thread(str(thread_id)).hold():
            yield

    def close(self) -> None:
        """Let go of the log. A later call opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint; gives the config that finds it."""
        self._patiently(self._putting(config, checkpoint, metadata, new_versions))
        return place_of(config).config(checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As :meth:`put`."""
        await self._apatiently(self._putting(config, checkpoint, metadata, new_versions))
        return place_of(config).config(checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task adds to a checkpoint, which need not be there yet."""
        self._patiently(self._putting_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As :meth:`put_writes`."""
        await self._apatiently(self._putting_writes(config, writes, task_id, task_path))

    def _putting(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Callable[[], None]:
        place = place_of(config)
        thread = self._thread(place.thread)

        def decide(history: History) -> Iterator[Addition]:
            return checkpoint_added(
                history,
                Packer(self.serde, thread.blobs, thread.sealed),
                thread.values,
                place=place,
                checkpoint=checkpoint,
                metadata=get_checkpoint_metadata(config, metadata),
                new_versions=new_versions,
            )

        return lambda: thread.append(decide)

    def _putting_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Callable[[], None]:
        place = place_of(config)
        checkpoint = place.checkpoint
        if checkpoint is None:
            raise UsageError(
                f"writes of task {task_id!r} name no checkpoint; "
                "pass the config that put or get_tuple gave"
            )
        thread = self._thread(place.thread)

        def decide(history: History) -> Iterator[Addition]:
            return writes_added(
                history,
                Packer(self.serde, thread.blobs, thread.sealed),
                place=place,
                checkpoint=checkpoint,
                writes=writes,
                task=task_id,
                path=task_path,
            )

        return lambda: thread.append(decide)

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002  # no longer used
        """One more than ``current``, in the form that a copied thread already has.

        No random part, as other savers add: values are found by the checkpoint, not by version.
        """
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}"
        return 1 if current is None else int(current) + 1

    # ------------------------------------------------------------------------------------ reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that ``config`` names, or the latest of its thread and namespace."""
        place = place_of(config)
        thread = self._thread(place.thread)

        def look(history: History) -> CheckpointTuple | None:
            saved = _at(history, place)
            return saved and tuples_of(thread, history, self.serde, place, [saved])[0]

        return thread.read(look)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As :meth:`get_tuple`."""
        return self.get_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  # LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first: of all threads, of one, or of one namespace of it."""
        given = _given(config)
        wanted = Wanted(
            namespace=given.get("checkpoint_ns"),
            only=given.get("checkpoint_id") or None,
            below=_given(before).get("checkpoint_id"),
            metadata=filter or {},
        )
        threads = [str(given["thread_id"])] if "thread_id" in given else self._threads.ids()
        found: list[tuple[str, Place]] = []
        for thread_id in threads:
            thread = self._thread(thread_id)
            found += [
                (saved.event.id, _place_of_saved(thread_id, saved))
                for saved in thread.read(lambda history, of=thread: wanted.of(history, of))
            ]
        found.sort(key=lambda one: one[0], reverse=True)
        places = [place for _, place in found[: None if limit is None else max(limit, 0)]]
        for start in range(0, len(places), PAGE):
            for thread_id, page in groupby(places[start : start + PAGE], lambda one: one.thread):
                yield from self._tuples(thread_id, [*page])

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002  # LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As :meth:`list`."""
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """What each delta channel took in on the way to a checkpoint, since its last value."""
        place = place_of(config)
        thread = self._thread(place.thread)

        def look(history: History) -> Mapping[str, Any]:
            saved = _at(history, place)
            if saved is None:
                return {channel: {"writes": []} for channel in channels}
            return deltas_of(thread, history, self.serde, saved, channels)

        return thread.read(look) if channels else {}

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, Any]:
        """As :meth:`get_delta_channel_history`."""
        return self.get_delta_channel_history(config=config, channels=channels)

    def _tuples(self, thread_id: str, places: Sequence[Place]) -> Sequence[CheckpointTuple]:
        thread = self._thread(thread_id)

        def look(history: History) -> Sequence[CheckpointTuple]:
            there = [history.find(place.namespace, place.checkpoint) for place in places]
            found = [saved for saved in there if saved is not None]
            return tuples_of(thread, history, self.serde, places[0], found)

        return thread.read(look, follow=False)

    # ----------------------------------------------------------------------- removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread, with what only it used."""
        self._patiently(self._deleting(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """As :meth:`delete_thread`."""
        await self._apatiently(self._deleting(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints whose metadata names one of LangGraph's runs."""
        for act in self._deleting_for_runs(run_ids):
            self._patiently(act)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As :meth:`delete_for_runs`."""
        for act in self._deleting_for_runs(run_ids):
            await self._apatiently(act)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Literal["keep_latest", "delete"] | str = "keep_latest",  # noqa: PYI051  # named for people
    ) -> None:
        """Remove all checkpoints but the latest of each namespace, or (``delete``) the threads.

        What delta channels of the latest are made of is kept.
        """
        for act in self._pruning(thread_ids, strategy):
            self._patiently(act)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As :meth:`prune`."""
        for act in self._pruning(thread_ids, strategy):
            await self._apatiently(act)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Add all checkpoints and writes of one thread to another."""
        self._patiently(self._copying(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As :meth:`copy_thread`."""
        await self._apatiently(self._copying(source_thread_id, target_thread_id))

    def _deleting(self, thread_id: str) -> Callable[[], None]:
        def act() -> None:
            thread = self._thread(thread_id)
            if thread.held:
                thread.remove(lambda history: history.all())
                return
            with suppress(RunNotFoundError):
                self.store.delete(thread.run)

        return act

    def _deleting_for_runs(self, run_ids: Sequence[str]) -> Iterator[Callable[[], None]]:
        names = set(run_ids)
        for thread_id in self._threads.ids() if names else ():
            thread = self._thread(thread_id)

            def choose(history: History, of: ThreadLog = thread) -> set[Saved]:
                return saved_by(names, of, history)

            if thread.read(choose):
                yield lambda of=thread, choose=choose: of.remove(choose)

    def _pruning(self, thread_ids: Sequence[str], strategy: str) -> Iterator[Callable[[], None]]:
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"there is no strategy {strategy!r}; use 'keep_latest' or 'delete'")
        for thread_id in thread_ids:
            if strategy == "delete":
                yield self._deleting(str(thread_id))
                continue
            thread = self._thread(str(thread_id))

            def choose(history: History, of: ThreadLog = thread) -> set[Saved]:
                return superseded(history, of.values)

            if thread.read(choose):
                yield lambda of=thread, choose=choose: of.remove(choose)

    def _copying(self, source: str, target: str) -> Callable[[], None]:
        from_thread, to_thread = self._thread(str(source)), self._thread(str(target))

        def act() -> None:
            envelopes, bodies = from_thread.everything()
            if envelopes and from_thread is not to_thread:
                to_thread.append_copy(envelopes, bodies)

        return act


def _at(history: History, place: Place) -> Saved | None:
    if place.checkpoint:
        return history.find(place.namespace, place.checkpoint)
    return history.latest(place.namespace)


def _given(config: RunnableConfig | None) -> Mapping[str, Any]:
    return config.get("configurable", {}) if config else {}


def _place_of_saved(thread_id: str, saved: Saved) -> Place:
    return Place(thread=thread_id, namespace=saved.event.namespace, checkpoint=saved.event.id)
