"""Uses the whole public surface. Only type-checked, never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

import accord
from accord import (
    Agent,
    Blackboard,
    Ending,
    Mailbox,
    Prices,
    Result,
    Retry,
    Runtime,
    ask,
    caching,
    gather,
    send,
    speculate,
    step,
    tool,
)
from accord.engine.base import Usage
from accord.observe.tax import Tax
from accord.reuse.results import ResultCache
from accord.schedule.limits import Limit, Limits
from accord.schedule.policy import slo


@dataclass
class Outline:
    sections: list[str]


@tool(pure=True)
def search(query: str) -> list[str]:
    """Search."""
    return [query]


@step
async def fetch(url: str) -> bytes:
    return url.encode()


@step
def count(text: str) -> int:
    return len(text)


planner = Agent("planner", "Plan.", output=Outline, tools=[search], retry=Retry(attempts=3))
writer = Agent("writer", "Write.", max_tokens=100)
board = Blackboard("team")
ending = Ending("DONE", by=("writer",))
editor = Agent(
    "editor",
    shares="brief",
    reads={"notes/*": "summary", "@editor": "diff"},
    sees="diff",
    writes={"drafts": "append"},
    summariser=writer,
    ending=ending,
    expected_calls=8,
)
urgent = Agent("urgent", priority=2, deadline_s=5.0, budget=10_000, cheaper="mini")
limits = Limits(agent=Limit(tokens=1000), tenant=Limit(requests=5, per_s=1.0))
prices = Prices(prompt=1.0, completion=2.0, cached=0.1)


async def flow(brief: str) -> str:
    assert_type(await planner(brief), Outline)
    assert_type(await writer(brief, extra="x"), str)
    assert_type(await fetch("url"), bytes)
    assert_type(await count("text"), int)
    assert_type(await gather(writer(part) for part in accord.split_text(brief, 100)), list[str])
    assert_type(
        await gather([count("a"), count("b")], policy="isolate", limit=2), list[int | Exception]
    )
    assert_type(board.write("key", 1, if_version=0), int)
    board.append("list", 1)
    since = board.diff().position
    assert_type(await board.wait_for("key*", after=since), int)
    assert_type(await gather([count("a")], until="any", deadline_s=1.0), list[int])
    assert_type(await accord.Hedge(after_s=1.0, attempts=2)(writer, "a"), str)
    assert_type(
        await speculate(count, "a", then=doubled, guess=len, accept=_near, waste_tokens=100), float
    )
    with caching("off"):
        await writer("anew")
    await accord.interrupt("Go on?", name="go")
    box: Mailbox[Outline] = Mailbox("box", topics=["news"], capacity=2)
    assert_type(await send("box", Outline([]), timeout_s=1.0), int)
    assert_type((await box.receive(timeout_s=1.0)).body, Outline)
    await ask("other", "question", timeout_s=1.0)
    assert_type(ending.reached("writer", await writer.as_tool("Write.")("task")), bool)
    await accord.sleep(1.5)
    return accord.idempotency_key()


async def doubled(number: int) -> float:
    return 2.0 * number


def _near(guess: int, given: int) -> bool:
    return abs(guess - given) < 2


async def main() -> None:
    assert_type(accord.run(flow, "brief", engine="local", log="memory"), Result[str])
    assert_type(await accord.arun(flow, "brief", run_id="mine"), Result[str])
    async for item in accord.stream(flow, "brief"):
        print(item)
    async with Runtime(engine="local", durability="sync", seed=1) as runtime:
        result = await runtime.arun(flow, "brief", baseline_tokens=100)
        assert_type(result.usage, Usage)
        assert_type(result.tax, Tax)
        await runtime.aresume(result.run_id)
    Runtime(policy="edf", limits=limits, tenant="me", admission=False, single_flight=False)
    Runtime(cache="read", cache_store=ResultCache("results.sqlite3", ttl_s=60), prefetch=True)
    Runtime(cache_store="memory", speculate=False)
    Runtime(policy=slo(target_s=2.0), remaining={"writer": 3.0})
    Runtime(policy=lambda ticket, now_s: (ticket.arrived_s - now_s,))
    accord.resume("mine", flow, answers={"0": "yes"})
    await accord.aresume("mine")
    raise accord.AccordError(accord.__version__)
