"""``accord cache``, and ``--cache`` where flows run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from accord.reuse.results import Entry, ResultCache
from accord.reuse.store import APPLICATION
from accord.testing.stub import StubServer, hang, text
from tests.cli.command import Cli

FLOW = """
from accord import Agent, gather
writer = Agent("writer", "Write.", seed=1)
free = Agent("free", "Write.")

async def flow(*topics: str) -> str:
    return " ".join(await gather(writer(topic) for topic in topics))

async def drawn(topic: str) -> str:
    return await free(topic)
"""


@pytest.fixture
def flow(cli: Cli, stub: StubServer) -> str:
    cli.environment.update(OPENAI_BASE_URL=stub.url, OPENAI_API_KEY="none")
    return f"{cli.flow(FLOW)}:flow"


def cache_of(cli: Cli) -> Path:
    return cli.log.with_name("log.cache.sqlite3")


def filled(path: Path, names: str = "aab", tenant: str = "") -> None:
    with closing(ResultCache(path)) as cache:
        for number, name in enumerate(names):
            key = f"{tenant}{number}".encode()
            entry = Entry(result=json_of({"text": name}), took_ns=7)
            assert cache.keep(key, entry, tenant=tenant, kind="request", name=name)


def json_of(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


# --------------------------------------------------------------------------------- what there is


def test_what_is_kept_is_told_in_a_table_and_as_a_document(cli: Cli) -> None:
    filled(cache_of(cli))
    told = cli("cache", "stats", code=0)
    rows = [line.split() for line in told.out.splitlines()]
    assert rows[0] == ["kind", "name", "entries", "bytes"]
    assert [row[:3] for row in rows[1:3]] == [["request", "a", "2"], ["request", "b", "1"]]
    assert rows[3][:2] == ["total", "3"]
    assert int(rows[3][2]) == int(rows[1][3]) + int(rows[2][3])
    told = cli("cache", "stats", "--json", code=0).json
    assert told["path"] == str(cache_of(cli))
    assert told["entries"] == 3
    assert told["bytes"] == sum(each["bytes"] for each in told["kept"])
    assert told["kept"][0] == {
        "tenant": "",
        "kind": "request",
        "name": "a",
        "entries": 2,
        "bytes": told["kept"][0]["bytes"],
    }


def test_tenants_are_told_apart_where_there_are_any(cli: Cli) -> None:
    filled(cache_of(cli), "a")
    filled(cache_of(cli), "aa", "acme")
    rows = [line.split() for line in cli("cache", "stats", code=0).out.splitlines()]
    assert rows[0][0] == "tenant"
    assert rows[1][:4] == ["acme", "request", "a", "2"]


def test_it_is_the_cache_beside_the_log_or_the_one_that_is_named(cli: Cli) -> None:
    filled(cli.folder / "other.cache.sqlite3", "a")
    filled(cli.folder / "named", "bb")
    for given, entries in ((("--log", "other.db"), 1), (("--store", "named"), 2)):
        assert cli("cache", "stats", "--json", *given, code=0).json["entries"] == entries
    assert "give one" in cli("cache", "stats", "--log", "x", "--store", "y", code=2).err


def test_it_is_exported_an_object_a_line_the_longest_unused_first(cli: Cli) -> None:
    filled(cache_of(cli))
    done = cli("cache", "export", code=0)
    first, *others = map(json.loads, done.out.splitlines())
    assert first.pop("made_s") > 1e9
    assert first == {
        "key": b"0".hex(),
        "tenant": "",
        "kind": "request",
        "name": "a",
        "result": {"text": "a"},
        "usage": None,
        "cost": None,
        "took_ns": 7,
    }
    assert [each["key"] for each in others] == [b"1".hex(), b"2".hex()]
    assert cli("cache", "export", "--out", "-", code=0).out == done.out
    assert "3 results" in cli("cache", "export", "--out", "x.jsonl", code=0).err
    assert (cli.folder / "x.jsonl").read_text() == done.out


def test_what_was_spoilt_is_left_out_of_an_export(cli: Cli) -> None:
    filled(cache_of(cli))
    with closing(ResultCache(cache_of(cli))) as cache:
        row = cache.store.get(b"1")
        assert row is not None
        cache.store.put(row._replace(body=b"nonsense"))
    with closing(sqlite3.connect(cache_of(cli), isolation_level=None)) as db:
        db.execute("UPDATE results SET body = X'00' WHERE key = X'30'")
    done = cli("cache", "export", code=0)
    assert [json.loads(line)["key"] for line in done.out.splitlines()] == [b"2".hex()]
    assert f"left out {b'1'.hex()}" in done.err


def test_a_file_that_cannot_be_written_is_told(cli: Cli) -> None:
    filled(cache_of(cli))
    done = cli("cache", "export", "--out", "no/such/folder", code=1)
    assert "no/such/folder: No such file" in done.err


# ------------------------------------------------------------------------------------- forgetting


def test_it_is_all_forgotten(cli: Cli) -> None:
    filled(cache_of(cli))
    assert "removed 3 results" in cli("cache", "clear", code=0).err
    assert "removed 0 results" in cli("cache", "clear", code=0).err
    done = cli("cache", "stats", code=0)
    assert done.out == ""
    assert "no results are kept" in done.err


def test_looking_makes_no_file(cli: Cli) -> None:
    for action in ("stats", "export"):
        done = cli("cache", action, code=2)
        assert f"there is no result cache at {cache_of(cli)}" in done.err
        assert "accord run" in done.err
    assert "there was no result cache" in cli("cache", "clear", code=0).err
    assert not cli.log.parent.exists()


def garbage(path: Path) -> None:
    path.write_bytes(b"no database " * 1000)


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("spoil", [garbage, cut, another_version])
def test_a_cache_that_cannot_be_read_is_told_and_cleared_and_made_anew(
    spoil: Callable[[Path], None], cli: Cli, flow: str, stub: StubServer
) -> None:
    stub.always(text("told"))
    cli("run", flow, "--text", "a", code=0)
    spoil(cache_of(cli))
    done = cli("run", flow, "--text", "a", code=0)
    assert done.out == "told\n", "the run does without it"
    assert "the result cache is not used" in done.err
    for action in ("stats", "export"):
        assert "accord cache clear --store" in cli("cache", action, code=1).err
    assert "could not be read" in cli("cache", "clear", code=0).err
    assert not list(cli.log.parent.glob("*.cache.sqlite3*"))
    for _ in range(2):
        cli("run", flow, "--text", "a", code=0)
    assert len(stub.requests) == 3


@pytest.mark.parametrize("name", ["mine.sqlite3", "mine.cache.sqlite3"])
def test_what_belongs_to_others_is_left_alone(name: str, cli: Cli) -> None:
    path = cli.folder / name
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    done = cli("cache", "clear", "--store", name, code=1)
    assert "another program's database" in done.err
    assert path.read_bytes() == before


def test_a_file_that_is_no_cache_by_name_or_mark_is_left_alone(cli: Cli) -> None:
    cli.flow("print('mine')\n")
    done = cli("cache", "clear", "--store", "mine.py", code=1)
    assert "is no result cache" in done.err
    assert (cli.folder / "mine.py").exists()
    assert "is a folder" in cli("cache", "clear", "--store", ".", code=1).err


def test_a_cache_of_any_name_is_known_by_its_mark(cli: Cli) -> None:
    path = cli.folder / "named"
    filled(path)
    another_version(path)
    assert path.read_bytes()[68:72] == APPLICATION.to_bytes(4)
    cli("cache", "clear", "--store", "named", code=0)
    assert not path.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "the following arguments are required"),
        (("prune",), "invalid choice"),
        (("clear", "--json"), "--json goes with stats"),
        (("export", "--json"), "--json goes with stats"),
        (("stats", "--out", "x"), "--out goes with export"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: tuple[str, ...], said: str, cli: Cli) -> None:
    assert said in cli("cache", *given, code=2).err


# ------------------------------------------------------------------------------------------ --cache


def test_a_second_run_asks_nothing_unless_it_is_told_to(
    cli: Cli, flow: str, stub: StubServer
) -> None:
    for mode, requests in (("off", 1), ("write", 2), ("on", 2), ("read", 2), ("off", 3)):
        cli("run", flow, "--text", "a", "--cache", mode, code=0)
        assert len(stub.requests) == requests, mode
    cli("run", flow, "--text", "a", code=0)
    assert len(stub.requests) == 3, "with a seed it need not be said"


def test_what_is_drawn_is_answered_as_before_where_that_is_asked_for(
    cli: Cli, flow: str, stub: StubServer
) -> None:
    drawn = flow.replace(":flow", ":drawn")
    for mode, requests in ((None, 1), (None, 2), ("on", 3), ("on", 3), (None, 4)):
        said = () if mode is None else ("--cache", mode)
        cli("run", drawn, "--text", "a", *said, code=0)
        assert len(stub.requests) == requests
    cli("fork", "drawn-1", "0", '["b"]', "--cache", "write", "--run", "f", code=0)
    cli("fork", "drawn-1", "0", '["b"]', "--cache", "read", "--run", "g", code=0)
    assert len(stub.requests) == 5


def test_a_word_that_is_no_mode_is_refused(cli: Cli, flow: str) -> None:
    assert "'off', 'read', 'write', 'on'" in cli("run", flow, "--cache", "yes", code=2).err


def test_the_large_demo_knows_no_cache(cli: Cli) -> None:
    assert "without --agents" in cli("demo", "--agents", "8", "--cache", "on", code=2).err


def test_a_run_that_was_killed_while_others_waited_for_a_reply_is_resumed(
    cli: Cli, flow: str, stub: StubServer
) -> None:
    """The one request of five equal ones is made again, and all five have its reply."""
    stub.script(hang())
    stub.always(text("told"))
    started = cli.start("run", flow, *(["--text", "a"] * 5), "--run", "r")
    stub.wait_until(lambda s: len(s.requests) == 1, timeout_s=30)
    started.kill()
    assert cli("resume", "r", code=0).out == "told told told told told\n"
    assert len(stub.requests) == 2
    assert cli("tax", "r", "--json", code=0).json["closes"]
    cli("run", flow, "--text", "a", code=0)
    assert len(stub.requests) == 2, "and it is kept"


AHEAD = """
import asyncio
from accord import Agent, speculate, step
eager = Agent("eager", "Write.", seed=1, cache="on")

