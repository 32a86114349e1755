"""Which cache a user means."""

from __future__ import annotations

from pathlib import Path

from accord.clock import Clock
from accord.log.store.base import Store
from accord.log.store.sqlite import SqliteStore
from accord.reuse.results import ResultCache

SUFFIX = ".cache.sqlite3"


def open_results(named: ResultCache | Path | str | None, store: Store, clock: Clock) -> ResultCache:
    """A cache as it stands, ``"memory"``, a path; or None: beside the log, in memory if that is."""
    if isinstance(named, ResultCache):
        return named
    if named is None and isinstance(store, SqliteStore):
        named = beside(store.path)
    if named is None or named == "memory":
        return ResultCache(now_s=clock.epoch_s)
    return ResultCache(named)  # shared by processes, so in real time


def beside(log: Path) -> Path:
    """The cache that goes with a log."""
    return log.with_name(log.stem + SUFFIX)
