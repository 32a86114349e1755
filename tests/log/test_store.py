"""Both stores keep every promise of ``accord.log.store.base``."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from accord.errors import RunLockedError
from accord.log.store.base import Store
from accord.log.store.holder import surely_dead, this_process
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance import STORE_CHECKS, check_name, check_store
from accord.testing.conformance.kit import Check, Make, Now


def in_memory(_: Path) -> Make:
    return MemoryStore


def in_sqlite(folder: Path) -> Make:
    def make(now_s: Callable[[], float]) -> Store:
        taken = len(list(folder.iterdir()))
        return SqliteStore(folder / str(taken) / "log.sqlite3", now_s=now_s)

    return make


@pytest.fixture(params=[in_memory, in_sqlite], ids=["memory", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return request.param(tmp_path)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=check_name)
def test_store(check: Check, make: Make):
    check(make)


def test_all_checks_run_at_once(make: Make):
    made: list[Store] = []

    def counted(now_s: Callable[[], float]) -> Store:
        made.append(make(now_s))
        return made[-1]

    check_store(counted)
    assert len(made) == len(STORE_CHECKS)


class Forgetful(MemoryStore):
    """Loses every lease."""

    def acquire(self, run, holder):
        self._find(run).holder = None
        return super().acquire(run, holder)


def test_the_suite_finds_a_broken_promise():
    with pytest.raises(AssertionError, match="RunLockedError was not raised"):
        check_store(Forgetful)


@pytest.fixture
def dead_holder() -> str:
    """The name of a process that was killed without a chance to clean up."""
    script = (
        "import os, signal; from accord.log.store.holder import this_process;"
        "print(this_process(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


def test_a_killed_holders_lease_is_free_at_once(make: Make, dead_holder: str):
    store = make(Now())
    stale = store.acquire(store.create("run", "flow"), dead_holder)
    assert not store.runs()[0].held
    assert store.acquire("run", "elsewhere/1/1").token > stale.token


def test_a_live_holder_of_this_machine_keeps_its_lease(make: Make):
    store = make(Now())
    store.acquire(store.create("run", "flow"), this_process())
    with pytest.raises(RunLockedError, match=str(os.getpid())):
        store.acquire("run", "elsewhere/1/1")


def test_who_is_dead_is_known_only_of_this_machine(dead_holder: str):
    host, pid, start = this_process().split("/")
    assert surely_dead(dead_holder)
    assert surely_dead(f"{host}/{pid}/1"), "another process had this number before"
    assert not surely_dead(f"{host}/{pid}/{start}")
    assert not surely_dead(dead_holder.replace(host, "elsewhere", 1))
    assert not surely_dead("a name of another form")


def test_a_holder_that_nobody_waited_for_is_dead():
    script = (
        "from accord.log.store.holder import this_process;"
        "print(this_process(), flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    holder = child.stdout.readline().strip()
    assert not surely_dead(holder)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from here on
    assert surely_dead(holder)
    child.communicate()
