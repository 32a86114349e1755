"""Do patterns take what they must, and no longer? Pipelines, joins, firing, hedged barriers.

On virtual time the figures are exact; on the wall clock they hold what the runtime adds. A barrier
waits for 64 calls of 1 s (0.8 to 1.2), of which 5% are stragglers of ten times that; it is hedged
after 20 barriers to learn from.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypedDict

from accord import Runtime, gather, step
from accord.clock import VirtualClock, WallClock, run_virtual
from accord.graph import START, StateGraph
from accord.log.fold import index_calls
from accord.runtime import Result
from accord.sync.hedge import Hedge
from accord.sync.pipeline import pipeline
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row

QUICK = True
STAGES, ITEMS = 4, 16
STAGE_S = 0.02
ROUNDS = 5
BRANCHES_MS = (10, 20, 30, 40, 2000)
RELEASED_BY = 4
CALLS, LEARNING, BARRIERS = 64, 20, 200

Flow = Callable[[], Coroutine[Any, Any, Any]]


def run() -> list[Row]:
    return [*pipelines(), *joins(), firing(), *hedging()]


def result_of(flow: Flow, *, virtual: bool = True) -> Result[Any]:
    async def main() -> Result[Any]:
        clock = VirtualClock() if virtual else WallClock()
        async with Runtime(engine=ScriptedEngine(), log="memory", clock=clock) as runtime:
            return await runtime.arun(flow)

    return run_virtual(main()) if virtual else asyncio.run(main())


# ------------------------------------------------------------------------------------- pipelines


@step(pure=True)
async def work(item: int) -> int:
    await asyncio.sleep(STAGE_S)
    return item


async def overlapped() -> Any:
    return await pipeline(range(ITEMS), *[work] * STAGES)


async def strict() -> Any:
    return await pipeline(range(ITEMS), *[work] * STAGES, overlapped=False)


def pipelines() -> list[Row]:
    least = (ITEMS + STAGES - 1) * STAGE_S
    wall = statistics.median(makespan(overlapped, virtual=False) for _ in range(ROUNDS))
    what = f"pipeline of {STAGES} stages x {ITEMS} items"
    return [
        Row(
            what=f"{what}, overlapped, over {ITEMS + STAGES - 1} stages",
            measured=makespan(overlapped) / least,
            unit="x",
            target=1.01,
        ),
        Row(
            what=f"{what}, overlapped, on the wall clock ({STAGE_S * 1000:g} ms a stage)",
            measured=wall / least,
            unit="x",
            target=1.10,
        ),
        Row(
            what=f"{what}, strict over overlapped",
            measured=makespan(strict) / makespan(overlapped),
            unit="x",
        ),
    ]


def makespan(flow: Flow, *, virtual: bool = True) -> float:
    return result_of(flow, virtual=virtual).tax.time.makespan


# ------------------------------------------------------------------------------------- joins


@step(pure=True)
async def branch(ms: int) -> int:
    await asyncio.sleep(ms / 1000)
    return ms


async def join() -> Any:
    return await gather((branch(ms) for ms in BRANCHES_MS), until=RELEASED_BY)


def joins() -> list[Row]:
    """The fourth branch ends, and the join is released."""
    exact = late_ms(result_of(join))
    wall = [late_ms(result_of(join, virtual=False)) for _ in range(ROUNDS)]
    what = f"join of {RELEASED_BY} of {len(BRANCHES_MS)}: released after its {RELEASED_BY}th"
    last_ms = BRANCHES_MS[RELEASED_BY - 1]
    return [
        Row(what=what, measured=exact, unit="ms", target=0.01 * last_ms),
        Row(what=f"{what}, on the wall clock", measured=max(wall), unit="ms", target=5.0),
    ]


def late_ms(result: Result[Any]) -> float:
    return result.tax.time.makespan * 1000 - BRANCHES_MS[RELEASED_BY - 1]


# ------------------------------------------------------------------------------------- firing


class State(TypedDict, total=False):
    """Who has been at work."""

    notes: list[str]


def node(name: str, ms: float) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def body(_: Any) -> dict[str, Any]:
        await asyncio.sleep(ms / 1000)
        return {"notes": [name]}

    return body


def firing() -> Row:
    """A node after a fast one, beside a slow one."""
    graph = StateGraph(State)
    for name, ms in (("fast", 100), ("slow", 1200), ("after_fast", 0)):
        graph.add_node(name, node(name, ms))
    graph.add_edge(START, "fast")
    graph.add_edge(START, "slow")
    graph.add_edge("fast", "after_fast")
    app = graph.compile()

    async def flow() -> Any:
        return await app({})

    calls = index_calls(result_of(flow, virtual=False).log.envelopes).by_scope
    by_name = {call.started.name: call for call in calls.values()}
    ended = by_name["fast"].end
    assert ended is not None
    return Row(
        what="state graph: a node starts after its input, beside a slow sibling",
        measured=(by_name["after_fast"].start.at - ended.at) / 1e6,
        unit="ms",
        target=50.0,
    )


# ------------------------------------------------------------------------------------- hedging


def hedging() -> list[Row]:
    plain, made, _ = barriers(hedged=False)
    quick, hedged, most = barriers(hedged=True)
    what = f"barrier of {CALLS} calls, 5% stragglers"
    return [
        Row(what=f"{what}: P99 of {BARRIERS}", measured=plain, unit="s"),
        Row(what=f"{what}, hedged: P99 of {BARRIERS}", measured=quick, unit="s"),
        Row(
            what=f"{what}: P99 is lower by",
            measured=100 * (1 - quick / plain),
            unit="%",
            target=60.0,
            at_least=True,
        ),
        Row(
            what=f"{what}: more calls",
            measured=100 * (hedged / made - 1),
            unit="%",
            target=10.0,
        ),
        Row(what=f"{what}, hedged: the slowest of {BARRIERS}", measured=most, unit="s"),
    ]


def barriers(*, hedged: bool, seed: int = 7) -> tuple[float, int, float]:
    """P99 of barriers in seconds, the calls that were made, and the slowest barrier."""
    random = Random(seed)

    @step(pure=True, name="call")
    async def call(index: int) -> int:
        slow = 10.0 if random.random() < 0.05 else 1.0
        await asyncio.sleep(slow * random.uniform(0.8, 1.2))
        return index

    hedge = Hedge()

    async def flow() -> list[float]:
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for _ in range(LEARNING + BARRIERS):
            began = loop.time()
            await gather(hedge(call, each) if hedged else call(each) for each in range(CALLS))
            took.append(loop.time() - began)
        return took

    result = result_of(flow)
    took = sorted(result.output[LEARNING:])
    calls = index_calls(result.log.envelopes).by_start.values()
    made = sum(call.started.name == "call" for call in calls)
    return took[round(0.99 * len(took)) - 1], made, took[-1]
