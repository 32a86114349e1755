"""Which cache a user means."""

from __future__ import annotations

from pathlib import Path

from accord.clock import Clock
from accord.log.store.base import Store
from accord.log.store.sqlite import SqliteStore
from accord.reuse.results import ResultCache
from accord.reuse.store import APPLICATION, SUFFIX

_SQLITE = b"SQLite format 3\0"
_HEADER_BYTES = 100
_APPLICATION = slice(68, 72)
"""Where a database says whose it is: https://sqlite.org/fileformat.html#application_id."""


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


def is_cache(path: Path) -> bool:
    """Whether a file is a cache by our mark in it, or where none can be read, by its name."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if header.startswith(_SQLITE) and len(header) == _HEADER_BYTES:
        return int.from_bytes(header[_APPLICATION]) == APPLICATION
    return path.name.endswith(SUFFIX)
