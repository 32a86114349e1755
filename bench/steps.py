"""What do a recorded step and a branch cost in memory, beside a bare asyncio task?

Measured on the same kind of machine, a step: bare task 6 µs, Microsoft Agent Framework 162,
pydantic-graph 170, LangGraph 302, CrewAI flow 3,900. Machines differ and are shared, so the
ratio to the bare task of the same run says more than the microseconds.
"""

import asyncio

from accord import Runtime, gather, step
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row, stopwatch

QUICK = True
N = 1000
ROUNDS = 15


async def plain(value: int) -> int:
    return value + 1


increment = step(plain)


async def chain(length: int) -> int:
    value = 0
    for _ in range(length):
        value = await increment(value)
    return value


async def fan(width: int) -> int:
    return sum(await gather(increment(index) for index in range(width)))


async def bare_chain(length: int) -> None:
    loop = asyncio.get_running_loop()
    for index in range(length):
        await loop.create_task(plain(index))


async def bare_fan(width: int) -> None:
    async with asyncio.TaskGroup() as group:
        for index in range(width):
            group.create_task(plain(index))


def run() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    flows = {"bare chain": bare_chain, "bare fan": bare_fan, "chain": chain, "fan": fan}
    best: dict[str, float] = dict.fromkeys(flows, float("inf"))
    async with Runtime(engine=ScriptedEngine(), log="memory") as runtime:
        # Interleaved, and the best of each: what else the machine does hits all alike.
        for _ in range(ROUNDS):
            for name, flow in flows.items():
                with stopwatch() as watch:
                    if name.startswith("bare"):
                        await flow(N)
                    else:
                        await runtime.arun(flow, N)
                best[name] = min(best[name], watch.seconds / N * 1e6)
    return [
        Row(what=f"chain of {N}: bare task", measured=best["bare chain"], unit="µs/step"),
        Row(what=f"chain of {N}: step", measured=best["chain"], unit="µs/step", target=15),
        Row(
            what="chain: step over bare task",
            measured=best["chain"] / best["bare chain"],
            unit="x",
            target=15 / 6,
        ),
        Row(what=f"fan-out of {N}: bare task", measured=best["bare fan"], unit="µs/branch"),
        Row(what=f"fan-out of {N}: step", measured=best["fan"], unit="µs/branch", target=20),
        Row(
            what="fan-out: step over bare task of a chain",
            measured=best["fan"] / best["bare chain"],
            unit="x",
            target=20 / 6,
        ),
    ]
