"""How much of its prompts does the real engine find in its cache, and how soon does it answer?

On llama.cpp with the small model, by its own counts: an agent of ten turns, and eight agents one
after another that share a brief of 1,500 tokens. Seen by hand: role first, 0% and 6.5 s to the
first token; shared text first, 99% and 0.16 s.
"""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from accord import Agent, Runtime
from accord.comm.blackboard import Blackboard
from accord.engine.local import LocalEngine
from accord.log.events import CallFinished
from accord.log.fold import Call, index_calls
from accord.log.log import Log
from bench._counting import text_of
from bench.harness import Row

QUICK = False  # a minute or two of real inference
AGENTS, TURNS, BRIEF = 8, 10, 1500
ROLES = ("plan", "research", "check", "write", "shorten", "translate", "criticise", "illustrate")
board = Blackboard()


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an engine said of the requests of a run."""

    cached_percent: float
    first_token_s: list[float]


def run() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    engine = LocalEngine(slots=1)
    try:
        count = (await engine.start()).tokenizer
        assert count is not None
        turns = await _turns(engine)
        shared = await _team(engine, await text_of(BRIEF, "one brief", count), shared_first=True)
        role = await _team(engine, await text_of(BRIEF, "another", count), shared_first=False)
    finally:
        await engine.close()
        engine.unload()
    after_the_first = statistics.median(shared.first_token_s[1:])
    role_first = statistics.median(role.first_token_s[1:])
    return [
        Row(
            what=f"an agent of {TURNS} turns: cached",
            measured=turns.cached_percent,
            unit="%",
            target=90,
            at_least=True,
        ),
        Row(
            what=f"{AGENTS} agents share a brief of {BRIEF}: cached",
            measured=shared.cached_percent,
            unit="%",
            target=80,
            at_least=True,
        ),
        Row(what="the same, role first: cached", measured=role.cached_percent, unit="%"),
        Row(
            what="first token, shared first (after the first agent)",
            measured=after_the_first,
            unit="s",
        ),
        Row(what="first token, role first", measured=role_first, unit="s"),
        Row(
            what="first token, role first over shared first",
            measured=role_first / after_the_first,
            unit="x",
            target=10,
            at_least=True,
        ),
    ]


async def _turns(engine: LocalEngine) -> Served:
    guide = Agent("guide", "You show a visitor a small town.", sees="diff", max_tokens=64)

    async def visit() -> None:
        for turn in range(TURNS):
            await guide(f"We have come to place number {turn}. What is there to see?")

    return await _served(engine, visit)


async def _team(engine: LocalEngine, brief: str, *, shared_first: bool) -> Served:
    async def work() -> None:
        board.write("brief", brief)
        for role in ROLES:
            if shared_first:
                await Agent(role, f"You {role}.", shares="brief", max_tokens=16)("Go on.")
            else:
                await Agent(role, f"You {role}.", max_tokens=16)(brief, "Go on.")

    return await _served(engine, work)


async def _served(engine: LocalEngine, flow: Callable[[], Coroutine[Any, Any, None]]) -> Served:
    async with Runtime(engine=engine, log="memory") as runtime:
        result = await runtime.arun(flow)
        return _read(result.log)


def _read(log: Log) -> Served:
    calls: Sequence[Call] = list(index_calls(log.envelopes).by_start.values())
    ends = [c.ended for c in calls if c.started.kind == "request"]
    finished = [end for end in ends if isinstance(end, CallFinished)]
    usages = [end.usage for end in finished if end.usage is not None]
    spent = [end.spent for end in finished if end.spent is not None]
    return Served(
        cached_percent=100 * sum(u.cached for u in usages) / sum(u.prompt for u in usages),
        first_token_s=[(each.first_token_ns or each.total_ns) / 1e9 for each in spent],
    )
