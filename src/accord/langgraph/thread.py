"""The log of one thread: followed, appended to under its lease, written anew without a part.

The lease is taken for each operation and given back: a graph tells nobody when it is done, and
any process may go on with a thread. Who is killed in between leaves a lease that the next one
sees to be dead, at once on this machine, after ``LEASE_S`` elsewhere. :meth:`ThreadLog.hold` keeps
it for longer.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TypeVar

import msgspec

from accord._version import __version__
from accord.clock import NANOSECONDS, Clock
from accord.errors import (
    FencedError,
    LogCorruptError,
    LogError,
    RunLockedError,
    RunNotFoundError,
    UsageError,
)
from accord.langgraph.history import FLOW, NOTHING_YET, History, Saved, without
from accord.langgraph.pieces import Node, blobs_of
from accord.log.blobs import Blobs
from accord.log.codec import ValueCodec, blobs_in, decode_envelope, encode_envelope, printable
from accord.log.events import (
    NOTHING,
    CheckpointSaved,
    Envelope,
    Event,
    RunStarted,
    Value,
    WritesSaved,
)
from accord.log.log import Heartbeat
from accord.log.store.base import Lease, Store
from accord.log.store.holder import this_process

T = TypeVar("T")
Addition = tuple[tuple[int, ...], Event]
"""An event with its causes; none means the thread's beginning."""

_decode = msgspec.json.Decoder().decode


def _of_graphs(envelopes: Iterable[Envelope]) -> list[Envelope]:
    return [one for one in envelopes if isinstance(one.event, CheckpointSaved | WritesSaved)]


def run_of(thread: str) -> str:
    """The name of a thread's run."""
    if printable(thread) == thread:
        return f"thread:{thread}"
    return f"thread-base64:{base64.b64encode(thread.encode('utf-8', 'surrogatepass')).decode()}"


def thread_of(run: str) -> str:
    """The thread whose run has this name."""
    kind, _, name = run.partition(":")
    if kind == "thread":
        return name
    return base64.b64decode(name).decode("utf-8", "surrogatepass")


