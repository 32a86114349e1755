"""Answers `bench/peers.py` from within an environment: which shapes there are, and what each costs.

A shape is a function of its size that builds everything once and returns one or more ways to run
it, as its users might; the quickest way counts. A way is run once untimed, to be warm, and what its
store holds is read then, after one run in a new file. When asked, it is run until a tenth of a
second has been measured, so that a short run profits no more than a long one from quiet moments of
the machine.

Asked by lines of JSON on stdin, answers by lines on stdout. Standard library only: this runs beside
each of the peers.
"""

import asyncio
import gc
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

WINDOW_S = 0.1
RUNNER = asyncio.Runner()
"""One event loop for all that a worker builds and runs."""
EXIT = AsyncExitStack()
"""What is closed when the worker ends."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run took, and what its store held after it."""

    seconds: float
    stored: int = 0


Way = Callable[[], Run]
Shape = Callable[[int], Sequence[Way]]


def serve(shapes: Mapping[str, Shape], packages: Sequence[str]) -> None:
    """Says what it has, then answers until stdin ends."""
    versions = {package: metadata.version(package) for package in packages}
    _say({"shapes": list(shapes), "versions": versions})
    built: dict[tuple[str, int], list[tuple[Way, int]]] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name, size = asked["shape"], asked["size"]
        if (name, size) not in built:
            built[name, size] = [(way, way().stored) for way in shapes[name](size)]
        runs = [Run(seconds=_seconds(way), stored=stored) for way, stored in built[name, size]]
        _say(asdict(min(runs, key=lambda run: run.seconds)))
    RUNNER.run(EXIT.aclose())
    RUNNER.close()


def sync_way(work: Callable[[], None]) -> Way:
    """A way that blocks until its work is done."""

    def way() -> Run:
        began = time.perf_counter()
        work()
        return Run(seconds=time.perf_counter() - began)

    return way


def async_way(work: Callable[[], Awaitable[None]]) -> Way:
    """A way that is awaited; the time is taken inside the running loop."""

    async def way() -> Run:
        began = time.perf_counter()
        await work()
        return Run(seconds=time.perf_counter() - began)

    return lambda: RUNNER.run(way())


def document_state(serial: int, size: int) -> dict[str, object]:
    """The state of the durable chain: a document (no two the same), a counter and a note."""
    return {"document": str(serial).ljust(size, "d"), "n": 0, "note": ""}


def new_file() -> Path:
    """Where a store may be made; gone when the worker ends."""
    return Path(EXIT.enter_context(tempfile.TemporaryDirectory())) / "store.db"


def stored_in(path: Path) -> int:
    """The bytes of an SQLite file, with its write-ahead log moved into it."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return path.stat().st_size


def _seconds(way: Way) -> float:
    """The mean of as many runs as fill the window."""
    gc.collect()
    total, runs = 0.0, 0
    while total < WINDOW_S:
        total += way().seconds
        runs += 1
    return total / runs


def _say(what: Mapping[str, object]) -> None:
    print(json.dumps(what), flush=True)
