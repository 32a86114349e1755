"""What do eight agents on one brief gain from shared text first, with one of them ahead?

On the real llama.cpp, all eight asked at once. It has a slot for each, as one would give it for
eight agents: then all their prompts are read side by side, and what one slot holds helps no other
while it is at work. With one ahead, the others pass through its slot, which holds the brief. With
fewer slots they queue before it anyway, so less is gained; with one slot, nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from accord import Agent, Runtime, gather
from accord.comm.blackboard import Blackboard
from accord.engine.local import LocalEngine
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from bench._counting import text_of
from bench.harness import Row, stopwatch

QUICK = False  # minutes of real inference
BRIEF, WRITES = 1500, 24
ROLES = ("plan", "research", "check", "write", "shorten", "translate", "criticise", "illustrate")
Flow = Callable[[], Coroutine[Any, Any, None]]
board = Blackboard()


@dataclass(frozen=True, kw_only=True)
class Served:
    """What one way of asking took, and what the engine found in its cache."""

    seconds: float
    cached_percent: float


def run() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    engine = LocalEngine(slots=len(ROLES), window=2048)
    try:
        count = (await engine.start()).tokenizer
        assert count is not None
        # A brief for each way, so that none finds what another has left.
        briefs = [await text_of(BRIEF, f"brief {number}", count) for number in range(3)]
        ahead = await _served(engine, _shared_first(briefs[0]), single_flight=True)
        at_once = await _served(engine, _shared_first(briefs[1]), single_flight=False)
        role = await _served(engine, _role_first(briefs[2]), single_flight=False)
    finally:
        await engine.close()
        engine.unload()
    return [
        Row(what="role first, at once", measured=role.seconds, unit="s"),
        Row(what="shared first, at once", measured=at_once.seconds, unit="s"),
        Row(what="shared first, one ahead", measured=ahead.seconds, unit="s"),
        Row(
            what="role first over one ahead",
            measured=role.seconds / ahead.seconds,
            unit="x",
            target=5,
            at_least=True,
        ),
        Row(
            what="shared first at once over one ahead",
            measured=at_once.seconds / ahead.seconds,
            unit="x",
            target=2.5,
            at_least=True,
        ),
        Row(what="role first: cached", measured=role.cached_percent, unit="%"),
        Row(what="shared first, at once: cached", measured=at_once.cached_percent, unit="%"),
        Row(
            what="shared first, one ahead: cached",
            measured=ahead.cached_percent,
            unit="%",
            target=80,
            at_least=True,
        ),
    ]


def _shared_first(brief: str) -> Flow:
    async def work() -> None:
        board.write("brief", brief)
        agents = [Agent(role, f"You {role}.", shares="brief", max_tokens=WRITES) for role in ROLES]
        await gather(agent("Go on.") for agent in agents)

    return work


def _role_first(brief: str) -> Flow:
    async def work() -> None:
        agents = [Agent(role, f"You {role}.", max_tokens=WRITES) for role in ROLES]
        await gather(agent(brief, "Go on.") for agent in agents)

    return work


async def _served(engine: LocalEngine, flow: Flow, *, single_flight: bool) -> Served:
    async with Runtime(engine=engine, log="memory", single_flight=single_flight) as runtime:
        with stopwatch() as watch:
            result = await runtime.arun(flow)
        calls = index_calls(result.log.envelopes).by_start.values()
        ends = [call.ended for call in calls if call.started.kind == "request"]
        usages = [end.usage for end in ends if isinstance(end, CallFinished) and end.usage]
        cached = sum(usage.cached for usage in usages) / sum(usage.prompt for usage in usages)
        return Served(seconds=watch.seconds, cached_percent=100 * cached)
