"""What SQLite adds: a file that can be damaged, full, newer, and shared between processes."""

import asyncio
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Timer

import pytest

from accord.errors import (
    FencedError,
    LogCorruptError,
    LogVersionError,
    LogWriteError,
    RunLockedError,
)
from accord.log.blobs import digest_of
from accord.log.store import sqlite, sqlite_file
from accord.log.store.base import Lease
from accord.log.store.sqlite import SqliteStore
from accord.log.store.sqlite_file import VERSION
from accord.testing.conformance.kit import ELSEWHERE, Now, blobs, new_run, record, records


def open_at(path: Path, now: Now | None = None) -> SqliteStore:
    return SqliteStore(path, now_s=now or Now())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder to be made" / "log.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = open_at(path)
    yield store
    store.close()


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def edit(path: Path, statement: str, *values: object) -> None:
    """Change the file behind the store's back."""
    with sqlite3.connect(path) as db:
        assert db.execute(statement, values).rowcount == 1
    db.close()


# -- damage ------------------------------------------------------------------------------------


def test_a_changed_blob_is_found(store: SqliteStore, path: Path):
    new_run(store, "run", count=1, bodies=[b"as written"])
    digest = digest_of(b"as written")
    edit(path, "UPDATE blobs SET body = ?", b"as wriTten")
    [fault] = store.check()
    assert digest in fault
    assert "changed" in fault


def test_a_missing_blob_is_found_with_its_run(store: SqliteStore, path: Path):
    new_run(store, "run", count=1, bodies=[b"lost"])
    edit(path, "DELETE FROM blobs")
    [fault] = store.check()
    assert "'run'" in fault
    assert digest_of(b"lost") in fault
    with pytest.raises(LogCorruptError, match="accord doctor"):
        store.blob(digest_of(b"lost"))


def test_a_missing_record_is_found_by_its_number(store: SqliteStore, path: Path):
    new_run(store, "run", count=5)
    edit(path, "DELETE FROM records WHERE seq = 3")
    assert store.check() == ["run 'run': record 3 is missing"]


def test_a_changed_record_is_found_by_its_number(store: SqliteStore, path: Path):
    new_run(store, "run", count=3)
    edit(path, "UPDATE records SET body = ? WHERE seq = 1", record(1)[:-2])
    [fault] = store.check()
    assert fault.startswith("run 'run': record 1: ")


def test_a_page_of_garbage_is_found_and_not_read_as_data(store: SqliteStore, path: Path):
    new_run(store, "run", count=500)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 8192)
        file.write(noise(4096))
    store = open_at(path)
    assert store.check() != []
    with pytest.raises(LogCorruptError, match="accord doctor"):
        store.read("run")


def test_another_programs_database_is_left_alone(path: Path):
    path.parent.mkdir()
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE accounts (id INTEGER)")
    theirs.close()
    with pytest.raises(LogCorruptError, match="another program's database"):
        open_at(path)
    db = sqlite3.connect(path)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]
    db.close()


def test_a_file_that_is_no_database_is_left_alone(path: Path):
    path.parent.mkdir()
    path.write_text("a novel, and not a short one\n" * 100)
    with pytest.raises(LogCorruptError, match=r"log\.sqlite3.*another file with --log"):
        open_at(path)
    assert path.read_text().startswith("a novel")


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(LogWriteError, match=str(tmp_path)):
        open_at(tmp_path)


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(LogWriteError, match="file/log"):
        open_at(tmp_path / "file" / "log.sqlite3")


def test_a_newer_version_is_left_alone(store: SqliteStore, path: Path):
    new_run(store, "run", count=1)
    store.close()
    before = path.read_bytes()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    with pytest.raises(LogVersionError) as caught:
        open_at(path)
    assert str(path) in str(caught.value)
    assert "upgrade accord" in str(caught.value)
    assert len(path.read_bytes()) == len(before)


# -- writes that are refused -------------------------------------------------------------------


def test_a_file_that_may_only_be_read_says_so_and_can_be_read(store: SqliteStore):
    run = new_run(store, count=2)
    lease = store.acquire(run, ELSEWHERE)
    store.connection().execute("PRAGMA query_only = ON")  # root may write read-only files
    with pytest.raises(LogWriteError, match=r"readonly.*fix access"):
        store.append(lease, 2, records(1, 2), {})
    assert store.read(run) == records(2)


