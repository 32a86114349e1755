"""Joins: what they wait for, whom they drop, and that a replay drops the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from accord import Agent, Runtime, gather, sleep, step
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.errors import JoinError, UsageError
from accord.log.events import CallCancelled, CallFailed, CallStarted, Joined, RunResumed
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.runtime import Result
from accord.sync.hedge import Hedge
from accord.testing.scripted import ScriptedEngine
from tests.sync.replays import cut_anywhere

Flow = Callable[..., Coroutine[Any, Any, Any]]


def result_of(flow: Flow, *inputs: Any, engine: Any = None, store: Any = None) -> Result[Any]:
    async def main() -> Result[Any]:
        async with Runtime(
            engine=engine or ScriptedEngine(), log=store or "memory", clock=VirtualClock()
        ) as runtime:
            return await runtime.arun(flow, *inputs)

    return run_virtual(main())


@step(pure=True)
async def work(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return ms


@step(pure=True)
async def fail(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    raise ValueError(ms)


async def timed(**options: Any) -> tuple[list[int], float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    came = await gather([work(ms) for ms in (10, 20, 30, 40, 2000)], **options)
    return came, loop.time() - began


@pytest.mark.parametrize(
    ("options", "came", "after_s"),
    [
        ({}, [10, 20, 30, 40, 2000], 2.0),
        ({"until": "any"}, [10], 0.01),
        ({"until": 4}, [10, 20, 30, 40], 0.04),
        ({"deadline_s": 0.1}, [10, 20, 30, 40], 0.1),
        ({"deadline_s": 0.005}, [], 0.005),
        ({"until": 4, "deadline_s": 0.025}, [10, 20], 0.025),
        ({"until": 5}, [10, 20, 30, 40, 2000], 2.0),
    ],
)
def test_a_join_releases_with_what_it_waits_for(options: dict, came: list, after_s: float):
    """SYN-4"""
    result = result_of(_with(options))
    got, took = result.output
    assert got == came
    assert took == pytest.approx(after_s, abs=1e-6)
    calls = index_calls(result.log.envelopes)
    dropped = [c for c in calls.by_scope.values() if isinstance(c.ended, CallCancelled)]
    assert len(dropped) == 5 - len(came)
    assert result.tax.closes


def _with(options: dict[str, Any]) -> Flow:
    async def flow() -> Any:
        return await timed(**options)

    return flow


def test_what_is_dropped_is_billed_as_cancelled_and_wasted():
    """SYN-4"""
    slow = ScriptedEngine("one two three", decode_s=lambda r: float(r.agent[1:]), pieces=3)

    async def flow() -> list[str]:
        return await gather((Agent(f"a{n}")("go") for n in (1, 2, 9)), until=2)

    result = result_of(flow, engine=slow)
    assert len(result.output) == 2
    [call] = [
        c
        for c in index_calls(result.log.envelopes).by_start.values()
        if c.started.kind == "agent" and isinstance(c.ended, CallCancelled)
    ]
    assert call.started.name == "a9"
    assert result.tax.tokens.wasted >= 0
    assert result.tax.closes


def test_waiting_for_a_deadline_is_called_waiting():
    result = result_of(_with({"deadline_s": 0.1}))
    assert result.tax.time.waiting == pytest.approx(0.06)


def test_too_many_failures_for_a_join_are_said():
    async def flow() -> Any:
        return await gather(work(1), fail(2), fail(3), policy="isolate", until=2)

    with pytest.raises(JoinError, match="waits for 2 of 3 branches, and 2 failed") as caught:
        result_of(flow)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failure_after_the_release_is_nobodys():
    async def cleans_up_badly() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise ValueError("in cleaning up")

    async def flow() -> Any:
        return await gather(work(1), cleans_up_badly(), until="any")

    assert result_of(flow).output == [1]


@pytest.mark.parametrize(
    "options",
    [{"until": 0}, {"until": 6}, {"until": "most"}, {"deadline_s": 0}, {"deadline_s": -1}],
)
def test_bad_joins_are_refused(options: dict):
    with pytest.raises(UsageError, match=r"any|deadline_s"):
        result_of(_with(options))


def test_a_replay_drops_the_same_whatever_is_faster_now():
    pace = {"a": 10, "b": 20}
    stop = [True]

    @step(pure=True)
    async def race(name: str) -> str:
        await asyncio.sleep(pace[name])
        return name

    async def flow() -> Any:
        first = await gather(race("a"), race("b"), until="any")
        await sleep(1)
        if stop[0]:
            raise ValueError("stop")
        return first

    async def main() -> Any:
        store = MemoryStore()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            with pytest.raises(ValueError, match="stop"):
                await runtime.arun(flow, run_id="r")
            pace.update(a=20, b=10)
            stop[0] = False
            result = await runtime.aresume("r", flow)
        after = next(e for e in result.log.envelopes if isinstance(e.event, RunResumed)).seq
        again = [e for e in result.log.envelopes[after:] if isinstance(e.event, CallStarted)]
        return result.output, again

    output, again = run_virtual(main())
    assert output == ["a"]
    assert not again


def test_the_deadline_of_a_join_goes_on_after_a_crash():
    """It is counted on the run's clock from where the branches began."""

    async def flow() -> Any:
        return await gather(work(10), work(60), work(5000), deadline_s=0.1)

    async def main() -> Any:
        store = MemoryStore()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            task = asyncio.get_running_loop().create_task(runtime.arun(flow, run_id="r"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            began = asyncio.get_running_loop().time()
            result = await runtime.aresume("r", flow)
            return result.output, asyncio.get_running_loop().time() - began

    output, took = run_virtual(main())
    assert took == pytest.approx(0.05, abs=0.001)
    assert output == [10]


@pytest.mark.parametrize("deadline_s", [60, 0.075])
def test_a_join_that_is_recorded_is_not_decided_again_after_its_deadline(deadline_s: float):
    """Whom it had, it has, however late it is when the run is resumed."""

    async def branch(ms: int) -> int:
        await asyncio.sleep(0.01)  # so that a replay is not done in one turn
        return await work(ms)

    async def flow() -> list[Any]:
        came = await gather(branch(10), branch(20), branch(200), deadline_s=deadline_s)
        await sleep(120)
        return [came, await work(3)]

    came = [10, 20, 200] if deadline_s == 60 else [10, 20]
    assert cut_anywhere(flow).value == [came, 3]


def test_branches_beyond_the_limit_need_not_begin():
    async def flow() -> Any:
        return await gather((work(ms) for ms in (5, 6, 7, 8)), until=2, limit=2)

    result = result_of(flow)
    assert result.output == [5, 6]
    joined = [e.event for e in result.log.envelopes if isinstance(e.event, Joined)]
    assert [each.dropped for each in joined] == [(2, 3)]


# ---------------------------------------------------------------------------------------- hedging


def straggling(seed: int, share: float = 0.05) -> Callable[..., Coroutine[Any, Any, int]]:
    random = Random(seed)

    @step(pure=True, name="call")
    async def call(index: int) -> int:
        slow = 10.0 if random.random() < share else 1.0
        await asyncio.sleep(slow * random.uniform(0.8, 1.2))
        return index

    return call


def test_hedging_waits_for_no_straggler():
    hedge = Hedge()

    async def flow(seed: int) -> list[float]:
        call = straggling(seed)
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for _ in range(30):
            began = loop.time()
            assert await gather(hedge(call, index) for index in range(16)) == list(range(16))
            took.append(loop.time() - began)
        return took

    for seed in range(5):
        result = result_of(flow, seed)
        assert max(result.output[10:]) < 6  # of 8 to 12 unhedged
        statistics = hedge.statistics(result.log, "call")
        assert 0 < statistics.hedges <= 0.1 * 16 * 30
        assert statistics.calls == 16 * 30 + statistics.hedges
        assert statistics.p95_s == pytest.approx(1.15, abs=0.1)
        assert result.tax.closes


def test_hedges_answer_from_the_log():
    hedge = Hedge(after_s=1.5)
    made: list[int] = []

    @step(pure=True)
    async def slow_at_first(index: int) -> int:
        made.append(index)
        await asyncio.sleep(1 if len(made) > 1 else 10)
        return len(made)

    async def flow() -> Any:
        got = [await hedge(slow_at_first, 7)]
        await sleep(1)
        return [*got, await work(5)]

    async def main() -> Any:
        store = MemoryStore()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            task = asyncio.get_running_loop().create_task(runtime.arun(flow, run_id="r"))
            await asyncio.sleep(3)
            task.cancel()
            await asyncio.wait([task])
            began = asyncio.get_running_loop().time()
            result = await runtime.aresume("r", flow)
            return result.output, asyncio.get_running_loop().time() - began

    output, took = run_virtual(main())
    assert (output, made) == ([2, 5], [7, 7])
    assert took < 1


def test_what_has_effects_is_not_hedged():
    @step
    async def charge(amount: int) -> int:
        return amount

    async def flow() -> Any:
        return await Hedge()(charge, 5)

    with pytest.raises(UsageError, match="'charge' has effects"):
        result_of(flow)
    with pytest.raises(UsageError, match="attempts"):
        Hedge(attempts=1)


def test_waits_add_up_to_the_makespan_with_hedges():
    hedge = Hedge()

    async def flow() -> Any:
        call = straggling(3)
        await gather(hedge(call, index) for index in range(20))

    result = result_of(flow)
    time = result.tax.time
    assert time.makespan * NANOSECONDS == result.log.envelopes[-1].at


def test_of_two_failures_in_one_turn_the_first_is_raised_and_again_on_a_replay():
    """The other is cancelled before it fails: there is one failure to come back to."""

    @step(pure=True)
    async def fails(name: str, ms: int) -> None:
        await asyncio.sleep(ms / 1000)
        raise ValueError(name)

    async def flow() -> Any:
        try:
            await gather(fails("late", 10), fails("early", 10), fails("slow", 99))
        except ValueError as error:
            first = str(error)
        await work(5)
        if stop:
            raise RuntimeError("stop")
        return first

    stop = True

    async def main() -> Any:
        nonlocal stop
        async with Runtime(
            engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock()
        ) as runtime:
            with pytest.raises(RuntimeError, match="stop"):
                await runtime.arun(flow, run_id="r")
            stop = False
            return await runtime.aresume("r", flow)

    result = run_virtual(main())
    assert result.output == "late"
    failed = [e for e in result.log.envelopes if isinstance(e.event, CallFailed)]
    assert len(failed) == 1


def test_the_failure_that_a_join_names_does_not_depend_on_time():
    """Whichever failed first, it is the first in the order given: a replay says the same."""

    async def flow(late: int, early: int) -> Any:
        return await gather(fail(late), fail(early), work(5), policy="isolate", until=2)

    for late, early in ((30, 10), (10, 30)):
        with pytest.raises(JoinError, match=f"the first with ValueError: {late}"):
            result_of(flow, late, early)
