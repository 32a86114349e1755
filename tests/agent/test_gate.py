"""The gate: places, and one cool-down for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from accord import Agent, Retry, Runtime, gather, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, TextDelta, ToolCall
from accord.errors import RateLimitedError
from accord.log.events import CallFinished, Envelope
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine

worker = Agent("worker", retry=Retry(attempts=3))


def test_all_agents_share_the_cool_down_that_one_was_told_of() -> None:
    """The engine says "in 10 s" once; nobody asks before."""
    times: list[float] = []

    def script(_: Any) -> Any:
        now = asyncio.get_running_loop().time()
        times.append(now)
        return RateLimitedError("wait", retry_after_s=10.0) if len(times) == 1 else "ok"

    async def late(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return await worker("go")

    async def flow() -> list[str]:
        return await gather(late(float(index)) for index in range(5))

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(script), log=MemoryStore(), clock=VirtualClock())
        return (await runtime.arun(flow)).output

    assert run_virtual(main()) == ["ok"] * 5
    assert times[0] == 0
    assert all(time >= 10 for time in times[1:])


def test_no_more_requests_are_at_the_engine_than_it_serves() -> None:
    at_once = 0
    peak = 0

    class Counting(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
            nonlocal at_once, peak
            at_once += 1
            peak = max(peak, at_once)
            try:
                async for piece in super().generate(request):
                    yield piece
            finally:
                at_once -= 1

    engine = Counting("ok", decode_s=1.0, capabilities=Capabilities(concurrency=2))

    async def flow() -> None:
        await gather(worker(str(index)) for index in range(6))

    async def main() -> Any:
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        return (await runtime.arun(flow)).tax

    tax = run_virtual(main())
    assert peak == 2
    assert tax.time.makespan == 3.0
    assert tax.time.queueing == 2.0
    assert tax.time.thinking == 1.0


def test_a_rate_limit_in_the_middle_pauses_the_run_and_repeats_nothing() -> None:
    """RTL-9: a 429 in task 3 of 5; the run waits and finishes, tasks 1 and 2 are not made again."""
    refused: list[str] = []

    def script(request: Any) -> Any:
        task = request.messages[-1].content
        if task == "3" and not refused:
            refused.append(task)
            return RateLimitedError("slow down", retry_after_s=7.0)
        return f"did {task}"

    async def flow() -> list[str]:
        return [await worker(str(task)) for task in range(1, 6)]

    engine = ScriptedEngine(script)

    async def main() -> Any:
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        return await runtime.arun(flow)

    result = run_virtual(main())
    assert result.output == [f"did {task}" for task in range(1, 6)]
    asked = [request.messages[-1].content for request in engine.requests]
    assert asked == ["1", "2", "3", "3", "4", "5"]
    assert result.tax.time.queueing == 7.0


def test_cancelling_a_run_stops_the_tool_that_its_agent_uses() -> None:
    """CAN-3: the tool does nothing after the cancel."""
    seen: list[str] = []

    @tool
    async def slow() -> str:
        """Work for long."""
        seen.append("began")
        await asyncio.sleep(100)
        seen.append("went on")
        return "done"

    agent = Agent("a", tools=[slow])
    asked = [ToolCall(id="1", name="slow", arguments="{}")]

    async def main() -> None:
        runtime = Runtime(engine=ScriptedEngine([asked]), log=MemoryStore(), clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(agent, "go"))
            await asyncio.sleep(0.1)
            task.cancel()
        await asyncio.sleep(1000)

    run_virtual(main())
    assert seen == ["began"]


def test_usage_streamed_is_the_usage_of_the_end() -> None:
    """STR-15: what a hook sees at an agent's end is what the run reports."""

    async def main() -> tuple[Any, Any]:
        runtime = Runtime(
            engine=ScriptedEngine("four words of text", pieces=3, decode_s=1.0),
            log=MemoryStore(),
            clock=VirtualClock(),
        )
        seen: list[Any] = []
        async for item in runtime.stream(worker, "go", run_id="r"):
            if isinstance(item, Envelope) and isinstance(item.event, CallFinished):
                seen.append(item.event.usage)  # noqa: PERF401  # a hook, as a user writes it
        return seen, (await runtime.aresume("r", worker)).usage

    seen, final = run_virtual(main())
    assert final.completion > 0
    assert [usage for usage in seen if usage is not None] == [final]
