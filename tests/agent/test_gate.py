"""The gate: places, and one cool-down for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from accord import Agent, Retry, Runtime, gather
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, TextDelta
from accord.errors import RateLimitedError
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
