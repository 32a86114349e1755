"""Any sequence of operations leaves a store equal to a plain dict of lists."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from accord.errors import FencedError, LogCorruptError, RunLockedError, RunNotFoundError, UsageError
from accord.log.blobs import digest_of
from accord.log.store.base import LEASE_S, Lease, Store
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance.kit import Now, blobs, record

BODIES = [b"", b"a", b"bb", b"ccc" * 1000]

names = st.sampled_from(["a", "b", "flow-2"])
holders = st.sampled_from(["elsewhere/1/1", "other-host/2/2"])
bodies = st.lists(st.sampled_from(BODIES), max_size=2)
any_run = st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.model)))
any_lease = st.runner().flatmap(lambda machine: st.sampled_from(machine.leases))
has_runs = precondition(lambda machine: machine.model)
has_leases = precondition(lambda machine: machine.leases)


@dataclass
class Run:
    """What the store should know of a run."""

    updated: float
    records: list[bytes] = field(default_factory=list[bytes])
    bodies: set[bytes] = field(default_factory=set[bytes])
    lease: Lease | None = None
    expires: float = 0.0


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = Now()
        self.store = self.make(self.now)
        self.model: dict[str, Run] = {}  # oldest first
        self.leases: list[Lease] = []

    def make(self, now_s: Callable[[], float]) -> Store:
        return MemoryStore(now_s)

    def is_held(self, run: Run) -> bool:
        return run.lease is not None and run.expires >= self.now()

    def owned(self, lease: Lease) -> Run | None:
        run = self.model.get(lease.run)
        return run if run is not None and run.lease == lease else None

    @contextmanager
    def unless(self, fault: Any, kind: type[Exception]):
        """The block succeeds, or, if there is a ``fault``, raises ``kind``."""
        if not fault:
            yield
            return
        with pytest.raises(kind):
            yield

    @rule(name=st.none() | names)
    def create(self, name):
        with self.unless(name in self.model, UsageError):
            made = self.store.create(name, "flow")
            assert made not in self.model
            assert name in (None, made)
            self.model[made] = Run(self.now())

    @has_runs
    @rule(name=any_run, holder=holders)
    def acquire(self, name, holder):
        run = self.model[name]
        with self.unless(self.is_held(run), RunLockedError):
            run.lease = self.store.acquire(name, holder)
            run.expires = self.now() + LEASE_S
            run.updated = self.now()
            self.leases.append(run.lease)

    @has_leases
    @rule(lease=any_lease)
    def renew(self, lease):
        run = self.owned(lease)
        with self.unless(run is None, FencedError):
            self.store.renew(lease)
        if run is not None:
            run.expires = self.now() + LEASE_S
            run.updated = self.now()

    @has_leases
    @rule(lease=any_lease)
    def release(self, lease):
        self.store.release(lease)
        if (run := self.owned(lease)) is not None:
            run.lease = None
            run.updated = self.now()

    @has_leases
    @rule(
        lease=any_lease, size=st.integers(0, 3), shift=st.sampled_from([0, 0, 0, -1, 1]), b=bodies
    )
    def append(self, lease, size, shift, b):
        run = self.owned(lease)
        first = (len(run.records) if run else 0) + shift
        batch = [record(seq, lease.holder) for seq in range(first, first + size)]
        with self.unless(run is None or shift, FencedError):
            self.store.append(lease, first, batch, blobs(*b))
            assert run is not None
            run.records += batch
            run.bodies |= set(b)

    @has_leases
    @rule(lease=any_lease, size=st.integers(0, 3), b=bodies)
    def rewrite(self, lease, size, b):
        run = self.owned(lease)
        batch = [record(seq, "rewritten") for seq in range(size)]
        with self.unless(run is None, FencedError):
            self.store.rewrite(lease, batch, blobs(*b))
            assert run is not None
            run.records = batch
            run.bodies = set(b)

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S + 1]))
    def wait(self, seconds):
        self.now.seconds += seconds

    @has_runs
    @rule(name=any_run)
    def delete(self, name):
        with self.unless(self.is_held(self.model[name]), RunLockedError):
            self.store.delete(name)
            del self.model[name]

    @rule(keep=st.none() | st.integers(0, 4), older=st.none() | st.sampled_from([0.0, 20.0]))
    def prune(self, keep, older):
        gone = list(self.model)[::-1][keep or 0 :]
        if keep is None and older is None:
            gone = []
        if older is not None:
            gone = [n for n in gone if self.model[n].updated < self.now() - older]
        gone = [n for n in gone if not self.is_held(self.model[n])]
        pruned = self.store.prune(keep_latest=keep, older_than_s=older)
        assert pruned.runs == len(gone)
        assert pruned.records == sum(len(self.model[n].records) for n in gone)
        for name in gone:
            del self.model[name]

    @has_runs
    @rule(name=any_run, after=st.integers(-1, 5), limit=st.none() | st.integers(0, 3))
    def read_a_page(self, name, after, limit):
        wanted = self.model[name].records[after + 1 :][:limit]
        assert self.store.read(name, after, limit) == wanted

    @has_runs
    @rule(before=any_run, limit=st.integers(1, 3))
    def list_a_page(self, before, limit):
        older = list(self.model)[: list(self.model).index(before)]
        listed = [info.run for info in self.store.runs(before=before, limit=limit)]
        assert listed == older[::-1][:limit]

    @invariant()
    def listing_is_the_model(self):
        listed = [
            (i.run, i.records, i.last, i.held, i.updated_at_s) for i in self.store.runs(limit=1000)
        ]
        wanted = [
            (name, len(run.records), (run.records or [b""])[-1], self.is_held(run), run.updated)
            for name, run in self.model.items()
        ]
        assert listed == wanted[::-1]

    @invariant()
    def records_are_the_model(self):
        for name, run in self.model.items():
            assert self.store.read(name) == run.records
        for name in {"a", "b"} - self.model.keys():
            with pytest.raises(RunNotFoundError):
                self.store.read(name)

    @invariant()
    def a_blob_is_there_as_long_as_a_run_uses_it(self):
        used = {body for run in self.model.values() for body in run.bodies}
        for body in BODIES:
            with self.unless(body not in used, LogCorruptError):
                assert self.store.blob(digest_of(body)) == body

    def teardown(self):
        assert self.store.check() == []
        self.store.close()


class SqliteMachine(StoreMachine):
    def make(self, now_s: Callable[[], float]) -> Store:
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "log.sqlite3"
        return SqliteStore(self.path, now_s=now_s)

    @rule()
    def reopen(self):
        self.store.close()
        self.store = SqliteStore(self.path, now_s=self.now)

    def teardown(self):
        super().teardown()
        self.folder.cleanup()


brief = settings(max_examples=40, stateful_step_count=40)

TestMemory = StoreMachine.TestCase
TestMemory.settings = brief
TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = brief
