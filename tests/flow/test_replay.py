"""A resumed flow that goes another way is caught before it does harm; a mended call may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accord import Agent, Runtime, gather, run, step, stream, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import ToolCall
from accord.errors import (
    AccordError,
    FlowChangedError,
    LogWriteError,
    OutputError,
    UnserializableError,
)
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.testing.scripted import ScriptedEngine

paid: list[str] = []


@step
async def pay(what: str) -> str:
    paid.append(what)
    return what


class StopError(Exception):
    """Ends a run, so that it can be resumed."""


async def one_call() -> None:
    await pay("a")


async def two_calls() -> None:
    await pay("a")
    await pay("b")


async def other_call() -> None:
    await pay("c")


async def one_branch() -> None:
    await gather(pay("a"))


async def three_branches() -> None:
    await gather(pay("a"), pay("b"), pay("c"))


async def four_branches() -> None:
    await gather(pay("a"), pay("b"), pay("c"), pay("d"))


async def other_order() -> None:
    await gather(pay("b"), pay("a"), pay("c"))


async def own_tasks() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(pay("a"))
        group.create_task(pay("b"))


async def no_call() -> None: ...


async def join_of_flows() -> None:
    await gather(two_calls())


async def join_of_shorter_flows() -> None:
    await gather(one_call())


CHANGES = [
    (one_call, other_call),
    (one_call, one_branch),
    (one_branch, one_call),
    (one_call, no_call),
    (two_calls, one_call),
    (three_branches, one_branch),
    (three_branches, four_branches),
    (three_branches, other_order),
    (three_branches, no_call),
    (own_tasks, no_call),
    (join_of_flows, join_of_shorter_flows),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_flow_that_goes_another_way_is_caught_and_pays_nothing_twice(
    before: Any, after: Any
) -> None:
    async def then() -> None:
        await before()
        raise StopError

    paid.clear()
    store = MemoryStore()
    runtime = Runtime(engine=ScriptedEngine(), log=store)
    with pytest.raises(StopError):
        runtime.run(then, run_id="r")
    with pytest.raises((FlowChangedError, ExceptionGroup)):
        runtime.resume("r", after)
    assert len(paid) == len(set(paid)), "no effect was repeated"
    with pytest.raises(StopError):
        runtime.resume("r", then)  # the old flow still goes on from where it was


def test_a_task_that_begins_with_a_join_keeps_its_place_if_it_has_a_name() -> None:
    async def named(name: str, seconds: float) -> list[str]:
        await asyncio.sleep(seconds)
        return await gather(pay(f"{name}1"), pay(f"{name}2"))

    def flow(slow: float, quick: float, *, stop: bool) -> Any:
        async def run_tasks() -> list[Any]:
            async with asyncio.TaskGroup() as group:
                one = group.create_task(named("a", slow), name="a")
                two = group.create_task(named("b", quick), name="b")
            if stop:
                raise StopError
            return [one.result(), two.result()]

        return run_tasks

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        with pytest.raises(StopError):
            await runtime.arun(flow(2, 1, stop=True), run_id="r")
        return (await runtime.aresume("r", flow(1, 2, stop=False))).output

    paid.clear()
    assert run_virtual(main()) == [["a1", "a2"], ["b1", "b2"]]
    assert sorted(paid) == ["a1", "a2", "b1", "b2"]


def test_an_agent_that_failed_may_be_mended_and_resumed() -> None:
    """The instructions of the call that failed may change; what finished before stays."""
    engine = ScriptedEngine(["first", "not a number", "7"])
    first = Agent("first", "Say something.")

    def flow(counter: Agent[int]) -> Any:
        async def count() -> int:
            await first("go")
            return await counter("how many?")

        return count

    runtime = Runtime(engine=engine, log=MemoryStore())
    with pytest.raises(OutputError):
        runtime.run(flow(Agent("counter", "Count.", output=int, repairs=0)), run_id="r")
    mended = Agent("counter", "Count. Reply with digits only.", output=int, repairs=0)
    result = runtime.resume("r", flow(mended))
    assert result.output == 7
    assert len(engine.requests) == 3
    assert result.tax.closes
    assert result.tax.agents["counter"].requests == 2, "the failed reply was paid for, too"


def test_an_agent_that_failed_after_an_effect_may_not_change() -> None:
    @tool
    def charge() -> str:
        """Charge the card."""
        paid.append("card")
        return "charged"

    asked = [ToolCall(id="1", name="charge", arguments="{}")]
    engine = ScriptedEngine([asked, "no number"])

    def agent(instructions: str) -> Agent[int]:
        return Agent("clerk", instructions, output=int, tools=[charge], repairs=0)

    paid.clear()
    runtime = Runtime(engine=engine, log=MemoryStore())
    with pytest.raises(OutputError):
        runtime.run(agent("Charge, then count."), "go", run_id="r")
    with pytest.raises(FlowChangedError):
        runtime.resume("r", agent("Charge once, then count."))
    assert paid == ["card"]


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Other."},
        {"output": int},
        {"model": "m"},
        {"max_tokens": 7},
        {"temperature": 0.5},
        {"seed": 3},
        {"stop": ["x"]},
        {"extra": {"top_k": 1}},
        {"tools": [tool(lambda: "x", name="t")]},
    ],
)
def test_each_part_of_an_agents_definition_is_in_its_key(change: dict[str, Any]) -> None:
    def flow(agent: Agent[Any]) -> Any:
        async def ask() -> None:
            await agent("go")
            raise StopError

        return ask

    runtime = Runtime(engine=ScriptedEngine("7"), log=MemoryStore())
    with pytest.raises(StopError):
        runtime.run(flow(Agent("a", "Do.")), run_id="r")
    with pytest.raises(FlowChangedError):
        runtime.resume("r", flow(Agent("a", **{"instructions": "Do.", **change})))


def test_a_run_whose_input_cannot_be_recorded_has_not_been() -> None:
    async def flow(_: object) -> None: ...

    store = MemoryStore()
    runtime = Runtime(engine=ScriptedEngine(), log=store)
    with pytest.raises(UnserializableError, match="the input of the run"):
        runtime.run(flow, object(), run_id="r")
    assert store.runs() == []
    runtime.run(flow, "plain", run_id="r")


def test_an_output_that_cannot_be_recorded_fails_the_run_in_the_log() -> None:
    async def flow() -> object:
        return object()

    store = MemoryStore()
    with pytest.raises(UnserializableError):
        run(flow, engine=ScriptedEngine(), log=store, run_id="r")
    assert b"RunFailed" in store.read("r")[-1]


def test_a_stream_ends_even_if_the_flow_cancels_itself() -> None:
    async def flow() -> None:
        raise asyncio.CancelledError

    async def main() -> list[Any]:
        seen: list[Any] = []

        async def consume() -> None:
            async for item in stream(
                flow, engine=ScriptedEngine(), log="memory", clock=VirtualClock()
            ):
                seen.append(item)  # noqa: PERF401  # what came before the end counts

        with pytest.raises((asyncio.CancelledError, AccordError)):
            await consume()
        return seen

    assert "RunInterrupted" in repr(run_virtual(main())[-1])


def test_joins_of_nothing_cost_nothing() -> None:
    async def flow() -> str:
        for _ in range(3000):
            await gather([])
        return await pay("x")

    result = run(flow, engine=ScriptedEngine(), log="memory")
    assert len(result.log.envelopes) == 4
    assert result.tax.closes


def test_many_joins_in_a_row_are_no_deep_recursion() -> None:
    async def flow() -> None:
        for _ in range(3000):
            await gather(asyncio.sleep(0), asyncio.sleep(0))

    assert run(flow, engine=ScriptedEngine(), log="memory").tax.closes


def test_a_cancellation_is_not_replaced_by_a_log_that_failed() -> None:
    class Full(SqliteStore):
        def append(self, *_: Any) -> None:
            raise LogWriteError("no room")

    async def flow() -> None:
        await asyncio.sleep(10)

    async def main(store: SqliteStore) -> None:
        runtime = Runtime(engine=ScriptedEngine(), log=store)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(flow))
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()

    import tempfile
    from pathlib import Path

    from accord.clock import WallClock

    with tempfile.TemporaryDirectory() as folder:
        store = Full(Path(folder) / "log.db", now_s=WallClock().epoch_s)
        with pytest.raises((ExceptionGroup, asyncio.CancelledError)):
            asyncio.run(main(store))
        store.close()
