"""How much memory does an idle agent take?

Ten thousand different agents of one run, each in a branch of its own: defined; idle after each
has answered once, with all that the log keeps of it; and for comparison while each waits in a
call for an engine that does not answer. Memory of live objects, as tracemalloc counts it.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator

from accord import Agent, Runtime, gather
from accord.engine.base import Capabilities, Reply, Request, TextDelta
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row

QUICK = True
N = 10_000


class Silent(ScriptedEngine):
    """Answers when the bench has measured."""

    answering: asyncio.Event
    asked = 0

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        self.asked += 1
        await self.answering.wait()
        async for piece in super().generate(request):
            yield piece


def run() -> list[Row]:
    tracemalloc.start()
    try:
        return asyncio.run(_measure())
    finally:
        tracemalloc.stop()


async def _measure() -> list[Row]:
    start = _allocated()
    agents = [Agent(f"agent {index}", "Wait for what comes.") for index in range(N)]
    defined = _allocated()
    engine = Silent("ok", capabilities=Capabilities(concurrency=N))
    engine.answering = asyncio.Event()
    waiting: list[int] = []
    idle: list[int] = []

    async def flow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            await gather(agent("go") for agent in agents)
        idle.append(_allocated())

    async def look() -> None:
        while engine.asked < N:  # noqa: ASYNC110  # waits for a count, which has no event
            await asyncio.sleep(0.1)
        waiting.append(_allocated())
        engine.answering.set()

    async with Runtime(engine=engine, log="memory") as runtime:
        await runtime.arun(flow)

    def row(what: str, allocated: int, target: float | None = None) -> Row:
        kib = (allocated - start) / N / 1024
        return Row(what=f"{N:,} agents, {what}", measured=kib, unit="KiB/agent", target=target)

    return [
        row("defined", defined, 4),
        row("idle, each has answered once", idle[0], 4),
        row("each in a call, waiting for the engine", waiting[0]),
    ]


def _allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