class ThreadLog:
    """One thread as this process knows it. Any OS thread may use it."""

    def __init__(self, store: Store, run: str, clock: Clock) -> None:
        self.run = run
        self.lock = RLock()
        self._store = store
        self._clock = clock
        self._held: Lease | None = None
        self._forget()

    @property
    def held(self) -> bool:
        """Whether :meth:`hold` keeps its lease."""
        return self._held is not None

    def read(self, look: Callable[[History], T], *, follow: bool = True) -> T:
        """What ``look`` sees in the thread as it is now, or as it was when it was last followed."""
        with self.lock:
            if follow or not self._count:
                self._follow()
            try:
                return look(self.history)
            except LogCorruptError:  # written anew by another since it was followed?
                self._forget()
                self._follow()
                return look(self.history)

    def append(self, decide: Callable[[History], Iterable[Addition]]) -> None:
        """Append what ``decide`` makes of the thread as it is now: all of it, or nothing.

        Raises :class:`accord.errors.RunLockedError` while another process writes.
        """
        with self.lock, self._leased() as lease, self._careful():
            envelopes: list[Envelope] = []
            began_s, now_s = self._began_s, self._clock.epoch_s()
            if not self._count:
                envelopes.append(Envelope(0, 0, "", (), self._begin(now_s)))
                began_s = now_s
            at = max(self._at, int((now_s - began_s) * NANOSECONDS))
            first = len(envelopes) + self._count
            envelopes += [
                Envelope(seq, at, "", causes or (0,), event)
                for seq, (causes, event) in enumerate(decide(self.history), first)
            ]
            if first == self._count + len(envelopes):
                return
            records = [encode_envelope(envelope) for envelope in envelopes]
            self._store.append(lease, self._count, records, self.blobs.pending)
            self.blobs.pending = {}
            self._take(records)

    def remove(self, choose: Callable[[History], set[Saved]]) -> None:
        """Write the log anew without the checkpoints that ``choose`` names, and their writes."""
        with self.lock, self._leased() as lease, self._careful():
            dropped = choose(self.history)
            if not dropped:
                return
            envelopes = [decode_envelope(record) for record in self._store.read(self.run)]
            kept = without(envelopes, dropped, self.history)
            bodies = self.bodies_of(kept)
            records = [encode_envelope(envelope) for envelope in kept]
            self._store.rewrite(lease, records, bodies)
            self._forget()

    def everything(self) -> tuple[list[Envelope], dict[str, bytes]]:
        """All events, with all blobs that they refer to."""
        with self.lock:
            self._follow()
            try:
                envelopes = [decode_envelope(record) for record in self._store.read(self.run)]
            except RunNotFoundError:
                envelopes = []
            return envelopes, self.bodies_of(envelopes)

    def append_copy(self, envelopes: list[Envelope], bodies: dict[str, bytes]) -> None:
        """Append the checkpoints and writes of another thread, whose blobs are ``bodies``."""

        def decide(_: History) -> Iterable[Addition]:
            self.blobs.pending.update(bodies)
            numbers: dict[int, int] = {}
            for seq, envelope in enumerate(_of_graphs(envelopes), max(self._count, 1)):
                numbers[envelope.seq] = seq
                causes = tuple(numbers[cause] for cause in envelope.causes if cause)
                yield causes, envelope.event

        self.append(decide)

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep the lease for the block; ``RunLockedError`` at once if another has it."""
        with self.lock:
            lease = self._acquire()
            self._held = lease
        heartbeat = Heartbeat(self._store, lease)
        try:
            yield
        finally:
            heartbeat.stop()
            with self.lock:
                self._held = None
                self._store.release(lease)

    def fetch(self, nodes: Iterable[Node], values: Iterable[Value]) -> dict[str, bytes]:
        """The blobs of nodes and values, in one look a level."""
        bodies: dict[str, bytes] = {}
        blobs_of(nodes, bodies, self._store.blobs)
        return bodies | blobs_in(map(bytes, values), self._store.blobs)

    def codec(self, bodies: dict[str, bytes]) -> ValueCodec:
        """What reads values whose blobs were fetched."""
        return ValueCodec(Blobs(lambda digest: bodies.get(digest) or self._store.blob(digest)))

    def bodies_of(self, envelopes: Iterable[Envelope]) -> dict[str, bytes]:
        """All blobs that the events refer to."""
        nodes: list[Node] = []
        values: list[Value] = []
        for envelope in envelopes:
            match envelope.event:
                case CheckpointSaved() as saved:
                    values += [saved.rest, saved.metadata]
                    nodes += NOTHING_YET.changed_by(saved.changes).channel_values.values()
                case WritesSaved(writes=writes):
                    nodes += [_decode(write.value) for write in writes]
                case _:
                    pass
        return self.fetch(nodes, values)

    def _begin(self, now_s: float) -> RunStarted:
        return RunStarted(
            run=self.run,
            flow=FLOW,
            input=NOTHING,
            began_s=now_s,
            engine="",
            seed=0,
            version=__version__,
        )

    def _forget(self) -> None:
        self.history = History()
        self.blobs = Blobs(self._store.blob)
        self.values = ValueCodec(self.blobs)
        self.sealed: dict[str, str] = {}
        self._count = self._at = 0
        self._began_s = 0.0
        self._last = b""

    def _follow(self) -> None:
        """Take in what others have appended; start again if they wrote the log anew."""
        try:
            records = self._store.read(self.run, max(self._count - 1, 0) - 1)
        except RunNotFoundError:
            self._forget()
            return
        if not self._count:
            self._take(records)
        elif records[:1] == [self._last]:
            self._take(records[1:])
        else:
            self._forget()
            self._take(self._store.read(self.run))

    def _take(self, records: list[bytes]) -> None:
        for record in records:
            envelope = decode_envelope(record)
            if envelope.seq != self._count:
                msg = f"run {self.run!r}: record {self._count} is missing; run `accord doctor`"
                raise LogCorruptError(msg)
            if isinstance(envelope.event, RunStarted):
                self._began_s = envelope.event.began_s
            self.history.add(envelope)
            self._count, self._at, self._last = self._count + 1, envelope.at, record

    @contextmanager
    def _leased(self) -> Generator[Lease]:
        if self._held is not None:
            yield self._held
            return
        lease = self._acquire()
        try:
            yield lease
        except FencedError as error:
            # This process stood still for longer than a lease lives; nothing was written.
            raise RunLockedError(str(error)) from error
        finally:
            with suppress(LogError):  # what was written is written; the lease runs out by itself
                self._store.release(lease)

    def _acquire(self) -> Lease:
        holder = this_process()
        try:
            return self._store.acquire(self.run, holder)
        except RunNotFoundError:
            with suppress(UsageError):  # another was faster
                self._store.create(self.run, FLOW)
            return self._store.acquire(self.run, holder)

    @contextmanager
    def _careful(self) -> Generator[None]:
        """What failed half-way has left pending blobs behind: begin again from the log."""
        try:
            self._follow()
            yield
        except BaseException:
            self._forget()
            raise
