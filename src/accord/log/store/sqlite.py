"""Runs in one SQLite file: the default.

WAL mode, so readers (``accord show``, the live view) never wait for the writer. One
transaction per append, so a record and the blobs it refers to are there together or not at
all. Several processes may write different runs of one file: SQLite's busy timeout serialises
their transactions, each a fraction of a millisecond.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from accord.errors import (
    FencedError,
    LogCorruptError,
    LogError,
    RunLockedError,
    RunNotFoundError,
    UsageError,
)
from accord.log.store.base import LEASE_S, Durability, Lease, Pruned, RunInfo
from accord.log.store.holder import surely_dead
from accord.log.store.sqlite_file import (
    check_blobs,
    check_file,
    check_records,
    digest_bytes,
    digest_text,
    open_file,
    read_error,
    write_error,
)

_INFO = """
SELECT name, flow, created_at, updated_at, expires_at, holder,
       (SELECT max(seq) FROM records WHERE run = id) AS last_seq,
       (SELECT body FROM records WHERE run = id ORDER BY seq DESC LIMIT 1) AS last_body
FROM runs
"""

_FENCE = """
SELECT id, (SELECT coalesce(max(seq) + 1, 0) FROM records WHERE run = id)
FROM runs WHERE name = ? AND token = ? AND holder = ?
"""

# One row with nothing in it if the run has no such records.
_READ = """
SELECT body FROM runs LEFT JOIN records ON run = id AND seq > ?
WHERE name = ? ORDER BY seq LIMIT ?
"""

# `uses` is read once and the blobs themselves are not. An index on its digests would make each
# write dearer, to spare that one reading.
_REMOVE_BLOBS = """
DELETE FROM blobs WHERE digest IN (
    SELECT digest FROM uses WHERE run IN (SELECT value FROM json_each(:runs))
    EXCEPT SELECT digest FROM uses WHERE run NOT IN (SELECT value FROM json_each(:runs))
)
"""
_REMOVE_RECORDS = "DELETE FROM records WHERE run IN (SELECT value FROM json_each(:runs))"
_REMOVE_USES = "DELETE FROM uses WHERE run IN (SELECT value FROM json_each(:runs))"
_REMOVE_POST = "DELETE FROM post WHERE run IN (SELECT value FROM json_each(:runs))"
_REMOVE_RUNS = "DELETE FROM runs WHERE id IN (SELECT value FROM json_each(:runs))"


class SqliteStore:
    """Runs in the file ``path``; its folder is made if need be.

    ``durability`` chooses fsync (``sync``) or not; ``now_s`` gives seconds since 1970.
    """

    def __init__(
        self,
        path: Path,
        *,
        now_s: Callable[[], float],
        durability: Durability = "async",
    ) -> None:
        self.path = path
        self._now_s = now_s
        self._durability: Durability = durability
        self.lock = RLock()
        self._db: sqlite3.Connection | None = open_file(path, durability)
        self._writing = _Writing(self)

    def create(self, run: str | None, flow: str) -> str:
        now_s = self._now_s()
        with self._writing as db:
            try:
                cursor = db.execute(
                    "INSERT INTO runs (name, flow, created_at, updated_at) VALUES (?, ?, ?, ?)",
                    (run or f"\0{now_s}", flow, now_s, now_s),
                )
            except sqlite3.IntegrityError:
                msg = (
                    f"a run named {run!r} exists in {self.path}; "
                    f"`accord resume {run}` goes on with it, or choose another name"
                )
                raise UsageError(msg) from None
            if run:
                return run
            serial = cursor.lastrowid
            name = f"{flow}-{serial}"
            while db.execute("SELECT 1 FROM runs WHERE name = ?", (name,)).fetchone():
                name += "x"  # someone gave a run this very name
            db.execute("UPDATE runs SET name = ? WHERE id = ?", (name, serial))
            return name

    def acquire(self, run: str, holder: str) -> Lease:
        with self._writing as db:
            row = self._row(db, run)
            if self._held_by_other(row):
                msg = (
                    f"run {run!r} is being written by {row['holder']} (host/process/start); "
                    "wait for it to end, or stop that process and try again"
                )
                raise RunLockedError(msg)
            token = row["token"] + 1
            now_s = self._now_s()
            db.execute(
                "UPDATE runs SET token = ?, holder = ?, updated_at = ?, expires_at = ?"
                " WHERE id = ?",
                (token, holder, now_s, now_s + LEASE_S, row["id"]),
            )
        return Lease(run=run, token=token, holder=holder)

    def renew(self, lease: Lease) -> None:
        with self._writing as db:
            run, _ = self._fence(db, lease)
            now_s = self._now_s()
            db.execute(
                "UPDATE runs SET updated_at = ?, expires_at = ? WHERE id = ?",
                (now_s, now_s + LEASE_S, run),
            )

    def release(self, lease: Lease) -> None:
        with self._writing as db:
            db.execute(
                "UPDATE runs SET holder = NULL, expires_at = 0, updated_at = ?"
                " WHERE name = ? AND token = ? AND holder = ?",
                (self._now_s(), lease.run, lease.token, lease.holder),
            )

    def append(
        self, lease: Lease, first: int, records: Sequence[bytes], blobs: Mapping[str, bytes]
    ) -> None:
        with self._writing as db:
            run, count = self._fence(db, lease)
            if first != count:
                msg = (
                    f"run {lease.run!r} has {count} records, not {first}: another "
                    f"writes it, so this one has stopped; see `accord show {lease.run}`"
                )
                raise FencedError(msg)
            _insert(db, run, first, records, blobs)

    def rewrite(self, lease: Lease, records: Sequence[bytes], blobs: Mapping[str, bytes]) -> None:
        with self._writing as db:
            run, _ = self._fence(db, lease)
            named = {"runs": json.dumps([run])}
            for statement in (_REMOVE_BLOBS, _REMOVE_USES, _REMOVE_RECORDS):
                db.execute(statement, named)
            _insert(db, run, 0, records, blobs)

    def read(self, run: str, after: int = -1, limit: int | None = None) -> list[bytes]:
        with self._reading() as db:
            rows = db.execute(_READ, (after, run, -1 if limit is None else limit)).fetchall()
            if not rows:
                self._row(db, run)
            return [row[0] for row in rows if row[0] is not None]

    @property
    def is_shared(self) -> bool:
        return True

    def post(self, run: str, name: str, body: bytes) -> int:
        with self._writing as db:
            row = self._row(db, run)
            [last] = db.execute(
                "SELECT coalesce(max(number), 0) FROM post WHERE run = ?", (row["id"],)
            ).fetchone()
            db.execute("INSERT INTO post VALUES (?, ?, ?, ?)", (row["id"], last + 1, name, body))
            return last + 1

    def posted(self, run: str, after: int = 0) -> list[tuple[int, str, bytes]]:
        with self._reading() as db:
            rows = db.execute(
                "SELECT number, post.name, body FROM post JOIN runs ON run = id"
                " WHERE runs.name = ? AND number > ? ORDER BY number",
                (run, after),
            )
            return [(row[0], row[1], row[2]) for row in rows]

    def blob(self, digest: str) -> bytes:
        with self._reading() as db:
            row = db.execute(
                "SELECT body FROM blobs WHERE digest = ?", (digest_bytes(digest),)
            ).fetchone()
        if row is None:
            msg = f"blob {digest} is missing from {self.path}; `accord doctor` checks the file"
            raise LogCorruptError(msg)
        return row[0]

    def blobs(self, digests: Collection[str]) -> dict[str, bytes]:
        wanted = list(digests)
        found: dict[str, bytes] = {}
        with self._reading() as db:
            step = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
            for i in range(0, len(wanted), step):
                keys = [digest_bytes(digest) for digest in wanted[i : i + step]]
                marks = ",".join("?" * len(keys))
                rows = db.execute(
                    f"SELECT digest, body FROM blobs WHERE digest IN ({marks})",  # noqa: S608  # only question marks
                    keys,
                )
                found.update((digest_text(row[0]), row[1]) for row in rows)
        for digest in wanted:
            if digest not in found:
                self.blob(digest)  # says so
        return found

    def runs(self, *, before: str | None = None, limit: int = 50) -> list[RunInfo]:
        with self._reading() as db:
            last = 2**62 if before is None else self._row(db, before)["id"]
            rows = db.execute(f"{_INFO} WHERE id < ? ORDER BY id DESC LIMIT ?", (last, limit))
            return [self._info(row) for row in rows]

    def info(self, run: str) -> RunInfo:
        with self._reading() as db:
            self._row(db, run)
            return self._info(db.execute(f"{_INFO} WHERE name = ?", (run,)).fetchone())

    def delete(self, run: str) -> Pruned:
        with self._writing as db:
            row = self._row(db, run)
            if self._held_by_other(row):
                msg = f"run {run!r} is being written by {row['holder']}; delete it afterwards"
                raise RunLockedError(msg)
            return self._remove(db, [row["id"]])

    def prune(self, *, keep_latest: int | None = None, older_than_s: float | None = None) -> Pruned:
        if keep_latest is None and older_than_s is None:
            return Pruned(runs=0, records=0, blobs=0)
        with self._writing as db:
            rows = db.execute("SELECT * FROM runs ORDER BY id DESC").fetchall()
            rows = rows[keep_latest or 0 :]
            if older_than_s is not None:
                limit_s = self._now_s() - older_than_s
                rows = [row for row in rows if row["updated_at"] < limit_s]
            return self._remove(db, [row["id"] for row in rows if not self._held_by_other(row)])

    def check(self) -> list[str]:
        faults: list[str] = []
        try:
            with self._reading() as db:
                for part in (check_file, check_records, check_blobs):
                    faults += part(db)
        except LogCorruptError as error:  # so bad that reading on makes no sense
            faults.append(str(error))
        return faults

    def close(self) -> None:
        """Let go of the file. A later call, such as a report on a run, opens it again."""
        with self.lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def __del__(self) -> None:
        if (db := getattr(self, "_db", None)) is not None:
            db.close()

    def connection(self) -> sqlite3.Connection:
        """The open file; opens it again after a close."""
        if self._db is None:
            self._db = open_file(self.path, self._durability)
        return self._db

    def _row(self, db: sqlite3.Connection, run: str) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute("SELECT * FROM runs WHERE name = ?", (run,)).fetchone()
        if row is None:
            msg = f"there is no run {run!r} in {self.path}; `accord runs` lists them"
            raise RunNotFoundError(msg)
        return row

    def _info(self, row: sqlite3.Row) -> RunInfo:
        return RunInfo(
            run=row["name"],
            flow=row["flow"],
            created_at_s=row["created_at"],
            updated_at_s=row["updated_at"],
            held=self._held_by_other(row),
            records=0 if row["last_seq"] is None else row["last_seq"] + 1,
            last=row["last_body"] or b"",
        )

    def _held_by_other(self, row: sqlite3.Row) -> bool:
        holder: str | None = row["holder"]
        if holder is None or row["expires_at"] < self._now_s():
            return False
        return not surely_dead(holder)

    def _fence(self, db: sqlite3.Connection, lease: Lease) -> tuple[int, int]:
        """The run's id and its count of records, if ``lease`` is still the last one."""
        # The token alone would do, but for a run that was deleted and made again.
        row = db.execute(_FENCE, (lease.run, lease.token, lease.holder)).fetchone()
        if row is None:
            msg = (
                f"run {lease.run!r} was taken over by another process, so this one has stopped; "
                f"`accord show {lease.run}` tells how far the other is"
            )
            raise FencedError(msg)
        return row[0], row[1]

    def _remove(self, db: sqlite3.Connection, ids: list[int]) -> Pruned:
        named = {"runs": json.dumps(ids)}
        blobs = db.execute(_REMOVE_BLOBS, named).rowcount
        records = db.execute(_REMOVE_RECORDS, named).rowcount
        db.execute(_REMOVE_USES, named)
        db.execute(_REMOVE_POST, named)
        db.execute(_REMOVE_RUNS, named)
        return Pruned(runs=len(ids), records=records, blobs=blobs)

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        with self.lock:
            try:
                yield self.connection()
            except sqlite3.OperationalError as error:
                raise LogError(
                    f"the log {self.path} cannot be read now ({error}); try again"
                ) from error
            except sqlite3.DatabaseError as error:
                raise read_error(self.path, error) from error


def _insert(
    db: sqlite3.Connection,
    run: int,
    first: int,
    records: Sequence[bytes],
    blobs: Mapping[str, bytes],
) -> None:
    if blobs:
        pieces = [(digest_bytes(digest), body) for digest, body in blobs.items()]
        db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", pieces)
        uses = [(run, digest) for digest, _ in pieces]
        db.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", uses)
    rows = [(run, seq, body) for seq, body in enumerate(records, first)]
    db.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)


class _Writing:
    """A transaction of a store: whole, or not at all. SQLite's errors come out as ours.

    A class, for a generator's context manager takes a tenth of a commit's time.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __enter__(self) -> sqlite3.Connection:
        self._store.lock.acquire()
        try:
            db = self._store.connection()
            # IMMEDIATE: wait for other writers here, not in the middle.
            db.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._store.lock.release()
            if isinstance(error, sqlite3.Error):
                raise write_error(self._store.path, error) from error
            raise
        return db

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        db = self._store.connection()
        try:
            if error is None:
                db.execute("COMMIT")
        except sqlite3.Error as failure:
            error = failure
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._store.lock.release()
        if isinstance(error, sqlite3.Error):
            raise write_error(self._store.path, error) from error
