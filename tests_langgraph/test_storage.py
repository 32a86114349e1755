"""What saving costs, counted: bytes, rows and statements."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from accord.clock import WallClock
from accord.langgraph import AccordSaver
from accord.langgraph.saver import PAGE
from accord.log.store.sqlite import SqliteStore
from tests_langgraph.graphs import config, talk

STEPS = 500


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thread of 500 steps, each of which appends a message of 1 KB."""
    path = tmp_path_factory.mktemp("grown") / "log.sqlite3"
    with AccordSaver(path) as saver:
        talk(STEPS).compile(checkpointer=saver).invoke({"messages": []}, config())
    return path


def statements(saver: AccordSaver) -> list[str]:
    """The statements that the saver's store runs from now on."""
    assert isinstance(saver.store, SqliteStore)
    seen: list[str] = []
    saver.store.connection().set_trace_callback(seen.append)
    return seen


def test_a_long_talk_takes_little_more_than_what_was_said(grown: Path) -> None:
    """CKP-1: 500 steps of 1 KB in at most 3 MB."""
    assert grown.stat().st_size <= 3_000_000


def test_any_step_is_restored_at_once(grown: Path) -> None:
    """CKP-1: in under 100 ms, by a process that has read nothing before."""
    with AccordSaver(grown) as saver:
        places = [found.config for found in saver.list(config())]
    clock = WallClock()
    for place in (places[0], places[250], places[499]):
        with AccordSaver(grown) as saver:
            began_ns = clock.now_ns()
            found = saver.get_tuple(place)
            assert clock.now_ns() - began_ns < 100_000_000
        assert found is not None
        said = found.checkpoint["channel_values"]["messages"]
        assert [text[:6] for text in said] == [f"{number:06}" for number in range(len(said))]


def test_bytes_of_a_step_do_not_grow_with_the_state(tmp_path: Path) -> None:
    """CKP-1: 1,200 messages later, a step writes what a step wrote after 200."""
    saver = AccordSaver(tmp_path / "log.sqlite3")
    talk(1200, size=200).compile(checkpointer=saver).invoke({"messages": []}, config())
    assert isinstance(saver.store, SqliteStore)
    sizes = [len(record) for record in saver.store.read("thread:1")]
    early, late = sum(sizes[300:500]), sum(sizes[-200:])
    assert late < 1.5 * early


def test_listing_takes_three_statements_a_page(grown: Path) -> None:
    """CKP-4: whatever is on the page."""
    with AccordSaver(grown) as saver:
        seen = statements(saver)
        listed = 0
        before = 0
        for _ in saver.list(config()):
            if listed % PAGE == 0:
                assert len(seen) - before <= 3
                before = len(seen)
            listed += 1
        assert listed == STEPS + 2


def test_one_checkpoint_takes_three_statements(grown: Path) -> None:
    with AccordSaver(grown) as saver:
        seen = statements(saver)
        saver.get_tuple(config())
        assert len(seen) <= 3


