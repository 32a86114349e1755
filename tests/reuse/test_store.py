"""Where results are kept: what stays, what goes, and files that are of no use."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.errors import LogCorruptError
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.reuse import store as store_module
from accord.reuse.open import beside, is_cache
from accord.reuse.store import (
    APPLICATION,
    OVERHEAD,
    USES_KEPT,
    ResultStore,
    Row,
    StoreBusyError,
    StoreError,
    StoreUnreadableError,
)
from accord.runtime import Runtime

MOST = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some" / "folder" / "x.cache.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[ResultStore]:
    with closing(ResultStore(path, MOST)) as found:
        yield found


def row(number: int, size: int = 10, **changes: Any) -> Row:
    made = Row(str(number).encode(), "t", "request", "a", 1.5, b"." * size)
    return made._replace(**changes)


def keys_of(store: ResultStore) -> list[str]:
    """The longest unused first."""
    return [each.key.decode() for each in store.rows()]


def filled(path: Path, rows: int = 3, size: int = 10) -> None:
    with closing(ResultStore(path, MOST)) as store:
        for number in range(rows):
            store.put(row(number, size))


def edited(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


# ------------------------------------------------------------------------------------ what is there


def test_what_is_kept_is_found_again_also_after_a_close(store: ResultStore) -> None:
    kept = row(1, name="日本\n", made_s=0.1 + 0.2, body=bytes(range(256)))
    assert store.get(b"1") is None
    assert store.put(kept)
    assert store.get(b"1") == kept
    store.close()
    assert store.get(b"1") == kept


def test_a_result_takes_the_place_of_the_one_before(store: ResultStore) -> None:
    store.put(row(1, 10))
    store.put(row(1, 30))
    assert [(each.entries, each.bytes) for each in store.kept()] == [(1, 30 + OVERHEAD)]
    found = store.get(b"1")
    assert found is not None
    assert len(found.body) == 30


def test_what_there_is_is_told_by_whose_and_what(store: ResultStore) -> None:
    for number, (tenant, kind, name) in enumerate(
        [("", "request", "w"), ("", "request", "w"), ("t", "request", "w"), ("", "tool", "w")]
    ):
        store.put(row(number, tenant=tenant, kind=kind, name=name))
    told = [(each.tenant, each.kind, each.name, each.entries) for each in store.kept()]
    assert told == [("", "request", "w", 2), ("", "tool", "w", 1), ("t", "request", "w", 1)]


def test_all_can_be_forgotten(store: ResultStore) -> None:
    filled(store.path or Path(), 5)
    assert store.clear() == 5
    assert store.clear() == 0
    assert store.kept() == []


def test_a_cache_stands_beside_its_log(tmp_path: Path) -> None:
    assert beside(tmp_path / "log.sqlite3") == tmp_path / "log.cache.sqlite3"
    log = SqliteStore(tmp_path / "l.db", now_s=lambda: 0.0)
    assert Runtime(log=log)._result_cache.store.path == tmp_path / "l.cache.sqlite3"
    log.close()
    assert Runtime(log=MemoryStore())._result_cache.store.path is None
    assert not beside(tmp_path / "l.db").exists(), "a cache that nobody used is no file"


# ----------------------------------------------------------------------------------- what has to go


def test_what_was_used_longest_ago_goes_first(path: Path) -> None:
    size = 1000 - OVERHEAD
    with closing(ResultStore(path, 5000)) as store:
        for number in range(5):
            store.put(row(number, size))
        store.get(b"0")
        store.put(row(5, size))
        assert keys_of(store) == ["3", "4", "0", "5"], "a tenth more goes, so that it pays"


def test_the_order_of_uses_outlives_a_close(path: Path) -> None:
    filled(path, 3)
    with closing(ResultStore(path, MOST)) as store:
        store.get(b"0")
    with closing(ResultStore(path, MOST)) as store:
        assert keys_of(store) == ["1", "2", "0"]


def test_looking_at_all_of_it_is_no_use(path: Path) -> None:
    filled(path, 3)
    with closing(ResultStore(path, MOST)) as store:
        store.get(b"0")
        assert keys_of(store) == keys_of(store) == ["1", "2", "0"]


def test_what_is_larger_than_all_that_may_be_kept_is_not_kept(path: Path) -> None:
    with closing(ResultStore(path, 1000)) as store:
        store.put(row(1))
        assert not store.put(row(2, 1001 - OVERHEAD))
        assert store.put(row(3, 1000 - OVERHEAD))
        assert keys_of(store) == ["3"]


steps = st.lists(
    st.tuples(st.sampled_from(["put", "get", "reopen"]), st.integers(0, 9), st.integers(1, 900)),
    max_size=60,
)


@given(steps)
def test_it_never_holds_more_than_it_may_and_forgets_in_order_of_use(steps: Any) -> None:
    most, model = 1000, OrderedDict[str, int]()
    store = ResultStore(None, most)
    for what, number, size in steps:
        key = str(number)
        if what == "put":
            fits = store.put(row(number, size))
            assert fits == (size + OVERHEAD <= most)
            if fits:
                model.pop(key, None)
                model[key] = size + OVERHEAD
                _shrink(model, most)
        elif what == "get":
            found = store.get(key.encode())
            assert (found is not None) == (key in model)
            if found is not None:
                model.move_to_end(key)
        else:
            store.close()
        assert sum(each.bytes for each in store.kept()) == sum(model.values()) <= most
    assert keys_of(store) == list(model)


def _shrink(model: OrderedDict[str, int], most: int) -> None:
    if sum(model.values()) > most:
        while len(model) > 1 and sum(model.values()) > most * 0.9:
            model.popitem(last=False)


# -------------------------------------------------------------------------------- who else is there


def test_two_who_have_it_open_see_what_the_other_keeps(path: Path) -> None:
    with closing(ResultStore(path, MOST)) as one, closing(ResultStore(path, MOST)) as other:
        assert other.get(b"1") is None
        one.put(row(1))
        assert other.get(b"1") == row(1)
        other.drop(b"1")
        assert one.get(b"1") is None


WRITER = """
import sys
from pathlib import Path
from accord.reuse.store import ResultStore, Row, StoreBusyError
store, me = ResultStore(Path(sys.argv[1]), 1 << 30), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
written = 0
for number in range(300):
    try:
        store.put(Row(f"{me}{number}".encode(), "", "request", me, 1.0, b"." * 100))
        store.put(Row(b"shared", "", "request", "both", float(number), b"."))
        written += 1
        store.get(f"{me}{number // 2}".encode())
    except StoreBusyError:
        pass