@step(pure=True)
async def route(question: str) -> str:
    await asyncio.sleep(0.05)
    return question.split()[0]

@step(pure=True)
async def work(desk: str) -> str:
    await asyncio.sleep(0.05)
    return desk

def guess(question):
    if "broken" in question:
        raise OSError("no idea")
    return "tech"

async def flow(question: str) -> str:
    return await speculate(route, question, then=work, guess=guess)

async def asks(topic: str) -> str:
    return await eager(topic)
"""


def test_guesses_are_told_in_the_tree_and_in_full(cli: Cli) -> None:
    file = cli.flow(AHEAD)
    for question, verdict in (("tech help", "right"), ("sales now", "wrong")):
        run = f"r-{verdict}"
        done = cli("run", f"{file}:flow", "--text", question, "--run", run, "--engine", "sim:8b")
        assert "speculation: " in done.err
        told = cli("show", run, code=0).out
        assert f"on a {verdict} guess (tech): step work" in told
        guessed = cli("show", run, "2", code=0).out
        assert guessed.splitlines() == [
            "guess of what route would give",
            "--- by",
            "guess",
            "--- guess",
            "tech",
        ]
        assert json.loads(cli("show", run, "2", "--json", code=0).out)["guess"] == "tech"
        assert "guess route: tech" in cli("why", run, "3", code=0).out


def test_a_warning_is_told_in_one_line(cli: Cli) -> None:
    file = cli.flow(AHEAD)
    done = cli("run", f"{file}:flow", "--text", "tech broken", "--engine", "sim:8b", code=0)
    [warning] = [line for line in done.err.splitlines() if "warning" in line]
    assert warning.startswith("accord: warning: the guess of 'route' failed")


def test_off_on_the_command_line_is_a_veto_and_hits_are_told(cli: Cli, stub: StubServer) -> None:
    cli.environment.update(OPENAI_BASE_URL=stub.url, OPENAI_API_KEY="none")
    file = cli.flow(AHEAD)
    for cache, asked in (([], 1), ([], 1), (["--cache", "off"], 2)):
        cli("run", f"{file}:asks", "--text", "x", *cache, code=0)
        assert len(stub.requests) == asked
    done = cli("run", f"{file}:asks", "--text", "x", "--run", "again", code=0)
    assert "eager finished: from the cache" in done.err
    assert "also: accord show again" in done.err
    assert "reused" in cli("show", "again", code=0).out
