"""A cache that is of no use, in whatever way, costs no run anything."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from accord import Agent, run
from accord.reuse.results import ResultCache
from accord.testing.scripted import ScriptedEngine
from tests.reuse.cached import (
    echo,
    writer,
)


def spoilt_by_garbage(path: Path) -> None:
    path.write_bytes(b"garbage " * 1000)


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3 + 1])


def of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (x)")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def changed(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE results SET body = body || ' '")


SPOILT = [
    (spoilt_by_garbage, "is damaged"),
    (cut, "is damaged"),
    (of_another_version, "another version of Accord"),
    (of_another_program, "another program's database"),
    (a_folder, "is a folder"),
    (changed, "changed or damaged"),
]


@pytest.mark.parametrize(("spoil", "said"), SPOILT)
def test_a_cache_that_is_of_no_use_costs_no_run_anything(
    spoil: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    log, path = tmp_path / "log.sqlite3", tmp_path / "log.cache.sqlite3"
    engine = ScriptedEngine(echo)

    async def flow() -> list[str]:
        return [await writer(text) for text in ("x", "y", "x")]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(flow, engine=engine, log=log)
    spoil(path)
    engine.requests.clear()
    with pytest.warns(UserWarning, match=said) as told:
        result = run(flow, engine=engine, log=log)
    assert result.output == ["X", "Y", "X"]
    assert len(told) == 1
    assert len(engine.requests) == (2 if spoil is changed else 3)
    assert result.tax.closes


def test_an_empty_file_is_a_new_cache(tmp_path: Path) -> None:
    (tmp_path / "log.cache.sqlite3").touch()
    engine = ScriptedEngine(echo)
    for _ in range(2):
        run(writer, "x", engine=engine, log=tmp_path / "log.sqlite3")
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "result",
    ['{"text": 7}', "[]", '{"text": "[1]", "tool_calls": 3}'],
)
def test_an_entry_that_is_no_answer_of_this_agent_is_made_anew(result: str) -> None:
    """Whole as it is: somebody wrote it there, or the type has changed."""
    agent = Agent("a", output=list[int], seed=1)
    engine, shared = ScriptedEngine("[1]"), ResultCache()
    options: Any = {"engine": engine, "log": "memory", "cache_store": shared}
    run(agent, "x", **options)
    [row] = shared.store.rows()
    shared.store.put(row._replace(body=b'{"result":%b}' % result.encode()))
    with pytest.warns(UserWarning, match="not what was kept there"):
        assert run(agent, "x", **options).output == [1]
    assert run(agent, "x", **options).output == [1]
    assert len(engine.requests) == 2


def test_what_this_agent_cannot_use_is_made_anew_and_may_serve_others_yet() -> None:
    """Another validator, say: nothing is wrong with it."""
    engine, shared = ScriptedEngine("[1]"), ResultCache()
    options: Any = {"engine": engine, "log": "memory", "cache_store": shared}
    agent = Agent("a", output=list[int], seed=1)
    run(agent, "x", **options)
    [row] = shared.store.rows()
    shared.store.put(row._replace(body=b'{"result":{"text": "not of the schema"}}'))
    assert run(agent, "x", **options).output == [1]
    assert len(engine.requests) == 2


def test_a_full_disk_costs_no_run_anything(tmp_path: Path) -> None:
    shared, engine = ResultCache(tmp_path / "c"), ScriptedEngine(lambda r: echo(r) * 10_000)
    run(writer, "x", engine=engine, log="memory", cache_store=shared)
    db = shared.store._opened_file()
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")

    async def flow() -> list[str]:
        return [(await writer(text))[0] for text in ("y", "z", "x")]

    with pytest.warns(UserWarning, match="result cache is not used: .*full") as said:
        result = run(flow, engine=engine, log="memory", cache_store=shared)
    assert result.output == ["Y", "Z", "X"]
    assert len(said) == 1
    shared.close()


def test_a_clock_that_has_gone_back_costs_no_run_anything(tmp_path: Path) -> None:
    engine = ScriptedEngine(echo)
    options: Any = {"engine": engine, "log": "memory"}
    later = ResultCache(tmp_path / "c", now_s=lambda: 1e9 + 3600)
    run(writer, "x", cache_store=later, **options)
    now = ResultCache(tmp_path / "c", now_s=lambda: 1e9)
    with pytest.warns(UserWarning, match="clock has gone back"):
        assert run(writer, "x", cache_store=now, **options).output == "X"
    assert run(writer, "x", cache_store=now, **options).output == "X"
    assert len(engine.requests) == 2
    later.close()
    now.close()


def test_names_and_texts_that_utf8_cannot_hold_do_no_harm() -> None:
    engine = ScriptedEngine(echo)
    for _ in range(2):
        run(writer, "\ud800", engine=engine, log="memory", cache="on")
    assert len(engine.requests) == 2
