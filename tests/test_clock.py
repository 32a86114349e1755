"""Virtual time: jumps when all wait, stands still while a thread works, and repeats."""

import asyncio
from threading import Event
from types import SimpleNamespace

import pytest

from accord import Agent, Runtime
from accord.clock import (
    NANOSECONDS,
    VirtualClock,
    VirtualLoop,
    WallClock,
    run_virtual,
)
from accord.errors import DeadlockError, UsageError
from accord.flow.thread import in_thread
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine

HOUR_S = 3600.0


async def work_in_thread(work):
    """As a step runs a plain function: in a daemon thread that the loop knows of."""
    return await in_thread(SimpleNamespace(thread_running=False), work)  # pyright: ignore[reportArgumentType]


def test_time_jumps_to_the_next_timer():
    async def main():
        clock = VirtualClock()
        assert clock.now_ns() == 0
        await asyncio.sleep(1.5)
        assert clock.now_ns() == 1_500_000_000
        assert clock.epoch_s() == asyncio.get_running_loop().time() == 1.5

    run_virtual(main())


def test_a_thousand_hours_take_no_time():
    async def main():
        for _ in range(1000):
            await asyncio.sleep(HOUR_S)
        await asyncio.sleep(1000 * HOUR_S)
        return VirtualClock().now_ns()

    began_ns = WallClock().now_ns()
    assert run_virtual(main()) == pytest.approx(2000 * HOUR_S * NANOSECONDS, rel=1e-9)
    assert WallClock().now_ns() - began_ns < 30 * NANOSECONDS


def test_sleepers_wake_in_the_order_of_their_times():
    woken = []

    async def sleeper(delay_s):
        await asyncio.sleep(delay_s)
        woken.append((delay_s, VirtualClock().now_ns()))

    async def main():
        async with asyncio.TaskGroup() as group:
            for delay_s in (3.0, 0.001, HOUR_S, 2.0, 0.0, 1e-9):
                group.create_task(sleeper(delay_s))

    run_virtual(main())
    assert woken == [
        (delay_s, round(delay_s * NANOSECONDS)) for delay_s in (0.0, 1e-9, 0.001, 2.0, 3.0, HOUR_S)
    ]


def test_time_stands_still_while_a_task_can_go_on():
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert VirtualClock().now_ns() == 0
        assert VirtualClock().now_ns() == 10 * NANOSECONDS

    run_virtual(main())


def test_a_timeout_is_virtual():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR_S):
                await asyncio.sleep(2 * HOUR_S)
        assert VirtualClock().now_ns() == HOUR_S * NANOSECONDS
        async with asyncio.timeout(HOUR_S):
            await asyncio.sleep(HOUR_S - 1)

    run_virtual(main())


@pytest.mark.parametrize("in_thread", [asyncio.to_thread, work_in_thread])
def test_a_thread_at_work_holds_time(in_thread):
    """The timer could only fire first by a jump: in real time an hour would pass."""
    order = []
    go = Event()

    async def thread():
        order.append(await in_thread(lambda: go.wait() and "thread"))

    async def timer():
        await asyncio.sleep(HOUR_S)
        order.append("timer")

    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(thread())
            group.create_task(timer())
            await asyncio.sleep(0)
            assert isinstance(loop, VirtualLoop)
            loop.call_soon(loop.call_soon, go.set)
        assert loop.threads_in_flight == 0

    run_virtual(main())
    assert order == ["thread", "timer"]


@pytest.mark.parametrize("in_thread", [asyncio.to_thread, work_in_thread])
def test_time_goes_on_after_a_thread_that_failed(in_thread):
    def fail():
        raise ZeroDivisionError

    async def main():
        with pytest.raises(ZeroDivisionError):
            await in_thread(fail)
        await asyncio.sleep(HOUR_S)
        return VirtualClock().now_ns()

    assert run_virtual(main()) == HOUR_S * NANOSECONDS


def test_time_goes_on_when_the_task_that_waited_for_a_thread_is_cancelled():
    go = Event()

    async def main():
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(go.wait))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(HOUR_S)
        go.set()
        return VirtualClock().now_ns()

    assert run_virtual(main()) == HOUR_S * NANOSECONDS


def test_a_deadlock_is_reported_and_the_waiters_are_cleaned_up():
    cleaned = []

    async def waiter(name):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(name)

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(waiter("a"))
            group.create_task(waiter("b"))

    with pytest.raises(DeadlockError, match="every task waits"):
        run_virtual(main())
    assert sorted(cleaned) == ["a", "b"]


def test_a_deadlock_waits_for_the_last_timer():
    seen = []

    async def main():
        asyncio.get_running_loop().call_later(HOUR_S, seen.append, "timer")
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(main())
    assert seen == ["timer"]


def test_two_runs_give_the_same_order_and_times():
    def trace():
        seen = []

        async def worker(number):
            for step in range(5):
                await asyncio.sleep((number * 7 + step * 3) % 5 / 3)
                seen.append((number, step, VirtualClock().now_ns()))
                if step == 2:
                    await asyncio.to_thread(seen.append, (number, "thread"))

        async def main():
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(worker(number))

        run_virtual(main())
        return seen

    def without_threads(seen):
        return [each for each in seen if each[1] != "thread"]

    first, second = trace(), trace()
    assert len(first) == 20 * 6
    assert sorted(map(str, first)) == sorted(map(str, second))
    assert [each[2] for each in without_threads(first)] == [
        each[2] for each in without_threads(second)
    ]


def test_the_virtual_clock_belongs_to_a_virtual_loop():
    async def main():
        return VirtualClock().now_ns()

    with pytest.raises(UsageError, match="run_virtual"):
        asyncio.run(main())


def test_the_wall_clock_never_goes_backwards():
    clock = WallClock()
    times = [clock.now_ns() for _ in range(1000)]
    assert times == sorted(times)
    assert clock.epoch_s() > 1.7e9


def test_a_virtual_loop_needs_a_virtual_clock() -> None:
    """The machine's clock would tell times that are none of the run's."""

    async def main() -> None:
        runtime = Runtime(engine=ScriptedEngine("ok"), log=MemoryStore())
        with pytest.raises(UsageError, match="VirtualClock"):
            await runtime.arun(Agent("agent"), "go")

    run_virtual(main())
