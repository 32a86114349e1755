"""What do the blackboard and mailboxes cost, and does a diff cost what changed or what is held?

In memory, on one core. A hop of autogen-core's runtime takes 108 µs on the same kind of machine.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from accord import Runtime, gather
from accord.comm.blackboard import Blackboard
from accord.comm.mailbox import Mailbox, send
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row, stopwatch

QUICK = True
N = 2000
HELD = (1_000, 100_000)
CHANGED = 1_000
WATCHERS = 1000
ROUNDS = 3
board = Blackboard()

Flow = Callable[[], Coroutine[Any, Any, None]]
Costs = dict[str, float]
"""Microseconds, by what was measured; the best of all rounds."""


def run() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    us: Costs = {}
    for _ in range(ROUNDS):
        for flow in (_keys(us), _lists(us), _watchers(us), _queue(us), _ping_pong(us)):
            await _run(flow)
    for held in HELD:
        await _run(_diffs(us, held))
    few, many = (us[f"diff of {CHANGED:,} changed keys, {held:,} held"] for held in HELD)
    return [
        *(
            Row(
                what=what,
                measured=cost,
                unit="µs",
                target=15 if what.startswith("message") else None,
            )
            for what, cost in us.items()
        ),
        Row(
            what="diff: 100,000 keys held, over 1,000 held",
            measured=many / few,
            unit="x",
            target=1.5,
        ),
        Row(
            what="keys written and read back", measured=1e6 / us["write and read a key"], unit="/s"
        ),
    ]


async def _run(flow: Flow) -> None:
    async with Runtime(engine=ScriptedEngine(), log="memory") as runtime:
        await runtime.arun(flow)


def _keep(us: Costs, what: str, seconds: float, times: int) -> None:
    us[what] = min(us.get(what, float("inf")), seconds / times * 1e6)


def _keys(us: Costs) -> Flow:
    async def flow() -> None:
        with stopwatch() as watch:
            for index in range(N):
                board.write(f"key {index}", index)
        _keep(us, "write a key", watch.seconds, N)
        with stopwatch() as watch:
            for index in range(N):
                board.write(f"key {index}", -index)
                board.read(f"key {index}")
        _keep(us, "write and read a key", watch.seconds, N)

    return flow


def _lists(us: Costs) -> Flow:
    async def flow() -> None:
        with stopwatch() as watch:
            for index in range(N):
                board.append("list", index)
        _keep(us, "append to a list", watch.seconds, N)

    return flow


def _diffs(us: Costs, held: int) -> Flow:
    async def flow() -> None:
        for index in range(held):
            board.write(f"key {index}", index)
        since = board.diff().position
        for index in range(CHANGED):
            board.write(f"key {index}", "changed")
        what = f"diff of {CHANGED:,} changed keys, {held:,} held"
        for _ in range(ROUNDS):
            with stopwatch() as watch:
                board.diff(since)
            _keep(us, what, watch.seconds, 1)

    return flow


def _watchers(us: Costs) -> Flow:
    async def flow() -> None:
        async def write() -> None:
            await asyncio.sleep(0.05)  # all wait by now
            with stopwatch() as watch:
                board.write("nobody waits for this", 1)
            _keep(us, f"a write that none of {WATCHERS:,} watchers waits for", watch.seconds, 1)
            with stopwatch() as watch:
                for index in range(WATCHERS):
                    board.write(f"step {index}", index)
            _keep(
                us, f"a write that one of {WATCHERS:,} watchers waits for", watch.seconds, WATCHERS
            )

        watchers = [board.wait_for(f"step {index}") for index in range(WATCHERS)]
        await gather([*watchers, write()])

    return flow


def _queue(us: Costs) -> Flow:
    async def flow() -> None:
        box: Mailbox[int] = Mailbox("box", capacity=N)
        with stopwatch() as watch:
            for index in range(N):
                await send("box", index)
            for _ in range(N):
                await box.receive()
        _keep(us, "message sent, and taken later", watch.seconds, N)

    return flow


def _ping_pong(us: Costs) -> Flow:
    async def flow() -> None:
        async def ping() -> None:
            box: Mailbox[int] = Mailbox("ping")
            with stopwatch() as watch:
                for index in range(N):
                    await box.send("pong", index)
                    await box.receive()
            _keep(
                us, "message to one who waits for it (a hop of a ping-pong)", watch.seconds, 2 * N
            )

        async def pong() -> None:
            box: Mailbox[int] = Mailbox("pong")
            for _ in range(N):
                await box.send("ping", (await box.receive()).body)

        await gather([ping(), pong()])

    return flow