def test_what_is_saved_again_is_not_stored_again(tmp_path: Path) -> None:
    """An item put in or taken out anywhere, and a text that grows, cost that alone."""
    saver = AccordSaver(tmp_path / "log.sqlite3")
    assert isinstance(saver.store, SqliteStore)
    items = [{"id": number, "text": f"{number} ".ljust(700, "x")} for number in range(400)]
    files = {f"file {number}": f"{number} ".ljust(2000, "y") for number in range(400)}
    values: list[Any] = [
        items,
        [{"id": -1, "text": "new"}, *items],
        [*items[:200], *items[201:]],
        files,
        files | {"file 200": "changed"},
        "z" * 300_000,
        "z" * 300_000 + "end",
    ]
    grew = [0]
    for version, value in enumerate(values):
        put(saver, f"{version:03}", {"value": value}, version)
        bodies = "SELECT body FROM blobs UNION ALL SELECT body FROM records"
        query = f"SELECT sum(length(body)) FROM ({bodies})"
        grew.append(saver.store.connection().execute(query).fetchone()[0])
    deltas = [after - before for before, after in pairwise(grew)]
    assert deltas[0] > 280_000
    assert deltas[3] > 800_000
    assert max(deltas[1], deltas[2], deltas[4]) < 6_000
    assert deltas[6] < 20_000
    for version, value in enumerate(values):
        found = saver.get_tuple(config(checkpoint_id=f"{version:03}"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"value": value}


def put(
    saver: AccordSaver, name: str, values: dict[str, Any], version: int, **metadata: Any
) -> Any:
    versions = dict.fromkeys(values, version)
    checkpoint = empty_checkpoint() | {
        "id": name,
        "channel_values": values,
        "channel_versions": versions,
    }
    place = config() if version == 0 else config(checkpoint_id=f"{version - 1:03}")
    return saver.put(place, checkpoint, metadata, versions)  # pyright: ignore[reportArgumentType]


def test_pruning_bounds_what_is_kept(tmp_path: Path) -> None:
    """CKP-3: after 1,000 invocations one checkpoint a namespace is left, and no blob too many."""
    saver = AccordSaver(tmp_path / "log.sqlite3")
    assert isinstance(saver.store, SqliteStore)
    graph = talk(0).compile(checkpointer=saver)
    names = [f"{number}" for number in range(50)]
    for number in range(1000):
        graph.invoke({"messages": [f"{number}".ljust(500)]}, config(names[number % 50]))
    wanted = {name: graph.get_state(config(name)).values for name in names}

    saver.prune(names)
    db = saver.store.connection()
    assert db.execute("SELECT count(*) FROM records").fetchone()[0] <= 50 * 3
    unused = "SELECT count(*) FROM blobs WHERE digest NOT IN (SELECT digest FROM uses)"
    assert db.execute(unused).fetchone()[0] == 0
    assert saver.store.check() == []
    assert {name: graph.get_state(config(name)).values for name in names} == wanted
    graph.invoke({"messages": ["on it goes"]}, config("0"))
    assert len(graph.get_state(config("0")).values["messages"]) == 42

    saver.prune(names, strategy="delete")
    for table in ("records", "blobs", "uses", "runs"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0


def test_who_has_read_a_thread_sees_that_it_was_pruned(tmp_path: Path) -> None:
    """Also if as much was appended afterwards as was removed."""
    one, other = AccordSaver(tmp_path / "log.sqlite3"), AccordSaver(tmp_path / "log.sqlite3")
    graph = talk(3).compile(checkpointer=one)
    graph.invoke({"messages": []}, config())
    assert len(list(other.list(config()))) == 5
    one.prune(["1"])
    for _ in range(6):
        graph.update_state(config(), {"messages": ["more"]}, as_node="say")
    assert list(other.list(config())) == list(one.list(config()))
    talk(9).compile(checkpointer=other).invoke({"messages": ["and more"]}, config())
    assert list(other.list(config())) == list(one.list(config()))
    assert one.store.check() == []


def test_runs_are_removed_and_their_children_keep_their_values(tmp_path: Path) -> None:
    saver = AccordSaver(tmp_path / "log.sqlite3")
    for version, run in enumerate(["a", "a", "b", "b", "a"]):
        put(
            saver,
            f"{version:03}",
            {"value": f"{version}".ljust(500), f"x{version}": 1},
            version,
            run_id=run,
        )
    before = {found.checkpoint["id"]: found.checkpoint for found in saver.list(config())}
    saver.delete_for_runs(["a"])
    after = {found.checkpoint["id"]: found.checkpoint for found in saver.list(config())}
    assert after == {name: before[name] for name in ("002", "003")}
    assert saver.store.check() == []


def test_large_metadata_is_filtered_pruned_and_copied(tmp_path: Path) -> None:
    saver = AccordSaver(tmp_path / "log.sqlite3")
    note = [{"text": f"{number} ".ljust(400, "m")} for number in range(100)]
    for version in range(20):
        put(saver, f"{version:03}", {"value": version}, version, note=[*note, version])
    seen = statements(saver)
    [found] = saver.list(config(), filter={"note": [*note, 7]})
    assert found.checkpoint["id"] == "007"
    assert len(seen) <= 10  # its pieces have pieces
    saver.prune(["1"])
    saver.copy_thread("1", "2")
    saver.delete_thread("1")
    [copied] = saver.list(config("2"))
    assert copied.metadata["note"] == [*note, 19]  # pyright: ignore[reportGeneralTypeIssues]
    assert saver.store.check() == []
