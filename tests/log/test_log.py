"""Append, wait until it is safe, look."""

import asyncio
import os
import queue
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.errors import FencedError, LogWriteError, UnserializableError
from accord.log.events import RunResumed
from accord.log.log import GROUP_EVENTS, Heartbeat, Log, read_log
from accord.log.store.base import Durability, Lease
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance.kit import ELSEWHERE, Now
from tests.log.logs import new_log, note, numbers

WAITED_FOR: list[Durability] = ["sync", "async"]


class SmallStore(MemoryStore):
    """Has room, or has not."""

    room = True

    def append(self, lease, first, records, blobs):
        if not self.room:
            raise LogWriteError("no room")
        super().append(lease, first, records, blobs)


# -- append ------------------------------------------------------------------------------------


def test_an_event_has_its_number_time_place_and_causes_at_once():
    async def main():
        log, store = new_log()
        await asyncio.sleep(2)
        assert log.append("0/1", (), note(7)) == 0
        assert log.append("0/2", (0,), note(8)) == 1
        first, second = log.envelopes
        assert (first.seq, first.at, first.scope, first.causes) == (0, 2 * NANOSECONDS, "0/1", ())
        assert (second.seq, second.scope, second.causes) == (1, "0/2", (0,))
        assert numbers(log) == [7, 8]
        assert store.read(log.run) == [], "not yet safe"

    run_virtual(main())


def test_what_nobody_waits_for_is_written_at_the_end_of_the_turn():
    async def main():
        log, store = new_log()
        for number in range(5):
            log.append("", (), note(number))
        await asyncio.sleep(0)
        assert len(store.read(log.run)) == 5
        assert log.statistics().commits == 1

    run_virtual(main())


def test_a_long_turn_is_written_in_groups_of_bounded_size():
    async def main():
        log, store = new_log()
        for number in range(2 * GROUP_EVENTS + 10):
            log.append("", (), note(number))
        assert len(log.envelopes) - len(store.read(log.run)) <= GROUP_EVENTS

    run_virtual(main())


class Ticking:
    """A clock that moves by a second whenever somebody looks."""

    seconds = 0

    def now_ns(self) -> int:
        self.seconds += 1
        return self.seconds * NANOSECONDS

    def epoch_s(self) -> float:
        return float(self.seconds)


def test_a_turn_that_takes_long_does_not_keep_old_events_unwritten():
    async def main():
        store = MemoryStore()
        lease = store.acquire(store.create(None, "flow"), ELSEWHERE)
        log = Log(store, lease.run, clock=Ticking(), lease=lease)
        for number in range(10):
            log.append("", (), note(number))
        assert len(store.read(log.run)) >= 8

    asyncio.run(main())


# -- barrier -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", WAITED_FOR)
def test_after_a_barrier_another_process_can_read_it(tmp_path: Path, durability: Durability):
    path = tmp_path / "log.sqlite3"

    async def main():
        log, store = new_log(SqliteStore(path, now_s=Now(), durability=durability), durability)
        log.append("", (), note(1))
        await log.barrier()
        other = SqliteStore(path, now_s=Now())
        assert numbers(read_log(other, log.run, VirtualClock())) == [1]
        other.close()
        store.close()

    run_virtual(main())


def test_with_exit_nothing_is_written_before_the_end():
    async def main():
        log, store = new_log(durability="exit")
        for number in range(3):
            log.append("", (), note(number))
            await log.barrier()
            await asyncio.sleep(1)
        assert store.read(log.run) == []
        log.close()
        assert len(store.read(log.run)) == 3
        assert log.statistics().commits == 1

    run_virtual(main())


def test_a_barrier_with_nothing_to_wait_for_returns_at_once():
    async def main():
        log, _ = new_log()
        await log.barrier()
        log.append("", (), note(1))
        await log.barrier()
        await log.barrier()
        assert log.statistics().commits == 1

    run_virtual(main())


