"""What does the result cache save, and what does a hit cost?

Ten briefs for reports of ten sections each. Four of them are about what others are about, for other
readers: their writers, who see their own section only, are asked what was asked before; planners
and editors are not. The remaining sections are near to each other and not equal: of the same title,
with another figure. Replies are a function of the prompt, so each can be compared with the one that
a run without the cache gave in its place.

A million results of 1 KB are more than the cache keeps unless it is told to (1 GiB). They lie in a
file that the system has in memory, like that of a cache in use.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from accord import Agent, Runtime, gather
from accord.clock import VirtualClock, run_virtual
from accord.demo import BRIEF, team
from accord.engine.base import Request
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.reuse.results import Entry, Mode, ResultCache
from accord.reuse.store import OVERHEAD, Row
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine
from bench import harness

QUICK = True
SECTIONS, EQUAL = 10, 1_000
ENTRIES, BODY_BYTES, MOST_BYTES = 1_000_000, 1_000, 4 << 30
LOOKS, CALLS = 20_000, 2_000


@dataclass
class Plan:
    """What the planner gives."""

    sections: list[str]


planner = Agent("planner", "List the sections of a report.", output=Plan, temperature=0)
writer = Agent("writer", "Write the section.", temperature=0)
editor = Agent("editor", "Proofread the report.", temperature=0)


async def report(brief: str) -> str:
    plan = await planner(brief)
    sections = await gather(writer(section) for section in plan.sections)
    return await editor(brief.partition("\n")[0], *sections)


def briefs() -> list[str]:
    """Six of their own, and four that share all their sections with one of those."""
    return [f"For reader {each}.\n{sections(each % 6)}" for each in range(10)]


def sections(seed: int) -> str:
    random = Random(seed)
    figures = [random.randrange(1000) for _ in range(SECTIONS)]
    return "\n".join(f"Part {part} of subject {seed % 2}: {n}" for part, n in enumerate(figures))


def answer(request: Request) -> Any:
    """Of the planner, the sections that its brief lists; of others, a text of their prompt."""
    said = request.messages[-1].content
    if request.agent == "planner":
        return {"sections": said.split("\n")[1:]}
    return f"{blake2b(repr(request.messages).encode()).hexdigest()}. " * 8


def run() -> list[harness.Row]:
    return [*ten_briefs(), *at_once(), *the_demo_again(), *a_million()]


# ------------------------------------------------------------------------------------ what it saves


def ten_briefs() -> list[harness.Row]:
    with_it, without = reports(None), reports("off")
    ends = [each for result in with_it for each in requests_of(result).values()]
    hits = sum(each.saved is not None for each in ends)
    tokens, all_tokens = tokens_of(with_it), tokens_of(without)
    return [
        harness.Row(
            what=f"10 briefs, 4 share their sections: of {len(ends)} requests, cached",
            measured=100 * hits / len(ends),
            unit="%",
            target=30,
            at_least=True,
        ),
        harness.Row(
            what="10 briefs: replies unlike those without the cache",
            measured=sum(map(differences, with_it, without)),
            unit="replies",
            target=0,
        ),
        harness.Row(
            what=f"10 briefs: of {all_tokens:,} tokens, saved",
            measured=100 * (1 - tokens / all_tokens),
            unit="%",
        ),
    ]


def reports(mode: Mode | None) -> list[Result[str]]:
    async def main() -> list[Result[str]]:
        options: Any = {"log": "memory", "clock": VirtualClock(), "cache": mode}
        runtime = Runtime(engine=ScriptedEngine(answer, decode_s=1), **options)
        return [await runtime.arun(report, brief) for brief in briefs()]

    return run_virtual(main())


def requests_of(result: Result[Any]) -> dict[str, CallFinished]:
    """How its requests ended, by their places."""
    calls = index_calls(result.log.envelopes).by_scope.values()
    found: dict[str, CallFinished] = {}
    for call in calls:
        if call.started.kind == "request":
            assert isinstance(call.ended, CallFinished)
            found[call.scope] = call.ended
    return found


def differences(one: Result[str], other: Result[str]) -> int:
    mine, yours = requests_of(one), requests_of(other)
    assert mine.keys() == yours.keys()
    return sum(
        one.log.values.decode(mine[scope].output).text
        != other.log.values.decode(yours[scope].output).text
        for scope in mine
    )


def tokens_of(results: list[Result[str]]) -> int:
    return sum(each.usage.prompt + each.usage.completion for each in results)


def at_once() -> list[harness.Row]:
    engine = ScriptedEngine(answer, decode_s=1)

    async def flow() -> list[str]:
        return await gather(writer("the same") for _ in range(EQUAL))

    async def main() -> None:
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        assert len(set((await runtime.arun(flow)).output)) == 1

    run_virtual(main())
    what = f"{EQUAL:,} equal requests at once: asked of the engine"
    return [harness.Row(what=what, measured=len(engine.requests), unit="requests", target=1)]


def the_demo_again() -> list[harness.Row]:
    engine = ScriptedEngine(demo_answer)

    async def main() -> list[int]:
        runtime, asked = Runtime(engine=engine, log="memory", clock=VirtualClock()), [0]
        for _ in range(2):
            await runtime.arun(team, BRIEF)
            asked.append(len(engine.requests))
        return [after - before for before, after in pairwise(asked)]

    first, second = run_virtual(main())
    what = f"accord demo, its team a second time: asked of the engine (at first {first})"
    return [harness.Row(what=what, measured=second, unit="requests", target=0)]


def demo_answer(request: Request) -> Any:
    match request.agent:
        case "planner":
            parts = [{"title": f"Part {n}", "question": f"What of {n}?"} for n in range(3)]
            return {"title": "The report", "sections": parts}
        case "researcher":
            return {"facts": ["The first fact.", "The second fact."]}
        case _:
            return f"{request.agent} says it."


# ----------------------------------------------------------------------------------- what it costs


def a_million() -> list[harness.Row]:
    with (
        TemporaryDirectory() as folder,
        closing(ResultCache(Path(folder) / "full", most_bytes=MOST_BYTES)) as cache,
    ):
        fill(cache)
        looks_ms = sorted(looks(cache))
        calls_ms = asyncio.run(calls(cache))
    return [
        *figures("a look-up", looks_ms),
        harness.Row(what="the longest look-up", measured=looks_ms[-1], unit="ms"),
        *figures("a whole request of a run", calls_ms),
    ]


def figures(what: str, times_ms: list[float]) -> list[harness.Row]:
    what = f"hit among {ENTRIES:,} results, {what}"
    p99_ms = quantiles(times_ms, n=100)[98]
    return [
        harness.Row(what=f"{what}: median", measured=median(times_ms), unit="ms"),
        harness.Row(what=f"{what}: P99", measured=p99_ms, unit="ms", target=1),
    ]


def key_of(number: int) -> bytes:
    return blake2b(number.to_bytes(8), digest_size=20).digest()


def fill(cache: ResultCache) -> None:
    """Write the file's rows, past the cache's own way: one at a time takes minutes."""
    body = msgspec.json.encode(Entry(result=msgspec.Raw(b'{"text":"%b"}' % (b"." * BODY_BYTES))))
    now_s = time.time()

    def rows() -> Iterator[tuple[Any, ...]]:
        for number in range(ENTRIES):
            row = Row(key_of(number), "", "request", "writer", now_s, body)
            yield (*row[:5], number, len(body) + OVERHEAD, row.digest, body)

    cache.look(key_of(0))  # makes the file
    cache.close()
    assert cache.store.path is not None
    db = sqlite3.connect(cache.store.path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA cache_size = -400000")
    db.execute("BEGIN")
    db.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows())
    db.execute("UPDATE totals SET uses = ?", (ENTRIES,))
    db.execute("COMMIT")
    db.close()
    os.sync()  # else the first to write waits for all of this


def looks(cache: ResultCache) -> Iterator[float]:
    random = Random(1)
    for _ in range(LOOKS):
        key = key_of(random.randrange(ENTRIES))
        began = time.perf_counter()
        found = cache.look(key)
        yield 1000 * (time.perf_counter() - began)
        assert found is not None


async def calls(cache: ResultCache) -> list[float]:
    """Of an agent, one after the other, the second time that it is asked the same."""
    engine, took_ms = ScriptedEngine(answer), list[float]()

    async def flow() -> None:
        for number in Random(2).sample(range(CALLS), CALLS):
            began = time.perf_counter()
            await writer(str(number))
            took_ms.append(1000 * (time.perf_counter() - began))

    async with Runtime(engine=engine, log="memory", cache_store=cache) as runtime:
        await runtime.arun(flow)
        took_ms.clear()
        await runtime.arun(flow)
    assert len(engine.requests) == CALLS
    return took_ms
