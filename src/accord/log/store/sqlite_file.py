"""The SQLite file under a store: its tables, how it is opened and checked, what its errors mean.

Opening is safe for any number of processes that find the same new file at once. What is not
ours is refused: a newer version's file, another program's, no database at all.
"""

from __future__ import annotations

import base64
import sqlite3
from pathlib import Path

from accord.errors import LogCorruptError, LogVersionError, LogWriteError
from accord.log.blobs import digest_of
from accord.log.codec import decode_envelope
from accord.log.store.base import Durability

VERSION = 2
"""2 added ``post``. Files of version 1 get it when they are opened."""
BUSY_TIMEOUT_S = 30.0
WAL_ATTEMPTS = 1000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    flow TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    token INTEGER NOT NULL DEFAULT 0,
    holder TEXT,
    expires_at REAL NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS records (
    run INTEGER NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blobs (digest BLOB PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS post (
    run INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uses (
    run INTEGER NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (run, digest)
) WITHOUT ROWID;
"""


def open_file(path: Path, durability: Durability) -> sqlite3.Connection:
    """A connection to the file, which is made if need be; raises a branch of ``LogError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise write_error(path, error) from error
    try:
        _prepare(db, path, durability)
    except sqlite3.Error as error:
        db.close()
        raise write_error(path, error) from error
    except (LogVersionError, LogCorruptError):
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path, durability: Durability) -> None:
    db.row_factory = sqlite3.Row
    if db.execute("PRAGMA application_id").fetchone()[0]:
        raise LogCorruptError(f"{path} is another program's database; name another with --log")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        msg = (
            f"{path} was written by a newer Accord (log version {version}; this one reads up "
            f"to {VERSION}); upgrade accord, or use another file with --log"
        )
        raise LogVersionError(msg)
    _use_wal(db)
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'sync' else 'NORMAL'}")
    if version < VERSION:
        _make_tables(db, path)


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    # Several processes may find a new file at once: whoever is second finds it made.
    db.execute("BEGIN IMMEDIATE")
    made = db.execute("PRAGMA user_version").fetchone()[0]
    if not made and db.execute("SELECT 1 FROM sqlite_master").fetchone():
        db.execute("ROLLBACK")
        raise LogCorruptError(f"{path} is another program's database; name another with --log")
    for statement in _SCHEMA.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch a new file to WAL; one that has it already stays as it is.

    To switch, SQLite turns a lock for reading into one for writing, where its busy timeout
    does not apply: with others opening the file it fails at once. An empty exclusive
    transaction waits for them.
    """
    for _ in range(WAL_ATTEMPTS):
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
        else:
            return
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")


def check_file(db: sqlite3.Connection) -> list[str]:
    """Faults that SQLite finds itself."""
    return [f"SQLite: {row[0]}" for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]


def check_records(db: sqlite3.Connection) -> list[str]:
    """Records that are missing or cannot be read."""
    faults: list[str] = []
    for run, name in db.execute("SELECT id, name FROM runs").fetchall():
        rows = db.execute("SELECT seq, body FROM records WHERE run = ? ORDER BY seq", (run,))
        for expected, (seq, body) in enumerate(rows):
            if seq != expected:
                faults.append(f"run {name!r}: record {expected} is missing")
                break
            try:
                decode_envelope(body)
            except LogCorruptError as error:
                faults.append(f"run {name!r}: record {seq}: {error}")
    return faults


def check_blobs(db: sqlite3.Connection) -> list[str]:
    """Blobs that have changed or are missing."""
    changed = [
        f"blob {digest_text(digest)}: its bytes have changed"
        for digest, body in db.execute("SELECT digest, body FROM blobs")
        if digest_bytes(digest_of(body)) != digest
    ]
    missing = db.execute(
        "SELECT name, digest FROM uses JOIN runs ON run = id"
        " WHERE digest NOT IN (SELECT digest FROM blobs)"
    )
    return changed + [f"run {run!r}: blob {digest_text(one)} is missing" for run, one in missing]


def write_error(path: Path, error: Exception) -> LogWriteError | LogCorruptError:
    """What ``error`` means to a user, when writing or opening."""
    said = str(error)
    if "not a database" in said or "malformed" in said:
        return read_error(path, error)
    locked = "locked" in said
    mend = "End the process that keeps it locked" if locked else "Free space or fix access"
    return LogWriteError(
        f"the log {path} could not be written ({said}); what was written before is safe. "
        f"{mend}, then `accord resume` goes on"
    )


def read_error(path: Path, error: Exception) -> LogCorruptError:
    """What ``error`` means to a user, when reading."""
    return LogCorruptError(
        f"the log {path} cannot be read ({error}); "
        "`accord doctor` checks it; restore a copy or use another file with --log"
    )


def digest_bytes(digest: str) -> bytes:
    """A digest as the file keeps it: 18 bytes."""
    return base64.urlsafe_b64decode(digest)


def digest_text(digest: bytes) -> str:
    """A digest as the rest of Accord writes it."""
    return base64.urlsafe_b64encode(digest).decode()