def test_a_store_that_is_full_refuses_and_goes_on_when_there_is_room(store: SqliteStore):
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    store.append(lease, 0, records(3), blobs(b"early"))
    db = store.connection()
    [pages] = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + 10}")
    with pytest.raises(LogWriteError, match=r"full.*what was written before is safe"):
        store.append(lease, 3, records(2, 3), blobs(noise(100_000)))
    assert store.read("run") == records(3)
    assert store.check() == []
    db.execute("PRAGMA max_page_count = 1000000")
    store.append(lease, 3, records(2, 3), blobs(b"late"))
    assert store.read("run") == records(5)
    assert store.blob(digest_of(b"early")) == b"early"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, which takes root to make."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "none", disk], check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_loses_nothing_that_was_written(small_disk: Path):
    store = open_at(small_disk / "log.sqlite3")
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(700_000))
    count = 0
    try:
        while True:
            store.append(lease, count, records(1, count), blobs(noise(10_000, count)))
            count += 1
    except LogWriteError as error:
        full = str(error)
    assert "full" in full
    assert count > 0
    assert store.read("run") == records(count)
    filler.unlink()
    store.append(lease, count, records(1, count), blobs(b"late"))
    store.close()
    again = open_at(small_disk / "log.sqlite3")
    assert again.read("run") == records(count + 1)
    assert again.check() == []
    again.close()


# -- many at once ------------------------------------------------------------------------------


def append_one(path: Path, number: int, together: Barrier) -> Lease:
    together.wait()
    store = open_at(path)
    lease = store.acquire(store.create(None, "flow"), ELSEWHERE)
    store.append(lease, 0, [record(0, str(number))], blobs(b"%d" % number))
    store.close()
    return lease


@pytest.mark.parametrize("attempt", range(3))
def test_32_tasks_open_the_same_new_file(path: Path, attempt: int):
    """SYN-17."""

    async def main() -> list[Lease]:
        together = Barrier(32)
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(32) as pool:
            async with asyncio.TaskGroup() as group:

                async def one(number: int) -> Lease:
                    return await loop.run_in_executor(pool, append_one, path, number, together)

                tasks = [group.create_task(one(number)) for number in range(32)]
        return [task.result() for task in tasks]

    leases = asyncio.run(main())
    store = open_at(path)
    assert [store.read(lease.run) for lease in leases] == [[record(0, str(i))] for i in range(32)]
    assert store.check() == []
    store.close()


def test_a_new_file_that_another_writes_is_waited_for(path: Path):
    path.parent.mkdir()
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    leave = Timer(0.05, writer.execute, ["COMMIT"])
    leave.start()
    store = open_at(path)
    store.create("run", "flow")
    store.close()
    leave.join()
    writer.close()


