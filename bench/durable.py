"""What does a durable step cost, and how much does it store, as the state grows?

The state is a document of 10 KB or 1 MB, a counter and a note of 100 characters that each step
replaces; every step takes the whole state and returns it. Beside it: bare sqlite3 in WAL mode,
one commit a step. LangGraph's SQLite saver on the same kind of machine: 1,770 µs at 10 KB,
6,500 µs at 1 MB, and 105 MB of store after 100 steps.
"""

import asyncio
import sqlite3
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from accord import Runtime, step
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row, stopwatch

QUICK = True
N = 1000
ROUNDS = 3
SIZES = {"10 KB": 10_000, "1 MB": 1_000_000}


async def advance(state: dict[str, Any]) -> dict[str, Any]:
    n = state["n"] + 1
    return {**state, "n": n, "note": f"{n:0100d}"}


pure = step(pure=True)(advance)
effect = step(advance)


async def chain(state: dict[str, Any], length: int, advance: Any) -> float:
    state = await advance(state)  # the first one stores the document
    with stopwatch() as watch:
        for _ in range(length):
            state = await advance(state)
    assert state["n"] == length + 1
    return watch.seconds


async def pure_chain(state: dict[str, Any], length: int) -> float:
    return await chain(state, length, pure)


async def effect_chain(state: dict[str, Any], length: int) -> float:
    return await chain(state, length, effect)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder))


def _measure(folder: Path) -> list[Row]:
    bare = {mode: _best(partial(_bare, folder, mode)) for mode in ("FULL", "NORMAL")}
    rows = [
        Row(what="bare sqlite3 commit, fsync (FULL)", measured=bare["FULL"], unit="µs/step"),
        Row(what="bare sqlite3 commit, no fsync (NORMAL)", measured=bare["NORMAL"], unit="µs/step"),
    ]
    for label, size in SIZES.items():
        fast = _best(partial(_chain, folder, pure_chain, size, "async"))
        careful = _best(partial(_chain, folder, effect_chain, size, "async"))
        safe = _best(partial(_chain, folder, effect_chain, size, "sync"))
        stored = (folder / "chain.db").stat().st_size
        # What changed: the document once, and a note and a counter a step.
        allowed = 1.2 * (size + N * 104) + 200 * (2 * N + 2)
        rows += [
            Row(what=f"{label}: async, pure step", measured=fast, unit="µs/step", target=60),
            Row(
                what=f"{label}: async, step with effects, each after a commit",
                measured=careful,
                unit="µs/step",
                target=60,
            ),
            Row(
                what=f"{label}: the same over a bare commit without fsync",
                measured=careful / bare["NORMAL"],
                unit="x",
            ),
            Row(
                what=f"{label}: sync over bare commit with fsync",
                measured=safe / bare["FULL"],
                unit="x",
                target=1.3,
            ),
            Row(
                what=f"{label}: store after {N} steps",
                measured=stored / 1e6,
                unit="MB",
                target=allowed / 1e6,
            ),
        ]
    return rows


def _best(work: Any) -> float:
    """Microseconds a step, of the quickest round."""
    return min(work() for _ in range(ROUNDS)) / N * 1e6


def _bare(folder: Path, mode: str) -> float:
    path = folder / "bare.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {mode}")
    db.execute("CREATE TABLE steps (seq INTEGER PRIMARY KEY, body BLOB)")
    body = b"x" * 200
    with stopwatch() as watch:
        for _ in range(N):
            db.execute("BEGIN")
            db.execute("INSERT INTO steps (body) VALUES (?)", (body,))
            db.execute("INSERT INTO steps (body) VALUES (?)", (body,))
            db.execute("COMMIT")
    db.close()
    path.unlink()
    return watch.seconds


def _chain(folder: Path, flow: Any, size: int, durability: Any) -> float:
    path = folder / "chain.db"
    path.unlink(missing_ok=True)
    state = {"document": "d" * size, "n": 0, "note": ""}

    async def timed() -> float:
        async with Runtime(engine=ScriptedEngine(), log=path, durability=durability) as runtime:
            return (await runtime.arun(flow, state, N)).output

    return asyncio.run(timed())
