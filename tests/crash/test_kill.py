"""``kill -9`` at chosen moments of a real process, then ``accord resume``.

A third of the kills come while requests are under way, a third around an effect, a third at a
commit. Two witnesses stand outside: what the engine was asked, and what the effects wrote.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from accord.clock import WallClock
from accord.log.events import CallFailed, CallFinished
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.log.store.sqlite import SqliteStore
from accord.testing.stub import StubServer

FLOW = """
import asyncio
from pathlib import Path
from accord import Agent, gather, step

writer = Agent("writer", "Write.")
editor = Agent("editor", "Edit.")

@step
async def book(what: str) -> str:
    with Path("effects").open("a") as file:
        file.write(what + "\\n")
    await asyncio.sleep(0.02)  # it has happened, and the log does not say so yet
    return what

async def flow() -> str:
    drafts = await gather(writer(f"part {index}") for index in range(6))
    await book("drafts")
    edited = [await editor(f"{index}: {draft}") for index, draft in enumerate(drafts)]
    await book("edited")
    return "|".join(edited)
"""
REQUESTS = 12
EFFECTS = ["drafts", "edited"]
MOMENTS = 20
PATIENCE = 100_000  # looks, 0.2 ms apart: 20 s and more


class Case:
    """A run of the flow in a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, url: str, flow: str = FLOW) -> None:
        self.folder = folder
        self.log = folder / "log.sqlite3"
        (folder / "flow.py").write_text(flow)
        self._url = url

    def accord(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "accord.cli.main", *arguments, "--log", str(self.log), "--json"],
            cwd=self.folder,
            env={**os.environ, "OPENAI_BASE_URL": self._url, "OPENAI_API_KEY": "none"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start(self) -> subprocess.Popen[str]:
        return self.accord("run", "flow.py", "--run", "r")

    def resume(self, *more: str) -> dict[str, Any]:
        process = self.accord("resume", "r", *more)
        out, err = process.communicate(timeout=60)
        assert out, err
        return json.loads(out)

    def effects(self) -> list[str]:
        path = self.folder / "effects"
        return path.read_text().split() if path.exists() else []

    def committed(self) -> int:
        """Bytes of SQLite's write-ahead log: each commit adds some."""
        path = self.log.with_name(self.log.name + "-wal")
        return path.stat().st_size if path.exists() else 0

    def finished_prompts(self) -> list[str]:
        """The last message of each request that the log holds as finished."""
        with self._read() as log:
            return [
                log.values.decode(call.started.input)[0].messages[-1].content
                for call in index_calls(log.envelopes).by_scope.values()
                if call.started.kind == "request" and isinstance(call.ended, CallFinished)
            ]

    def unknown_effects(self) -> list[str]:
        """The effects whose outcome the log calls unknown."""
        with self._read() as log:
            return [
                next(what for what in EFFECTS if what in call.started.preview)
                for call in index_calls(log.envelopes).by_scope.values()
                if isinstance(call.ended, CallFailed) and "UnknownOutcome" in call.ended.error.type
            ]

    @contextmanager
    def _read(self) -> Iterator[Log]:
        store = SqliteStore(self.log, now_s=WallClock().epoch_s)
        yield read_log(store, "r", WallClock())
        store.close()


def wait_for(moment: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Look often: what is waited for lasts some milliseconds."""
    pause = threading.Event()
    for _ in range(PATIENCE):
        if moment() or process.poll() is not None:
            return
        pause.wait(0.0002)
    raise TimeoutError("the moment never came")


def during_requests(case: Case, stub: StubServer, random: Random, process: Any) -> None:
    after = random.randint(1, REQUESTS)
    stub.wait_until(lambda stub: len(stub.requests) >= after, timeout_s=30)
    threading.Event().wait(random.uniform(0, 0.02))


def around_an_effect(case: Case, stub: StubServer, random: Random, process: Any) -> None:
    which = random.randint(1, len(EFFECTS))
    wait_for(lambda: len(case.effects()) >= which, process)
    threading.Event().wait(random.uniform(0, 0.03))


def at_a_commit(case: Case, stub: StubServer, random: Random, process: Any) -> None:
    stub.wait_until(lambda stub: bool(stub.requests), timeout_s=30)  # so there is a run
    for _ in range(random.randint(1, 12)):
        before = case.committed()
        wait_for(lambda before=before: case.committed() > before, process)


AIMS = (during_requests, around_an_effect, at_a_commit)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_killed_run_goes_on_and_repeats_no_finished_call(seed: int, tmp_path: Path) -> None:
    """CKP-9 and kill -9. An effect happens once, or is reported before it can happen again."""
    random = Random(seed)
    aim = AIMS[seed % len(AIMS)]
    where = f"seed {seed}, {aim.__name__}"
    with StubServer(delay_s=0.01) as stub:
        case = Case(tmp_path, stub.url)
        process = case.start()
        aim(case, stub, random, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = len(stub.requests)
        finished = case.finished_prompts()
        result = case.resume()
        unknown = case.unknown_effects()
        if result["status"] != "finished":
            assert "it may have happened" in result["error"]["message"], where
            assert len(unknown) == 1, where
            assert max(Counter(case.effects()).values(), default=0) <= 1, where
            result = case.resume("--repeat-unknown")
        again = [last_message(request.body) for request in stub.requests[before:]]
    assert result["status"] == "finished", where
    assert result["output"].count("|") == 5
    assert not set(again) & set(finished), f"{where}: finished calls were made again"
    assert len(again) == REQUESTS - len(finished), where
    happened = Counter(case.effects())
    assert sorted(happened) == EFFECTS, where
    assert happened - Counter(EFFECTS) <= Counter(unknown), f"{where}: {happened}, {unknown}"


def last_message(body: Any) -> str:
    return body["messages"][-1]["content"]