def test_a_file_that_stays_locked_fails_its_writer_aloud(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SYN-19: longer than the busy timeout is an error, and nothing is lost or half written."""
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.05)
    store = open_at(path)
    lease = store.acquire(new_run(store, "run", count=2), ELSEWHERE)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogWriteError, match=r"log\.sqlite3.*locked.*End the process"):
        store.append(lease, 2, records(1, 2), blobs(b"not written"))
    other.execute("COMMIT")
    other.close()
    assert store.read("run") == records(2)
    store.append(lease, 2, records(1, 2), {})
    assert store.check() == []
    store.close()


WRITER = """
import sys
from pathlib import Path
from accord.log.store.holder import this_process
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance.kit import Now, blobs, record

print("ready", flush=True)
sys.stdin.readline()
store = SqliteStore(Path(sys.argv[1]), now_s=Now())
lease = store.acquire(store.create(None, "flow"), this_process())
for seq in range(50):
    store.append(lease, seq, [record(seq, sys.argv[2])], blobs(b"shared", b"%d" % seq))
store.release(lease)
"""


def spawn(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_8_processes_write_50_records_each_to_one_new_file(path: Path):
    """SYN-19."""
    writers = [spawn(WRITER, path, number) for number in range(8)]
    assert [read_line(writer) for writer in writers] == ["ready"] * 8
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 8
    store = open_at(path)
    found = sorted(tuple(store.read(info.run)) for info in store.runs())
    assert found == [tuple(record(seq, str(n)) for seq in range(50)) for n in range(8)]
    assert store.check() == []
    store.close()


# -- two resumers of one run -------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from accord.log.store.holder import this_process
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance.kit import Now, records

store = SqliteStore(Path(sys.argv[1]), now_s=Now())
lease = store.acquire("run", this_process())
store.append(lease, 0, records(3), {})
print(lease.holder, flush=True)
sys.stdin.readline()
"""


def test_the_second_resumer_is_told_who_has_the_run(store: SqliteStore, path: Path):
    store.create("run", "flow")
    first = spawn(HOLDER, path)
    holder = read_line(first)
    assert holder.split("/")[1] == str(first.pid)
    with pytest.raises(RunLockedError, match=f"'run' is being written by {holder}"):
        store.acquire("run", ELSEWHERE)
    first.kill()  # no goodbye
    first.communicate()
    lease = store.acquire("run", ELSEWHERE)
    assert store.read("run") == records(3)
    store.append(lease, 3, records(1, 3), {})


def test_a_writer_that_slept_through_its_lease_is_fenced_by_its_heir(path: Path):
    now = Now()
    sleeper, heir = open_at(path, now), open_at(path, now)
    stale = sleeper.acquire(sleeper.create("run", "flow"), ELSEWHERE)
    now.pass_lease()
    lease = heir.acquire("run", "other-host/2/2")
    with pytest.raises(FencedError, match=r"'run' was taken over.*accord show run"):
        sleeper.append(stale, 0, records(1), {})
    heir.append(lease, 0, records(2), {})
    assert sleeper.read("run") == records(2)
    sleeper.close()
    heir.close()


# -- what it costs -----------------------------------------------------------------------------


def test_a_page_takes_few_statements_however_many_rows(store: SqliteStore):
    """CKP-4."""
    for _ in range(500):
        store.create(None, "flow")
    long = new_run(store, "long", count=500)
    statements: list[str] = []
    store.connection().set_trace_callback(statements.append)
    assert len(store.runs(limit=500)) == 500
    assert len(statements) <= 3
    statements.clear()
    assert len(store.runs(before=long, limit=50)) == 50
    assert len(statements) <= 3
    statements.clear()
    assert len(store.read(long)) == 500
    assert len(statements) <= 3


def rows_of(path: Path) -> Counter[str]:
    db = sqlite3.connect(path)
    tables = ("runs", "records", "blobs", "uses")
    counts = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    db.close()
    return Counter(counts)


def test_pruning_a_thousand_runs_leaves_no_row_and_no_blob_of_theirs(
    store: SqliteStore, path: Path
):
    """CKP-3."""
    for number in range(1000):
        new_run(store, count=3, bodies=[b"shared", b"of %d" % number])
    assert rows_of(path) == {"runs": 1000, "records": 3000, "blobs": 1001, "uses": 2000}
    pruned = store.prune(keep_latest=10)
    assert (pruned.runs, pruned.records, pruned.blobs) == (990, 2970, 990)
    assert rows_of(path) == {"runs": 10, "records": 30, "blobs": 11, "uses": 20}
    assert store.check() == []


def test_a_delete_does_not_read_the_blobs_that_stay(store: SqliteStore):
    plan = store.connection().execute(f"EXPLAIN QUERY PLAN {sqlite._REMOVE_BLOBS}", {"runs": "[1]"})
    steps = [row["detail"] for row in plan]
    assert any(step.startswith("SEARCH blobs") for step in steps), steps
    assert not any(step.startswith("SCAN blobs") for step in steps), steps


# -- durability --------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("sync", 2), ("async", 1), ("exit", 1)])
def test_only_sync_waits_for_the_disk(path: Path, durability, level: int):
    store = SqliteStore(path, now_s=Now(), durability=durability)
    db = store.connection()
    assert db.execute("PRAGMA synchronous").fetchone()[0] == level
    assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    store.close()


def test_a_closed_store_opens_its_file_again_when_asked(store: SqliteStore):
    run = new_run(store, count=2)
    store.close()
    assert store.read(run) == records(2)
