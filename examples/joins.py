"""Joins that do not wait for the slowest, and stragglers that get a second attempt.

Of 20 equal calls, one in ten takes ten times as long. On virtual time, so it takes no time here.

Prints::

    all               10.0 s  20 answers
    the first          1.0 s   1 answers
    15 of 20           1.0 s  15 answers
    until a deadline   2.0 s  18 answers
    all, hedged        2.2 s  20 answers, 2 calls more
"""

import asyncio
from typing import Any

from accord import Hedge, Result, Runtime, gather, step
from accord.clock import VirtualClock, run_virtual
from accord.testing.scripted import ScriptedEngine

CALLS = range(20)
hedge = Hedge()
attempts: list[int] = []


@step(pure=True)
async def ask(number: int) -> int:
    """Slow the first time, if its number ends in 7."""
    slow = number % 10 == 7 and number not in attempts
    attempts.append(number)
    await asyncio.sleep(10 if slow else 1)
    return number


async def everybody() -> list[int]:
    """Takes as long as the slowest."""
    return await gather(ask(number) for number in CALLS)


async def first() -> list[int]:
    """Takes as long as the quickest; the others are cancelled."""
    return await gather((ask(number) for number in CALLS), until="any")


async def most() -> list[int]:
    """Goes on with the fifteenth answer."""
    return await gather((ask(number) for number in CALLS), until=15)


async def in_time() -> list[int]:
    """Goes on with what has come by then."""
    return await gather((ask(number) for number in CALLS), deadline_s=2)


async def hedged() -> list[int]:
    """What takes longer than usual is asked again beside the first attempt."""
    return await gather(hedge(ask, number) for number in CALLS)


async def main() -> None:
    """Each on a run of its own."""
    flows: dict[str, Any] = {
        "all": everybody,
        "the first": first,
        "15 of 20": most,
        "until a deadline": in_time,
        "all, hedged": hedged,
    }
    async with Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock()) as runtime:
        for name, flow in flows.items():
            attempts.clear()
            result: Result[list[int]] = await runtime.arun(flow)
            line = f"{name:16} {result.tax.time.makespan:5.1f} s  {len(result.output):2} answers"
            more = hedge.statistics(result.log, "ask").hedges
            print(f"{line}, {more} calls more" if more else line)


if __name__ == "__main__":
    run_virtual(main())
