"""Several tasks, threads and processes on one log; and processes that are killed."""

import ast
import asyncio
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from accord.errors import FencedError, RunLockedError
from accord.langgraph import AccordSaver
from accord.log.store.base import LEASE_S
from accord.log.store.memory import MemoryStore
from tests_langgraph.graphs import config, talk

ROOT = Path(__file__).parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests_langgraph.two", *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def written(saver: AccordSaver, thread: str = "1") -> int:
    return len(saver._thread(thread).read(lambda history: history.pending("", "0")))


def test_32_tasks_open_one_fresh_file(path: Path) -> None:
    """SYN-17: each of them writes once, and nothing is lost."""

    async def write(number: int) -> None:
        await AccordSaver(path).aput_writes(config(checkpoint_id="0"), [("x", 1)], f"{number}")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(32):
                group.create_task(write(number))

    asyncio.run(main())
    assert written(AccordSaver(path)) == 32


def test_32_threads_open_one_fresh_file(path: Path) -> None:
    """SYN-17."""

    def write(number: int) -> None:
        AccordSaver(path).put_writes(config(checkpoint_id="0"), [("x", 1)], f"{number}")

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write, range(32)))
    assert written(AccordSaver(path)) == 32


@pytest.mark.parametrize("threads", ["one thread", "one each"])
def test_8_processes_write_50_times(path: Path, threads: str) -> None:
    """SYN-19: to one thread of the log, and to one each."""
    names = ["1"] * 8 if threads == "one thread" else [f"{number}" for number in range(8)]
    processes = [start("write_many", str(path), name, "50") for name in names]
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0] * 8
    assert sum(written(AccordSaver(path), name) for name in set(names)) == 400


def test_cancelled_writes_are_whole_or_not_there(path: Path) -> None:
    """CKP-11: 7 of 20 are cancelled, 13 are there."""
    saver = AccordSaver(path)

    async def main() -> None:
        tasks = [
            asyncio.create_task(
                saver.aput_writes(config(checkpoint_id="0"), [("x", 1)], f"{number}")
            )
            for number in range(20)
        ]
        for task in tasks[::3]:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert written(saver) == 13


def test_one_who_waits_for_a_lease_can_be_cancelled(path: Path) -> None:
    """CKP-11: and then has written nothing."""
    saver = AccordSaver(path)

    async def main() -> None:
        with AccordSaver(path).hold("1"), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await saver.aput_writes(config(checkpoint_id="0"), [("x", 1)], "task")

    asyncio.run(main())
    assert written(saver) == 0


def test_a_held_thread_is_held_against_another_process(path: Path) -> None:
    """SYN-16: the second is told who holds it; when that one is gone, it may go on at once."""
    saver = AccordSaver(path, wait_s=0.1)
    graph = talk(3).compile(checkpointer=saver)
    process = start("hold", str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunLockedError, match=f"/{process.pid}/"):
        graph.invoke({"messages": []}, config())
    with pytest.raises(RunLockedError, match=f"/{process.pid}/"), saver.hold("1"):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with saver.hold("1"):
        assert len(graph.invoke({"messages": []}, config())["messages"]) == 3


def test_a_stale_holder_is_fenced() -> None:
    """SYN-16: whoever lost its lease while it stood still cannot write."""
    now = [0.0]
    store = MemoryStore(lambda: now[0])
    saver = AccordSaver(store)
    with saver.hold("1"):
        saver.put(config(), empty_checkpoint(), {}, {})
        store._runs["thread:1"].holder = "elsewhere/1/1"  # as after LEASE_S without a heartbeat
        now[0] += LEASE_S
        with pytest.raises(FencedError):
            saver.put(config(), empty_checkpoint(), {}, {})
    assert len(list(saver.list(config()))) == 1


def test_a_process_killed_while_it_writes_locks_nobody_out(path: Path) -> None:
    process = start("die_writing", str(path))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    saver = AccordSaver(path, wait_s=0)
    saver.put(config(), empty_checkpoint(), {}, {})
    assert len(list(saver.list(config()))) == 2
    assert saver.store.check() == []


def test_killed_at_every_write_nothing_that_was_recorded_is_done_again(tmp_path: Path) -> None:
    """CKP-9: before and after each write of a run of five steps, more than 20 kills.

    Killed after a write, each effect came once. Killed before it, only the effect whose outcome
    was not written yet may come again: LangGraph records outcomes, not intentions.
    """
    process = start("campaign", str(tmp_path))
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    lines = [line.split("|") for line in said.splitlines()]
    assert len(lines) > 20
    wanted = [f"step {number}" for number in range(5)]
    for before, _, listed in lines:
        effects = ast.literal_eval(listed)
        again = Counter(effects) - Counter(wanted)
        assert sorted(set(effects)) == wanted
        assert again.total() <= (1 if before == "True" else 0)
