"""What a store of logs promises.

A store keeps runs. A run is a numbered list of records (bytes) and the blobs that they refer
to. One process at a time may write a run: it holds the run's :class:`Lease`, whose token only
grows, and a writer with an old token is refused.

Methods block and may be called from any thread. All raise :mod:`accord.errors` ``LogError``
branches. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Durability = Literal["sync", "async", "exit"]
"""When a record is safe.

``sync``: on the disk (fsync) before the next call begins.
``async``: with the operating system before anything that depends on it is seen outside (a request,
an effect), else in groups, a few milliseconds behind. Survives ``kill -9``, not a power cut.
``exit``: when the run ends; a crash loses the run.
"""

LEASE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to write ``run``. ``token`` grows with each holder (a fencing token)."""

    run: str
    token: int
    holder: str


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A line of a listing. ``last`` is the last record, ``held`` says that its lease is alive.

    ``updated_at_s`` is when the lease was last taken, renewed or given back.
    """

    run: str
    flow: str
    created_at_s: float
    updated_at_s: float
    records: int
    last: bytes
    held: bool


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a prune removed."""

    runs: int
    records: int
    blobs: int


class Store(Protocol):
    """A keeper of runs."""

    def create(self, run: str | None, flow: str) -> str:
        """Make a run and give its name: ``run``, or ``flow`` with a serial number.

        Raises ``UsageError`` if ``run`` is taken.
        """
        ...

    def acquire(self, run: str, holder: str) -> Lease:
        """Take the run's lease; ``RunLockedError`` while a live holder has it."""
        ...

    def renew(self, lease: Lease) -> None:
        """Keep the lease for another ``LEASE_S``; ``FencedError`` if it is lost."""
        ...

    def release(self, lease: Lease) -> None:
        """Give the lease back. Nothing happens if it is lost already."""
        ...

    def append(
        self, lease: Lease, first: int, records: Sequence[bytes], blobs: Mapping[str, bytes]
    ) -> None:
        """Add records numbered from ``first`` and their new blobs: all, or nothing.

        Raises ``FencedError`` if the lease is lost, ``LogWriteError`` if the disk refuses.
        """
        ...

    def read(self, run: str, after: int = -1, limit: int | None = None) -> list[bytes]:
        """Records numbered above ``after``, in order; ``RunNotFoundError`` if there is no run."""
        ...

    @property
    def is_shared(self) -> bool:
        """Other processes can open it."""
        ...

    def post(self, run: str, name: str, body: bytes) -> int:
        """Keep a message (plain JSON) for the run, whoever holds it; its number, which grows.

        The run's writer takes it into the log. Raises ``RunNotFoundError``.
        """
        ...

    def posted(self, run: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        """Messages kept for the run with numbers above ``after``: number, name and body."""
        ...

    def blob(self, digest: str) -> bytes:
        """A blob's bytes; ``LogCorruptError`` if it is missing."""
        ...

    def blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        """Many blobs in one look; ``LogCorruptError`` if one of them is missing."""
        ...

    def rewrite(self, lease: Lease, records: Sequence[bytes], blobs: Mapping[str, bytes]) -> None:
        """Put ``records``, numbered from 0, in place of all that the run has: all, or nothing.

        For a log that has no end and of which a part may go. ``blobs`` are all that the records
        refer to; what only this run used, and they do not, is removed. Raises as ``append``.
        """
        ...

    def runs(self, *, before: str | None = None, limit: int = 50) -> list[RunInfo]:
        """A page of runs, newest first, those made before the run ``before``."""
        ...

    def info(self, run: str) -> RunInfo:
        """The listing's line of ``run``; ``RunNotFoundError`` if there is none."""
        ...

    def delete(self, run: str) -> Pruned:
        """Remove a run and the blobs that only it used; ``RunLockedError`` while it is held."""
        ...

    def prune(self, *, keep_latest: int | None = None, older_than_s: float | None = None) -> Pruned:
        """Remove runs that are neither held, nor among the newest, nor updated since."""
        ...

    def check(self) -> list[str]:
        """Faults found by reading everything; empty if there are none."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
