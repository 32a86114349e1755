"""Where results are kept: one SQLite file for all processes, or memory.

Rows carry a digest of themselves, so what was changed or damaged is never given out. Where there is
no more room, what was used longest ago goes; uses are numbered, so that needs no clock. They are
written down with what is put, and at the end: a look-up is a read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from shlex import quote
from threading import Lock
from typing import NamedTuple

SUFFIX = ".cache.sqlite3"
"""How a cache is named that is beside a log."""
VERSION = 1
APPLICATION = 0x41434352
"""Marks the file as ours: "ACCR"."""
BUSY_S = 0.05
"""How long another process may hold the file up: the cache is to save time."""
USES_A_PUT, USES_KEPT = 32, 4096
"""Uses that are written down with what is put, where there is room; and that may wait for it."""
SHRINKS_TO = 0.9
DIGEST_BYTES = 12

_SCHEMA = """
CREATE TABLE results (
    key BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    made_s REAL NOT NULL, used INTEGER NOT NULL, size INTEGER NOT NULL,
    digest BLOB NOT NULL, body BLOB NOT NULL
);
CREATE INDEX by_use ON results (used);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL, uses INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 0);
CREATE TRIGGER added AFTER INSERT ON results BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.size;
END;
CREATE TRIGGER removed AFTER DELETE ON results BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.size;
END;
"""
OVERHEAD = 160
"""Bytes that a row takes beside its body, with its places in two indexes."""


class StoreError(Exception):
    """The file is of no use: what is wrong with it, and what mends it.

    It never ends a run: :class:`accord.reuse.results.ResultCache` makes a warning of it.
    """


class StoreUnreadableError(StoreError):
    """What is in the file is of no use to this version of Accord: a new one mends it."""


class StoreBusyError(StoreError):
    """Another process holds the file up: this once, it is done without."""


class Row(NamedTuple):
    """One result: whose, of what, when it was made (seconds since 1970), and what it is."""

    key: bytes
    tenant: str
    kind: str
    name: str
    made_s: float
    body: bytes

    @property
    def digest(self) -> bytes:
        """Of all of it."""
        head = repr(self[:-1]).encode("utf-8", "surrogatepass")
        return blake2b(head + bytes(self.body), digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What there is of one tenant, kind and name, in entries and bytes."""

    tenant: str
    kind: str
    name: str
    entries: int
    bytes: int


