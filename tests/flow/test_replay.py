"""A resumed flow that goes another way is caught before it does harm; a mended call may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from accord import Agent, Runtime, gather, run, step, stream, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import ToolCall
from accord.errors import (
    AccordError,
    CallTimeoutError,
    FlowChangedError,
    LogWriteError,
    OutputError,
    RateLimitedError,
    UnknownOutcomeError,
    UnserializableError,
    UsageError,
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
    options: Any = {"instructions": "Do.", **change}
    with pytest.raises(StopError):
        runtime.run(flow(Agent("a", "Do.")), run_id="r")
    with pytest.raises(FlowChangedError):
        runtime.resume("r", flow(Agent("a", **options)))


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


class MendedError(Exception):
    """Stands for a fault of the world that is mended before the resume."""


@pytest.mark.parametrize("way", ["finally", "except", "context", "gather", "other error"])
def test_cleaning_up_after_a_failure_does_not_keep_it(way: str) -> None:
    """A run that failed, and cleaned up with calls, goes on when the cause is mended."""
    mended: list[int] = []

    @step
    async def flaky() -> str:
        if not mended:
            raise ConnectionError("no route")
        return "ok"

    @asynccontextmanager
    async def tidy() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await pay("tidy")

    async def flow() -> str:
        if way == "finally":
            try:
                return await flaky()
            finally:
                await pay("clean")
        if way == "context":
            async with tidy():
                return await flaky()
        if way == "gather":
            try:
                return (await gather(flaky(), asyncio.sleep(0)))[0]
            except ConnectionError:
                await gather(pay("one"), pay("two"))
                raise
        try:
            return await flaky()
        except ConnectionError as error:
            await pay("told")
            if way == "other error":
                raise MendedError("wrapped") from error
            raise

    runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore())
    for _ in range(2):
        with pytest.raises((ConnectionError, MendedError)):
            runtime.run(flow, run_id="r") if not runtime.store.runs() else runtime.resume("r", flow)
    mended.append(1)
    assert runtime.resume("r", flow).output == "ok"


@pytest.mark.parametrize("way", ["finally", "except", "gather"])
def test_cleaning_up_after_an_interruption_does_not_hang_the_resume(way: str) -> None:
    @step(pure=True)
    async def work() -> str:
        await asyncio.sleep(10)
        return "worked"

    async def flow() -> Any:
        try:
            return await (gather(work(), work()) if way == "gather" else work())
        except asyncio.CancelledError:
            if way == "except":
                await pay("told")
            raise
        finally:
            await pay("clean")

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(flow, run_id="r"))
            await asyncio.sleep(4)
            task.cancel()
        return (await runtime.aresume("r", flow)).output

    assert run_virtual(main()) == (["worked", "worked"] if way == "gather" else "worked")


def test_failures_that_are_kept_and_raised_at_the_end_repeat_no_effect() -> None:
    """A loop that goes on past failures, tells of each, and raises the first at the end."""

    async def flow() -> None:
        failures: list[Exception] = []
        for what in ("a", "bad", "c"):
            try:
                await picky(what)
            except ValueError as error:
                await pay(f"told of {what}")
                failures.append(error)
        raise failures[0]

    @step
    async def picky(what: str) -> None:
        paid.append(what)
        if what == "bad":
            raise ValueError(what)

    paid.clear()
    runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore())
    with pytest.raises(ValueError, match="bad"):
        runtime.run(flow, run_id="r")
    with pytest.raises(ValueError, match="bad"):
        runtime.resume("r", flow)
    assert paid == ["a", "bad", "told of bad", "c"]


class CodedError(Exception):
    def __init__(self, response: Any) -> None:
        super().__init__(f"status {response.status}")
        self.code = response.status


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (OutputError, lambda: OutputError("no", schema={"a": 1}, text="t")),
        (FileNotFoundError, lambda: FileNotFoundError(2, "No such file", "/nowhere")),
        (ValueError, lambda: json.JSONDecodeError("bad", "doc", 1)),
        (CodedError, lambda: CodedError(SimpleNamespace(status=7))),
        (RateLimitedError, lambda: RateLimitedError("slow", status=429, retry_after_s=2.0)),
        (KeyError, lambda: KeyError("k")),
        (UnicodeDecodeError, lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")),
    ],
)
def test_a_handled_failure_is_handled_alike_on_a_resume(kind: Any, make: Any) -> None:
    seen: list[Exception] = []

    @step
    async def fails() -> None:
        raise make()

    async def flow() -> str:
        try:
            await fails()
        except kind as error:
            seen.append(error)
        await pay("on")
        if len(seen) < 2:
            raise StopError
        return "done"

    runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore())
    with pytest.raises(StopError):
        runtime.run(flow, run_id="r")
    assert runtime.resume("r", flow).output == "done"
    first, second = seen
    assert type(first) is type(second)
    assert str(first) == str(second)
    assert vars(first).items() <= {**vars(second), **_marks(first)}.items()


def _marks(error: Exception) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name.startswith("__")}


def test_an_effect_that_was_cut_off_is_unknown_and_not_repeated() -> None:
    @step(timeout_s=0.02)
    async def charge() -> None:
        paid.append("charged")
        await asyncio.sleep(1)

    @step
    async def unrecordable() -> object:
        paid.append("done")
        return object()

    async def flow(call: Any) -> None:
        await call()

    async def slow() -> None:
        await flow(charge)

    async def strange() -> None:
        await flow(unrecordable)

    for case in (slow, strange):
        paid.clear()
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore())
        with pytest.raises((CallTimeoutError, UnserializableError)):
            runtime.run(case, run_id="r")
        for _ in range(2):
            with pytest.raises(UnknownOutcomeError):
                runtime.resume("r", case)
        assert len(paid) == 1


def test_a_step_that_raises_stop_iteration_ends() -> None:
    @step
    def first_of_nothing() -> None:
        next(iter([]))

    async def flow() -> None:
        await first_of_nothing()

    with pytest.raises(RuntimeError, match="StopIteration"):
        run(flow, engine=ScriptedEngine(), log="memory")


def test_what_an_interrupted_request_had_cost_is_counted_after_the_resume() -> None:
    """Each billed attempt counts, whichever process made it."""
    agent = Agent("a")

    async def main() -> Any:
        runtime = Runtime(
            engine=ScriptedEngine("word " * 100, pieces=10, decode_s=10.0),
            log=MemoryStore(),
            clock=VirtualClock(),
        )
        for again in range(3):
            async with asyncio.TaskGroup() as group:
                start = (
                    runtime.aresume("r", agent) if again else runtime.arun(agent, "x", run_id="r")
                )
                task = group.create_task(start)
                await asyncio.sleep(5.5)
                task.cancel()
        return await runtime.aresume("r", agent)

    result = run_virtual(main())
    alone = run(agent, "x", engine=ScriptedEngine("word " * 100), log="memory")
    assert result.usage.completion > 2 * alone.usage.completion
    assert result.tax.closes


def test_a_changed_flow_makes_no_more_effects_even_if_it_swallows_the_error() -> None:
    async def after() -> None:
        for _ in range(3):
            try:
                await pay("other")
            except Exception:  # a flow that swallows everything
                continue

    paid.clear()
    runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore())

    async def before() -> None:
        await pay("a")
        raise StopError

    with pytest.raises(StopError):
        runtime.run(before, run_id="r")
    with pytest.raises(FlowChangedError):
        runtime.resume("r", after)
    assert paid == ["a"]


def test_a_task_left_behind_makes_no_more_calls() -> None:
    seen: list[BaseException] = []

    async def lingering() -> None:
        try:
            for _ in range(10):
                await asyncio.sleep(1)
                await pay("late")
        except AccordError as error:
            seen.append(error)

    async def flow() -> None:
        tasks.append(asyncio.get_running_loop().create_task(lingering()))
        await asyncio.sleep(1.5)

    async def main() -> None:
        await Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock()).arun(flow)
        await asyncio.wait(tasks)

    tasks: list[asyncio.Task[None]] = []
    run_virtual(main())
    assert "has ended" in str(seen[0])


def test_a_step_that_starts_a_loop_of_its_own_is_told_why_not() -> None:
    @step
    def nested() -> None:
        asyncio.run(pay("x"))

    async def flow() -> None:
        await nested()

    with pytest.raises(UsageError, match="another event loop"):
        run(flow, engine=ScriptedEngine(), log="memory")


def test_one_runtime_serves_several_loops() -> None:
    runtime = Runtime(engine=ScriptedEngine("x"), log=MemoryStore())
    agent = Agent("a")

    async def many() -> None:
        await gather(agent(str(index)) for index in range(100))

    for _ in range(2):
        asyncio.run(runtime.arun(many))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: runtime.run(many), range(3)))
    assert len(runtime.store.runs()) == 5
