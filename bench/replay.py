"""How fast does the simulated engine go? Two public traces, whole, on one core.

Mooncake: 12,031 chats of Kimi as they came, on four simulated 70B replicas. Claude Code: 24 coding
sessions at once, 928 requests of up to 450,000 tokens, on an 8B replica. What it costs is counted
in events of the loop: twice the requests, twice the time.
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from accord.clock import run_virtual
from accord.engine.base import Request
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import PRESETS
from accord.engine.sim.replica import Counters
from bench._traces import TRACES, Turn, claude_code, mooncake, request_of
from bench.harness import Row, stopwatch

QUICK = True
REPLICAS = 4


def run() -> list[Row]:
    if not TRACES.exists():
        return [Row(what="the traces are not here: nothing replayed", measured=0, unit="requests")]
    chats = mooncake()
    half, half_s = _timed(lambda: _chats(chats[: len(chats) // 2]))
    whole, whole_s = _timed(lambda: _chats(chats))
    sessions, sessions_s = _timed(_sessions)
    an_event = whole_s / whole.stretches / (half_s / half.stretches)
    return [
        Row(what="Mooncake, 12,031 requests", measured=whole_s, unit="s real", target=60.0),
        Row(what="Mooncake: requests", measured=whole.requests, unit="requests"),
        Row(
            what="Mooncake: prefilled and cached",
            measured=(whole.prefilled + whole.cached) / 1e6,
            unit="M tokens",
        ),
        Row(
            what="Claude Code, all sessions at once",
            measured=sessions_s,
            unit="s real",
            target=60.0,
        ),
        Row(
            what="Claude Code: prefilled and cached",
            measured=(sessions.prefilled + sessions.cached) / 1e6,
            unit="M tokens",
        ),
        Row(
            what="Claude Code: cached",
            measured=100 * sessions.cached / (sessions.cached + sessions.prefilled),
            unit="%",
        ),
        Row(
            what="time an event, all chats over half of them",
            measured=an_event,
            unit="x",
            target=1.3,
        ),
    ]


def _timed(work: Callable[[], Counters]) -> tuple[Counters, float]:
    with stopwatch() as watch:
        counters = work()
    return counters, watch.seconds


async def _drain(engine: SimEngine, request: Request) -> None:
    async for _ in engine.generate(request):
        pass


def _chats(chats: list[tuple[float, Turn]]) -> Counters:
    async def main() -> Counters:
        engine = SimEngine(
            PRESETS["70b"], replicas=REPLICAS, replies=lambda r, _: r.max_tokens or 1
        )

        async def one(at_s: float, turn: Turn) -> None:
            await asyncio.sleep(at_s)
            await _drain(engine, request_of(turn, "", "chat"))

        async with asyncio.TaskGroup() as group:
            for at_s, turn in chats:
                group.create_task(one(at_s, turn))
        engine.check_integrity()
        return engine.counters()

    return run_virtual(main())


def _sessions() -> Counters:
    async def main() -> Counters:
        profile = replace(PRESETS["8b"], window=1 << 20, kv_tokens=4_000_000)
        engine = SimEngine(profile, replies=lambda r, _: r.max_tokens or 1)

        async def turns(work: tuple[Turn, ...], name: str) -> None:
            for turn in work:
                async with asyncio.TaskGroup() as group:
                    for beside in turn.beside:
                        group.create_task(turns(beside, name))
                await asyncio.sleep(turn.pause_s)
                await _drain(engine, request_of(turn, name, name))

        async with asyncio.TaskGroup() as group:
            for name, work in claude_code().items():
                group.create_task(turns(tuple(work), name))
        engine.check_integrity()
        return engine.counters()

    return run_virtual(main())
