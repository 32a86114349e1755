"""Who was waited for, and how long."""

from __future__ import annotations

import asyncio
from typing import Any

from accord import Runtime, gather, sleep, step
from accord.clock import VirtualClock, run_virtual
from accord.comm.mailbox import Mailbox, Message, send
from accord.observe.tax import tax_of
from accord.sync.actor import Actor
from accord.sync.actors import actors
from accord.sync.pipeline import pipeline
from accord.testing.scripted import ScriptedEngine


@step(pure=True)
async def quick(value: int) -> int:
    await asyncio.sleep(1)
    return value


@step(pure=True)
async def slow(value: int) -> int:
    await asyncio.sleep(3)
    return value


def waits(flow: Any) -> list[tuple[str, str, int, float]]:
    async def main() -> Any:
        engine = ScriptedEngine(lambda _request: "one")
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        return (await runtime.arun(flow)).log

    found = tax_of(run_virtual(main())).waits
    return [(each.kind, each.name, each.count, each.total_s) for each in found]


def test_a_join_waits_for_the_last_of_its_branches():
    async def flow() -> None:
        await gather(gather(quick(1), slow(1)), quick(2), quick(3))

    assert waits(flow) == [("join", "slow", 3, 6.0)]


def test_who_receives_waits_for_the_sender():
    async def listen() -> None:
        await Mailbox[int]("box").receive()

    async def talk() -> None:
        await sleep(2)
        await send("box", 1, sender="planner")

    async def flow() -> None:
        await gather(listen(), talk())

    assert waits(flow) == [("receive", "planner", 1, 2.0), ("sleep", "", 1, 2.0)]


def test_pipelines_and_actors_meet_nowhere():
    async def handle(state: int, message: Message[int]) -> int:
        return state + await quick(message.body)

    async def flow() -> None:
        await pipeline([1, 2, 3], quick, slow)
        async with actors(Actor("a", handle, state=0), Actor("b", handle, state=0)):
            await send("a", 1)
            await send("b", 1)
            await send("a", 2)

    assert waits(flow) == []
