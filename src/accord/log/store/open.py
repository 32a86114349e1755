"""Which store a user means."""

from __future__ import annotations

import os
from pathlib import Path

from accord.clock import Clock, WallClock
from accord.log.store.base import Durability, Store
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore


def default_path() -> Path:
    """``$ACCORD_LOG``, else ``accord/log.sqlite3`` in the user's data folder."""
    named = os.environ.get("ACCORD_LOG")
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "accord" / "log.sqlite3"


def open_store(log: Store | Path | str | None, *, clock: Clock, durability: Durability) -> Store:
    """A store as it stands, ``"memory"``, a path, or None for :func:`default_path`."""
    if log == "memory":
        return MemoryStore(clock.epoch_s)
    if log is None or isinstance(log, str | Path):
        path = Path(log) if log is not None else default_path()
        # Leases hold between processes, so in real time, even if the run's own is virtual.
        return SqliteStore(path, now_s=WallClock().epoch_s, durability=durability)
    return log
