"""Runs in this process's memory: for tests, simulations and runs that nobody resumes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

from accord.errors import (
    FencedError,
    LogCorruptError,
    RunLockedError,
    RunNotFoundError,
    UsageError,
)
from accord.log.blobs import digest_of
from accord.log.store.base import LEASE_S, Lease, Pruned, RunInfo
from accord.log.store.holder import surely_dead, this_process


@dataclass
class _Run:
    flow: str
    created_at_s: float
    updated_at_s: float
    records: list[bytes] = field(default_factory=list[bytes])
    digests: set[str] = field(default_factory=set[str])
    posts: list[tuple[int, str, bytes]] = field(default_factory=list[tuple[int, str, bytes]])
    token: int = 0
    holder: str | None = None
    expires_at_s: float = 0.0


class MemoryStore:
    """A store that ends with the process; the reference for what a store does.

    ``now_s`` gives seconds since 1970. A lease held by this process does not expire: the two
    end together.
    """

    def __init__(self, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self._now_s = now_s
        self._runs: dict[str, _Run] = {}
        self._blobs: dict[str, bytes] = {}
        self._serial = 0
        self._lock = RLock()

    def create(self, run: str | None, flow: str) -> str:
        with self._lock:
            if run in self._runs:
                msg = f"a run named {run!r} exists; resume it or choose another name"
                raise UsageError(msg)
            self._serial += 1
            name = run or f"{flow}-{self._serial}"
            while name in self._runs:
                name += "x"  # someone gave a run this very name
            now_s = self._now_s()
            self._runs[name] = _Run(flow, now_s, now_s)
            return name

    def acquire(self, run: str, holder: str) -> Lease:
        with self._lock:
            found = self._find(run)
            if self._is_held(found):
                msg = f"run {run!r} is being written by {found.holder}; wait for it to end"
                raise RunLockedError(msg)
            found.token += 1
            found.holder = holder
            self._keep(found)
            return Lease(run=run, token=found.token, holder=holder)

    def renew(self, lease: Lease) -> None:
        with self._lock:
            self._keep(self._fence(lease))

    def release(self, lease: Lease) -> None:
        with self._lock:
            found = self._runs.get(lease.run)
            if found is not None and _is_of(found, lease):
                found.holder = None
                found.updated_at_s = self._now_s()

    def append(
        self, lease: Lease, first: int, records: Sequence[bytes], blobs: Mapping[str, bytes]
    ) -> None:
        with self._lock:
            found = self._fence(lease)
            if first != len(found.records):
                msg = (
                    f"run {lease.run!r} has {len(found.records)} records, not {first}: another "
                    f"writes it, so this one has stopped; see `accord show {lease.run}`"
                )
                raise FencedError(msg)
            found.records.extend(records)
            found.digests.update(blobs)
            self._blobs.update(blobs)

    def read(self, run: str, after: int = -1, limit: int | None = None) -> list[bytes]:
        with self._lock:
            end = None if limit is None else after + 1 + limit
            return self._find(run).records[after + 1 : end]

    @property
    def is_shared(self) -> bool:
        return False

    def post(self, run: str, name: str, body: bytes) -> int:
        with self._lock:
            posts = self._find(run).posts
            posts.append((len(posts) + 1, name, body))
            return len(posts)

    def posted(self, run: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        with self._lock:
            return self._find(run).posts[after:]

    def blob(self, digest: str) -> bytes:
        try:
            return self._blobs[digest]
        except KeyError:
            msg = f"blob {digest} is missing from this log; the run that needs it must start anew"
            raise LogCorruptError(msg) from None

    def blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        return {digest: self.blob(digest) for digest in digests}

    def rewrite(self, lease: Lease, records: Sequence[bytes], blobs: Mapping[str, bytes]) -> None:
        with self._lock:
            found = self._fence(lease)
            found.records = list(records)
            found.digests = set(blobs)
            self._blobs.update(blobs)
            self._remove_orphans()

    def runs(self, *, before: str | None = None, limit: int = 50) -> list[RunInfo]:
        with self._lock:
            names = list(self._runs)
            if before is not None:
                self._find(before)
                names = names[: names.index(before)]
            return [self._info(name) for name in names[::-1][:limit]]

    def info(self, run: str) -> RunInfo:
        with self._lock:
            self._find(run)
            return self._info(run)

    def delete(self, run: str) -> Pruned:
        with self._lock:
            found = self._find(run)
            if self._is_held(found):
                msg = f"run {run!r} is being written by {found.holder}; delete it afterwards"
                raise RunLockedError(msg)
            return self._remove([run])

    def prune(self, *, keep_latest: int | None = None, older_than_s: float | None = None) -> Pruned:
        if keep_latest is None and older_than_s is None:
            return Pruned(runs=0, records=0, blobs=0)
        with self._lock:
            names = list(self._runs)[::-1][keep_latest or 0 :]
            if older_than_s is not None:
                limit_s = self._now_s() - older_than_s
                names = [name for name in names if self._runs[name].updated_at_s < limit_s]
            return self._remove([name for name in names if not self._is_held(self._runs[name])])

    def check(self) -> list[str]:
        with self._lock:
            missing = [
                f"run {name!r}: blob {digest} is missing"
                for name, run in self._runs.items()
                for digest in sorted(run.digests - self._blobs.keys())
            ]
            return missing + [
                f"blob {digest}: its bytes have changed"
                for digest, body in self._blobs.items()
                if digest_of(body) != digest
            ]

    def close(self) -> None:
        """Nothing to let go of."""

    def _find(self, run: str) -> _Run:
        try:
            return self._runs[run]
        except KeyError:
            msg = f"there is no run {run!r} in this log; `accord runs` lists them"
            raise RunNotFoundError(msg) from None

    def _is_held(self, run: _Run) -> bool:
        if run.holder is None or run.holder == this_process():
            return run.holder is not None
        return run.expires_at_s >= self._now_s() and not surely_dead(run.holder)

    def _keep(self, run: _Run) -> None:
        run.updated_at_s = self._now_s()
        run.expires_at_s = run.updated_at_s + LEASE_S

    def _fence(self, lease: Lease) -> _Run:
        found = self._runs.get(lease.run)
        if found is None or not _is_of(found, lease):
            msg = (
                f"run {lease.run!r} was taken over by another process, so this one has stopped; "
                f"`accord show {lease.run}` tells how far the other is"
            )
            raise FencedError(msg)
        return found

    def _info(self, name: str) -> RunInfo:
        run = self._runs[name]
        return RunInfo(
            run=name,
            flow=run.flow,
            created_at_s=run.created_at_s,
            updated_at_s=run.updated_at_s,
            records=len(run.records),
            last=run.records[-1] if run.records else b"",
            held=self._is_held(run),
        )

    def _remove(self, names: list[str]) -> Pruned:
        removed = [self._runs.pop(name) for name in names]
        records = sum(len(run.records) for run in removed)
        return Pruned(runs=len(removed), records=records, blobs=self._remove_orphans())

    def _remove_orphans(self) -> int:
        used = {digest for run in self._runs.values() for digest in run.digests}
        orphans = [digest for digest in self._blobs if digest not in used]
        for digest in orphans:
            del self._blobs[digest]
        return len(orphans)


def _is_of(run: _Run, lease: Lease) -> bool:
    # The token alone would do, but for a run that was deleted and made again.
    return (run.token, run.holder) == (lease.token, lease.holder)
