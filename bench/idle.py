"""How much memory does an idle agent take?

Ten thousand different agents of one run, each in a branch of its own, each waiting for an
engine that does not answer. Resident memory of the process, before and while they wait.
"""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

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
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    start = _resident()
    agents = [Agent(f"agent {index}", "Wait for what comes.") for index in range(N)]
    defined = _resident()
    engine = Silent("ok", capabilities=Capabilities(concurrency=N))
    engine.answering = asyncio.Event()
    waiting: list[int] = []

    async def flow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            await gather(agent("go") for agent in agents)

    async def look() -> None:
        while engine.asked < N:  # noqa: ASYNC110  # waits for a count, which has no event
            await asyncio.sleep(0.1)
        waiting.append(_resident())
        engine.answering.set()

    async with Runtime(engine=engine, log="memory") as runtime:
        await runtime.arun(flow)
    return [
        Row(what=f"{N:,} agents defined", measured=(defined - start) / N / 1024, unit="KiB/agent"),
        Row(
            what=f"{N:,} agents waiting for the engine",
            measured=(waiting[0] - start) / N / 1024,
            unit="KiB/agent",
            target=4,
        ),
    ]


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
