"""``kill -9`` at random moments of a real process, then ``accord resume``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from accord.clock import WallClock
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.log.log import read_log
from accord.log.store.sqlite import SqliteStore
from accord.testing.stub import StubServer

FLOW = """
from pathlib import Path
from accord import Agent, gather, step

writer = Agent("writer", "Write.")
editor = Agent("editor", "Edit.")

@step
async def book(what: str) -> str:
    with Path("effects").open("a") as file:
        file.write(what + "\\n")
    return what

async def flow() -> str:
    drafts = await gather(writer(f"part {index}") for index in range(6))
    await book("drafts")
    edited = [await editor(f"{index}: {draft}") for index, draft in enumerate(drafts)]
    await book("edited")
    return "|".join(edited)
"""
REQUESTS = 12
MOMENTS = 20


class Case:
    """A run of the flow in a process of its own, in a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.log = folder / "log.sqlite3"
        (folder / "flow.py").write_text(FLOW)
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

    def finished_prompts(self) -> list[str]:
        """The last message of each request that the log holds as finished."""
        store = SqliteStore(self.log, now_s=WallClock().epoch_s)
        log = read_log(store, "r", WallClock())
        prompts = [
            log.values.decode(call.started.input)[0].messages[-1].content
            for call in index_calls(log.envelopes).by_scope.values()
            if call.started.kind == "request" and isinstance(call.ended, CallFinished)
        ]
        store.close()
        return prompts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_killed_run_goes_on_and_repeats_no_finished_call(seed: int, tmp_path: Path) -> None:
    """CKP-9 and kill -9: the engine's own count of requests is the witness."""
    random = Random(seed)
    with StubServer(delay_s=0.01) as stub:
        case = Case(tmp_path, stub.url)
        process = case.start()
        after = random.randint(1, REQUESTS)
        stub.wait_until(lambda stub: len(stub.requests) >= after, timeout_s=30)
        threading.Event().wait(random.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = len(stub.requests)
        finished = case.finished_prompts()
        result = case.resume()
        if result["status"] != "finished":
            assert "it may have happened" in result["error"]["message"], f"seed {seed}"
            assert len(case.effects()) == len(set(case.effects()))
            result = case.resume("--repeat-unknown")
        again = [last_message(request.body) for request in stub.requests[before:]]
    assert result["status"] == "finished", f"seed {seed}"
    assert result["output"].count("|") == 5
    assert not set(again) & set(finished), f"seed {seed}: finished calls were made again"
    assert len(again) == REQUESTS - len(finished), f"seed {seed}"


def last_message(body: Any) -> str:
    return body["messages"][-1]["content"]