store.close()
print(written, flush=True)
"""


def test_two_processes_write_at_once_and_nothing_of_it_is_broken(path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in writers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    written = [int(each.communicate(timeout=60)[0]) for each in writers]
    assert [each.returncode for each in writers] == [0, 0]
    with closing(ResultStore(path, MOST)) as store:
        kept = {each.name: each.entries for each in store.kept()}
        assert kept["both"] == 1
        assert [kept["a"], kept["b"]] >= written, "what was said to be written is there"
        assert sum(written) > 300
        assert len(list(store.rows())) == sum(kept.values())


def test_who_holds_the_file_up_is_not_waited_for(path: Path) -> None:
    """And who looks is not held up at all."""
    filled(path, 3)
    with (
        closing(ResultStore(path, MOST)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError):
            store.put(row(9))
        for number in range(USES_KEPT + 3):
            assert store.get(str(number % 3).encode()) is not None
        other.execute("ROLLBACK")
        assert store.put(row(9))


# -------------------------------------------------------------------------------- files of no use


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all\n" * 1000)


def cut_in_the_middle(path: Path) -> None:
    filled(path, 200, 1000)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 // 4096 * 4096 + 100])


def cut_in_the_header(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[:50])


def pages_overwritten(path: Path) -> None:
    filled(path, 200, 1000)
    whole = bytearray(path.read_bytes())
    whole[4096:] = b"\xff" * (len(whole) - 4096)
    path.write_bytes(whole)


def of_another_version(path: Path) -> None:
    filled(path)
    edited(path, "PRAGMA user_version = 99")


def without_its_tables(path: Path) -> None:
    filled(path)
    edited(path, "DROP TABLE results", "DROP TABLE totals")


UNREADABLE = [
    garbage,
    cut_in_the_middle,
    cut_in_the_header,
    pages_overwritten,
    of_another_version,
    without_its_tables,
]


@pytest.mark.parametrize("spoil", UNREADABLE)
def test_a_file_of_no_use_is_told_with_what_mends_it(
    spoil: Callable[[Path], None], path: Path
) -> None:
    path.parent.mkdir(parents=True)
    spoil(path)
    with (
        closing(ResultStore(path, MOST)) as store,
        pytest.raises(StoreUnreadableError, match=r"accord cache clear --store .* makes a new"),
    ):
        use(store)
    assert is_cache(path)


def use(store: ResultStore) -> None:
    store.get(b"199")
    store.put(row(1))
    list(store.rows())


def of_another_program(path: Path) -> None:
    edited(path, "CREATE TABLE mine (x)", "INSERT INTO mine VALUES (1)")


def marked_by_another_program(path: Path) -> None:
    edited(path, "CREATE TABLE mine (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1")


@pytest.mark.parametrize("make", [of_another_program, marked_by_another_program])
def test_a_database_of_another_program_is_left_alone(
    make: Callable[[Path], None], path: Path
) -> None:
    path.parent.mkdir(parents=True)
    make(path)
    before = path.read_bytes()
    with (
        closing(ResultStore(path, MOST)) as store,
        pytest.raises(StoreError, match="another program's database") as caught,
    ):
        store.put(row(1))
    assert not isinstance(caught.value, StoreUnreadableError)
    assert not is_cache(path)
    assert path.read_bytes() == before


def test_an_empty_file_is_a_new_cache(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    filled(path)
    assert path.read_bytes()[68:72] == APPLICATION.to_bytes(4)


def test_a_place_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(StoreError, match=r"cannot be used|is a folder") as caught:
            ResultStore(place, MOST).get(b"1")
        assert not isinstance(caught.value, StoreUnreadableError)


def test_a_file_that_may_only_be_read_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    connect = sqlite3.connect

    def read_only(place: Path, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{place}?mode=ro", uri=True, **options)

    monkeypatch.setattr(store_module.sqlite3, "connect", read_only)
    with closing(ResultStore(path, MOST)) as store:
        assert store.get(b"1") == row(1), "it can be read, though"
        with pytest.raises(StoreError, match="fix access"):
            store.put(row(9))
        assert store.get(b"1") == row(1)


def test_a_full_disk_leaves_what_was_there(store: ResultStore) -> None:
    for number in range(3):
        store.put(row(number))
    pages = store._opened_file().execute("PRAGMA page_count").fetchone()[0]
    store._opened_file().execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"full.*free space"):
        store.put(row(9, 100_000))
    assert keys_of(store) == ["0", "1", "2"]
    assert store.put(row(1)), "what fits still goes in"


@pytest.mark.parametrize(
    "change",
    [
        "body = X'00'",
        "tenant = 'other'",
        "kind = 'tool'",
        "name = 'b'",
        "made_s = 2.5",
        "digest = X'00'",
        "body = 'text'",
        "name = 7",
        "key = X'32'",
    ],
)
def test_a_row_that_was_changed_is_not_given_out(change: str, path: Path) -> None:
    filled(path, 2)
    edited(path, f"UPDATE results SET {change} WHERE key = X'31'")
    key = b"2" if change.startswith("key") else b"1"
    with closing(ResultStore(path, MOST)) as store:
        assert keys_of(store) == ["0"]
        assert store.get(key) is None, "it is gone"
    filled(path, 2)
    edited(path, f"UPDATE results SET {change} WHERE key = X'31'")
    with closing(ResultStore(path, MOST)) as store:
        with pytest.raises(ValueError, match="changed or damaged"):
            store.get(key)
        assert store.get(key) is None


def test_a_log_is_not_kept_in_a_cache(tmp_path: Path) -> None:
    """Clearing the cache would remove it."""
    path = tmp_path / "c.cache.sqlite3"
    store = ResultStore(path, 1 << 20)
    store.put(row(1))
    store.close()
    with pytest.raises(LogCorruptError, match="another program's database"):
        Runtime(log=path)