def test_code_that_is_alone_commits_on_the_spot():
    async def main():
        log, store = new_log()
        log.append("", (), note(1))
        waiting = log.barrier(alone=True)
        with pytest.raises(StopIteration):
            waiting.send(None)  # it never gave the turn away
        assert len(store.read(log.run)) == 1

    run_virtual(main())


def test_branches_that_wait_in_one_turn_share_a_transaction():
    async def main():
        log, store = new_log()

        async def one(number: int) -> None:
            log.append("", (), note(number))
            await log.barrier()
            assert numbers(log) == list(range(20))
            assert len(store.read(log.run)) == 20

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))
        assert log.statistics().commits == 1
        assert log.statistics().events == 20

    run_virtual(main())


def test_cancelled_waiters_disturb_nobody_and_undo_nothing():
    """CKP-11: an event is a fact once it is appended; to stop waiting for it does not unmake it."""
    safe: list[int] = []

    async def main():
        log, store = new_log()

        async def one(number: int) -> None:
            log.append("", (), note(number))
            await log.barrier()
            safe.append(number)

        tasks = [asyncio.get_running_loop().create_task(one(number)) for number in range(20)]
        await asyncio.sleep(0)
        assert store.read(log.run) == []
        for task in tasks[::3]:
            task.cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [number % 3 == 0 for number in range(20)]
        assert safe == [number for number in range(20) if number % 3]
        assert len(store.read(log.run)) == 20
        assert numbers(log) == list(range(20))
        assert log.statistics().commits == 1

    run_virtual(main())


CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from accord.clock import WallClock
from accord.log.events import RunResumed
from accord.log.log import Log
from accord.log.store.holder import this_process
from accord.log.store.sqlite import SqliteStore

