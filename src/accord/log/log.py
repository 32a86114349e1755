"""The log of one run: append, wait until it is safe, look.

Appending is immediate and never waits: the event has its number and its time, and cursors see
it. Being safe is a second step. Whatever leaves the process (a model request, an effect) first
awaits :meth:`Log.barrier`; all who wait in one turn of the loop share one transaction. What is
not waited for is written at the end of the turn. There is no lock: a log belongs to one loop.

Commits run on the loop's own thread. A hop to another thread costs more than the commit, and
would let the machine's timing order events on a virtual clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from threading import Event as ThreadEvent
from threading import Thread
from typing import Protocol, TypeVar

import msgspec

from accord.clock import Clock
from accord.errors import FencedError, LogCorruptError, LogError
from accord.log.blobs import Blobs
from accord.log.codec import ValueCodec, decode_envelope, encode_envelope
from accord.log.events import Envelope, Event, Written
from accord.log.store.base import LEASE_S, Durability, Lease, Store
from accord.log.waiters import Waiters

OUTSIDE = "outside"
"""Who sends messages that come from outside of the run."""
GROUP_EVENTS = 1024
GROUP_NS = 5_000_000
"""What may wait for the end of the turn, in events and in time, before it is written at once."""


class Fold(Protocol):
    """State read off a log, one event after the other. Made without arguments."""

    def add(self, envelope: Envelope, /) -> None:
        """Take in the next event."""
        ...


F = TypeVar("F", bound=Fold)


class _Kept:
    """A fold, and up to where it has come."""

    __slots__ = ("position", "state")

    def __init__(self, state: Fold) -> None:
        self.state = state
        self.position = 0


@dataclass(frozen=True, kw_only=True)
class LogStatistics:
    """Counts since the log was opened. ``commit_ns`` is time spent in transactions."""

    events: int
    commits: int
    commit_ns: int
    bytes_written: int


class Log:
    """The events of a run, in memory and in its store.

    ``lease`` is None for a log that is only read.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        clock: Clock,
        lease: Lease | None = None,
        durability: Durability = "async",
    ) -> None:
        self.run = run
        self.envelopes: list[Envelope] = [decode_envelope(record) for record in store.read(run)]
        _check_numbers(run, self.envelopes)
        self.values = ValueCodec(blobs := Blobs(store.blob))
        self._blobs = blobs
        self._store = store
        self.lease = lease
        self._clock = clock
        self.durability = durability
        self._saved = len(self.envelopes)
        # The run's clock stands still while nobody runs it.
        last = self.envelopes[-1].at if self.envelopes else 0
        self._zero_ns = clock.now_ns() - last
        self._post: int | None = None
        """The number of the last message taken from the run's post."""
        self._commit_due = False
        self._barriers: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self._watchers = Waiters()
        self._folds: dict[type[Fold], _Kept] = {}
        self._commits = self._commit_ns = self._bytes = 0

    @property
    def failed(self) -> bool:
        """A write has failed, and so will whatever is appended now."""
        return self._failure is not None

    def now(self) -> int:
        """Nanoseconds on the run's clock."""
        return self._clock.now_ns() - self._zero_ns

    def append(self, scope: str, causes: tuple[int, ...], event: Event) -> int:
        """Add an event and give its number. Raises the store's error if an earlier write failed."""
        assert self.lease is not None, "this log was opened to look at"
        if self._failure is not None:
            raise self._failure
        seq, at = len(self.envelopes), self.now()
        self.envelopes.append(Envelope(seq, at, scope, causes, event))
        if self._watchers:
            self._watchers.wake()
        if self.durability != "exit":
            if not self._commit_due:
                self._commit_due = True
                asyncio.get_running_loop().call_soon(self._commit_turn)
            elif self._is_overdue(seq, at):
                self.flush()
        return seq

    @property
    def has_post(self) -> bool:
        """Other processes can send messages to the run."""
        return self._store.is_shared

    def take_post(self) -> bool:
        """Append what has been sent to the run from outside of it; whether there was anything.

        The number of each is recorded with it, so none is taken twice, whenever a crash comes.
        """
        if self._post is None:
            numbers = [e.event.post for e in self.envelopes if isinstance(e.event, Written)]
            self._post = max(numbers, default=0)
        sent = self._store.posted(self.run, self._post)
        for number, name, body in sent:
            self._post = number
            value = self.values.encode(msgspec.json.decode(body), "a message from outside")
            written = Written(
                key=name, value=value, space="mail", how="append", by=OUTSIDE, post=number
            )
            self.append("", (), written)
        return bool(sent)

    async def barrier(self, *, alone: bool = False) -> None:
        """Return when everything appended so far is as safe as the durability promises.

        Waits for the end of the turn, so that others may share the transaction; ``alone`` says
        that there are none. Raises the store's error if it could not be written.
        """
        if self._failure is not None:
            raise self._failure
        if not self._commit_due:
            return
        if alone:
            self.flush()
        else:
            # One future a waiter: a shared one would be cancelled for all by the first.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append(waiter)
            await waiter

    def flush(self) -> None:
        """Write what is pending, now. Raises the store's error, and keeps the events."""
        if self.lease is None or self._saved == len(self.envelopes):
            return
        start_ns = self._clock.now_ns()
        blobs = self._blobs.pending
        try:
            records = [encode_envelope(envelope) for envelope in self.envelopes[self._saved :]]
            self._store.append(self.lease, self._saved, records, blobs)
        except Exception as error:
            self._failure = error
            raise
        self._saved = len(self.envelopes)
        self._bytes += sum(map(len, records)) + sum(map(len, blobs.values()))
        self._blobs.pending = {}
        self._commits += 1
        self._commit_ns += self._clock.now_ns() - start_ns

    def close(self) -> None:
        """Write what is pending and give the lease back."""
        try:
            self.flush()
        finally:
            if self.lease is not None:
                self._store.release(self.lease)

    def fold(self, kind: type[F]) -> F:
        """The state of ``kind`` after all events so far; kept, so each event is folded once."""
        kept = self._folds.get(kind)
        if kept is None:
            kept = self._folds[kind] = _Kept(kind())
        envelopes = self.envelopes
        while kept.position < len(envelopes):
            envelope = envelopes[kept.position]
            kept.position += 1
            kept.state.add(envelope)
        return kept.state  # pyright: ignore[reportReturnType]  # a key of the dict made it

    async def changed(self, seen: int) -> None:
        """Return when there are more than ``seen`` events."""
        while len(self.envelopes) <= seen:
            await self._watchers.wait()

    def statistics(self) -> LogStatistics:
        """What writing has cost."""
        return LogStatistics(
            events=len(self.envelopes),
            commits=self._commits,
            commit_ns=self._commit_ns,
            bytes_written=self._bytes,
        )

    def _is_overdue(self, seq: int, at: int) -> bool:
        """A turn of the loop may be long, if nothing in it waits."""
        waiting = seq - self._saved
        return waiting >= GROUP_EVENTS or (
            waiting > 0 and at - self.envelopes[self._saved].at > GROUP_NS
        )

    def _commit_turn(self) -> None:
        self._commit_due = False
        waiters, self._barriers = self._barriers, []
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001  # kept in _failure: whoever appends next is told, too
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        else:
            _release(waiters)


def _check_numbers(run: str, envelopes: list[Envelope]) -> None:
    for number, envelope in enumerate(envelopes):
        if envelope.seq != number:
            raise LogCorruptError(f"run {run!r}: record {number} is missing; run `accord doctor`")


def _release(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Heartbeat:
    """Keeps a lease while its run lives, from a thread: a busy loop must not lose it."""

    def __init__(self, store: Store, lease: Lease, *, every_s: float = LEASE_S / 3) -> None:
        self._store = store
        self._lease = lease
        self._every_s = every_s
        self._stop = ThreadEvent()
        self._thread = Thread(target=self._beat, daemon=True, name=f"accord-lease-{lease.run}")
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._store.renew(self._lease)
            except FencedError:
                return  # the run's next write says so where it matters
            except LogError:
                continue  # a full disk may have room again before the lease runs out


def read_log(store: Store, run: str, clock: Clock) -> Log:
    """The log of ``run``, to look at."""
    return Log(store, run, clock=clock)