class ResultStore:
    """Results in the file ``path``; in memory without one. Opened at the first use.

    Holds at most ``most_bytes``. Raises :class:`StoreError` where the file cannot be used.
    """

    def __init__(self, path: Path | None, most_bytes: int) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self._lock = Lock()
        self._db: sqlite3.Connection | None = None
        self._uses: dict[bytes, None] = {}
        """Keys that were used since this was last written down, in their order."""

    def get(self, key: bytes) -> Row | None:
        """What is kept under ``key``. Raises ``ValueError`` if that is damaged, and drops it."""
        with self._lock:
            with self._using() as db:
                row = _read(db, key)
            if row is not None:
                self._uses.pop(key, None)
                self._uses[key] = None
                if len(self._uses) > USES_KEPT:
                    del self._uses[next(iter(self._uses))]
            return row

    def put(self, row: Row) -> bool:
        """Keep ``row`` in place of what was kept under its key; others may have to go.

        False if it is larger than all that may be kept.
        """
        size = len(row.body) + OVERHEAD
        if size > self.most_bytes:
            return False
        with self._lock, self._using() as db:
            db.execute("BEGIN IMMEDIATE")
            (held,) = db.execute("SELECT bytes FROM totals").fetchone()
            self._write_uses(db, USES_A_PUT if held + size <= self.most_bytes else USES_KEPT)
            db.execute("UPDATE totals SET uses = uses + 1")
            db.execute("DELETE FROM results WHERE key = ?", (row.key,))  # for its trigger
            db.execute(
                "INSERT INTO results SELECT ?, ?, ?, ?, ?, uses, ?, ?, ? FROM totals",
                (*row[:5], size, row.digest, row.body),
            )
            self._shrink(db, row.key)
            db.execute("COMMIT")
        return True

    def drop(self, key: bytes) -> None:
        """Forget what is kept under ``key``."""
        with self._lock, self._using() as db:
            db.execute("DELETE FROM results WHERE key = ?", (key,))

    def kept(self) -> list[Kept]:
        """What there is, the most bytes first."""
        with self._lock, self._using() as db:
            rows = db.execute(
                "SELECT tenant, kind, name, COUNT(*), SUM(size) FROM results"
                " GROUP BY tenant, kind, name ORDER BY SUM(size) DESC, tenant, kind, name"
            )
            return [Kept(tenant=t, kind=k, name=n, entries=e, bytes=b) for t, k, n, e, b in rows]

    def rows(self) -> Iterator[Row]:
        """All that is not damaged, the longest unused first."""
        with self._lock, self._using() as db:
            self._write_uses(db)
            keys = [key for (key,) in db.execute("SELECT key FROM results ORDER BY used")]
        for key in keys:
            try:
                with self._lock, self._using() as db:
                    row = _read(db, key)
            except ValueError:
                continue
            if row is not None:
                yield row

    def clear(self) -> int:
        """Forget everything; gives how many entries there were."""
        with self._lock, self._using() as db:
            entries: int = db.execute("SELECT entries FROM totals").fetchone()[0]
            db.execute("DELETE FROM results")
            db.execute("VACUUM")
            self._uses.clear()
            return entries

    def close(self) -> None:
        """Let go of the file; a later use opens it again."""
        with self._lock:
            if self._db is None or self.path is None:
                return
            with suppress(StoreError), self._using() as db:  # all there is to lose is their order
                self._write_uses(db)
            self._db.close()
            self._db = None

    def __del__(self) -> None:
        if (db := getattr(self, "_db", None)) is not None:
            db.close()

    def _shrink(self, db: sqlite3.Connection, newest: bytes) -> None:
        """Where there is too much, what was used longest ago goes; never the ``newest``."""
        over: int = db.execute("SELECT bytes FROM totals").fetchone()[0] - self.most_bytes
        if over <= 0:
            return
        over += round(self.most_bytes * (1 - SHRINKS_TO))
        keys: list[tuple[bytes]] = []
        others = "SELECT key, size FROM results WHERE key != ? ORDER BY used"
        for key, size in db.execute(others, (newest,)):
            keys.append((key,))
            over -= size
            if over <= 0:
                break
        db.executemany("DELETE FROM results WHERE key = ?", keys)

    def _write_uses(self, db: sqlite3.Connection, most: int = USES_KEPT) -> None:
        """Number what was used since the last time, the first ``most``."""
        uses = list(islice(self._uses, most))
        if not uses:
            return
        for key in uses:
            del self._uses[key]
        begun = db.in_transaction
        if not begun:
            db.execute("BEGIN IMMEDIATE")
        (last,) = db.execute("SELECT uses FROM totals").fetchone()
        numbered = [(last + number, key) for number, key in enumerate(uses, 1)]
        db.executemany("UPDATE results SET used = ? WHERE key = ?", numbered)
        db.execute("UPDATE totals SET uses = ?", (last + len(uses),))
        if not begun:
            db.execute("COMMIT")

    def _opened_file(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _opened(self.path)
        return self._db

    @contextmanager
    def _using(self) -> Generator[sqlite3.Connection]:
        """The connection, opened if need be; its errors as what they mean."""
        db = None
        try:
            db = self._opened_file()
            yield db
        except BaseException as error:
            if db is not None and db.in_transaction:
                db.rollback()
            if isinstance(error, sqlite3.Error | OSError):
                raise _fault(self.path, error) from error
            raise


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    place = ":memory:" if path is None else path
    db = sqlite3.connect(place, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _read(db: sqlite3.Connection, key: bytes) -> Row | None:
    found = db.execute(
        "SELECT tenant, kind, name, made_s, body, digest FROM results WHERE key = ?", (key,)
    ).fetchone()
    if found is None:
        return None
    row = Row(key, *found[:5])
    if not _is_whole(row, found[5]):
        db.execute("DELETE FROM results WHERE key = ?", (key,))
        raise ValueError("a result has been changed or damaged")
    return row


def _is_whole(row: Row, digest: object) -> bool:
    try:
        return row.digest == digest
    except TypeError:  # not even the types are right
        return False


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not version:
        db.execute("BEGIN IMMEDIATE")  # several processes may find a new file at once
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if not version:
            if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise StoreError(f"{path} is another program's database: name another file")
            for statement in _statements():
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise StoreError(f"{path} is another program's database: name another file")
    if version not in (0, VERSION):
        raise StoreUnreadableError(
            f"{path} was written by another version of Accord (cache version {version}, this one "
            f"has {VERSION}): `accord cache clear --store {quote(str(path))}` makes a new one"
        )
    if path is not None:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # what a power cut may cost is made again


def _statements() -> Iterator[str]:
    """The schema's statements; those of a trigger have statements of their own in them."""
    statement = ""
    for line in _SCHEMA.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _fault(path: Path | None, error: Exception) -> StoreError:
    said = str(error)
    if "locked" in said or "busy" in said:
        return StoreBusyError(f"{path} is in use by another process")
    if "not a database" in said or "malformed" in said or "no such table" in said:
        return StoreUnreadableError(f"{path} is damaged ({said}): {_mends(path)}")
    if path is not None and path.is_dir():
        return StoreError(f"{path} is a folder: name a file")
    return StoreError(f"{path} cannot be used ({said}): free space, or fix access")


def _mends(path: Path | None) -> str:
    if path is None or not path.name.endswith(SUFFIX):
        return "remove it, or name another file"
    return f"`accord cache clear --store {quote(str(path))}` makes a new one"