async def main(path, durability):
    clock = WallClock()
    store = SqliteStore(path, now_s=clock.epoch_s, durability=durability)
    lease = store.acquire(store.create("run", "flow"), this_process())
    log = Log(store, "run", clock=clock, lease=lease, durability=durability)
    for number in range(10):
        log.append("", (), RunResumed(version=str(number)))
    await log.barrier()
    log.append("", (), RunResumed(version="nobody waits"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize(("durability", "survive"), [("sync", 10), ("async", 10), ("exit", 0)])
def test_what_was_waited_for_survives_kill_9(tmp_path: Path, durability: str, survive: int):
    path = tmp_path / "log.sqlite3"
    done = subprocess.run([sys.executable, "-c", CRASH, path, durability], check=False)
    assert done.returncode == -signal.SIGKILL
    store = SqliteStore(path, now_s=Now())
    assert len(store.read("run")) == survive
    assert store.check() == []
    store.close()


# -- failure -----------------------------------------------------------------------------------


def test_a_failing_store_is_reported_to_every_waiter_and_to_whoever_comes_later():
    failures: list[str] = []

    async def main():
        store = SmallStore()
        log, _ = new_log(store)
        store.room = False

        async def one(number: int) -> None:
            log.append("", (), note(number))
            try:
                await log.barrier()
            except LogWriteError as error:
                failures.append(str(error))

        tasks = [asyncio.get_running_loop().create_task(one(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # disturbs the others no more than it does in success
        await asyncio.wait(tasks)
        with pytest.raises(LogWriteError, match="no room"):
            log.append("", (), note(5))
        with pytest.raises(LogWriteError, match="no room"):
            await log.barrier()
        assert numbers(log) == [0, 1, 2, 3, 4], "what happened is kept"

    run_virtual(main())
    assert failures == ["no room"] * 4


def test_what_could_not_be_written_is_written_at_the_end_if_there_is_room_again():
    async def main():
        store = SmallStore()
        log, _ = new_log(store)
        store.room = False
        log.append("", (), note(1))
        large = log.values.encode("x" * 5000)
        with pytest.raises(LogWriteError):
            await log.barrier()
        assert log.statistics().commits == 0
        store.room = True
        log.close()
        again = read_log(store, log.run, VirtualClock())
        assert numbers(again) == [1]
        assert again.values.decode(large) == "x" * 5000

    run_virtual(main())


def test_a_close_that_cannot_write_still_gives_the_lease_back():
    async def main():
        store = SmallStore()
        log, _ = new_log(store)
        log.append("", (), note(1))
        store.room = False
        with pytest.raises(LogWriteError):
            log.close()
        store.acquire(log.run, "other-host/2/2")
        await asyncio.sleep(0)

    run_virtual(main())


def test_a_log_that_lost_its_lease_stops():
    async def main():
        log, store = new_log()
        assert log.lease is not None
        store.release(log.lease)
        store.acquire(log.run, "other-host/2/2")
        log.append("", (), note(1))
        with pytest.raises(FencedError, match=log.run):
            await log.barrier()
        assert store.read(log.run) == []

    run_virtual(main())


def test_an_event_that_cannot_be_written_fails_its_waiters_and_hangs_nobody():
    async def main():
        log, _ = new_log()
        log.append("", (), RunResumed(version="a\ud800b"))
        with pytest.raises(UnserializableError, match="event 0"):
            await log.barrier()

    run_virtual(main())


# -- reopen ------------------------------------------------------------------------------------


def test_the_clock_of_a_run_stands_still_while_nobody_runs_it():
    async def main():
        log, store = new_log()
        await asyncio.sleep(5)
        log.append("", (), note(1))
        log.close()
        await asyncio.sleep(1000)
        lease = store.acquire(log.run, ELSEWHERE)
        again = Log(store, log.run, clock=VirtualClock(), lease=lease)
        assert again.now() == 5 * NANOSECONDS
        await asyncio.sleep(2)
        assert again.append("", (0,), note(2)) == 1
        again.close()
        times = [envelope.at for envelope in read_log(store, log.run, VirtualClock()).envelopes]
        assert times == [5 * NANOSECONDS, 7 * NANOSECONDS]

    run_virtual(main())


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.integers(0, 9)), max_size=10))
def test_a_log_read_again_equals_the_one_that_was_written(events: list[tuple[str, int]]):
    async def main():
        log, store = new_log()
        for scope, number in events:
            await asyncio.sleep(number)
            log.append(scope, tuple(range(len(log.envelopes))), note(number))
        log.close()
        again = read_log(store, log.run, VirtualClock())
        assert again.envelopes == log.envelopes
        assert all(one.at <= two.at for one, two in pairwise(again.envelopes))

    run_virtual(main())


# -- heartbeat ---------------------------------------------------------------------------------


class Renewals(MemoryStore):
    """Reports each renewal, and fails as told."""

    def __init__(self, *outcomes: Exception | None):
        super().__init__()
        self.outcomes = iter(outcomes)
        self.renewed: queue.SimpleQueue[Lease] = queue.SimpleQueue()

    def renew(self, lease):
        self.renewed.put(lease)
        if (error := next(self.outcomes, None)) is not None:
            raise error


def test_a_heartbeat_outlasts_a_full_disk_and_ends_with_its_lease():
    store = Renewals(None, LogWriteError("full"), None, FencedError("lost"))
    lease = Lease(run="run", token=1, holder=f"host/{os.getpid()}/1")
    heartbeat = Heartbeat(store, lease, every_s=0.001)
    assert [store.renewed.get(timeout=10) for _ in range(4)] == [lease] * 4
    heartbeat._thread.join(10)
    assert not heartbeat._thread.is_alive()
    assert store.renewed.empty()


def test_a_stopped_heartbeat_has_ended():
    store = Renewals()
    heartbeat = Heartbeat(store, Lease(run="run", token=1, holder="host/1/1"), every_s=0.001)
    store.renewed.get(timeout=10)
    heartbeat.stop()
    assert not heartbeat._thread.is_alive()
