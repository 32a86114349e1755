"""What does a memory of 100,000 items cost: to fill, to index, to search, to hold?

An item has 30 words, drawn as in natural language (Zipf) from 30,000. Rare terms are in fewer than
one item in a thousand, common ones in one in ten to one in three; a question is eight words drawn
like those of the items. What an interface feels as immediate is under 100 ms; a search stands
beside model requests of seconds, so 10 ms for a term that tells something is under 1% of one.
"""

import asyncio
import gc
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from accord import Runtime
from accord.comm.index import Indexes
from accord.comm.memory import Memory
from accord.errors import UsageError
from accord.flow.scope import current_scope
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row, stopwatch

QUICK = False  # half a minute
ITEMS = 100_000
WORDS = 30
KINDS = 30_000
SEARCHES = 100
NUMBERS = 384
"""In a vector, as of the small sentence models."""

memory = Memory()


def run() -> list[Row]:
    return asyncio.run(_run())


async def _run() -> list[Row]:
    async with Runtime(engine=ScriptedEngine(), log="memory") as runtime:
        return (await runtime.arun(measure, run_id="memory")).output


async def measure() -> list[Any]:
    random = Random(0)
    kinds = [f"word{index}" for index in range(KINDS)]
    weights = list(accumulate(1 / (index + 1) for index in range(KINDS)))
    texts = [" ".join(random.choices(kinds, cum_weights=weights, k=WORDS)) for _ in range(ITEMS)]
    there = Counter(word for text in texts for word in set(text.split()))
    rare = [word for word in kinds if 0 < there[word] < ITEMS / 1000]
    common = [word for word in kinds if ITEMS / 10 < there[word] < ITEMS / 3]

    empty_mib = resident_mib()
    with stopwatch() as adding:
        for text in texts:
            memory.add(text)
    filled_mib = resident_mib()
    with stopwatch() as indexing:
        await memory.search(rare[0])
    indexed_mib = resident_mib()

    with stopwatch() as growing:
        memory.add("one more")
        await memory.search(rare[0])
    pin = memory.position()
    for text in texts[:1000]:
        memory.add(text)
    await memory.search(rare[0])
    with stopwatch() as going_back:
        await memory.search(rare[0], at=pin)
    rare_ms = await latencies_ms([random.choice(rare) for _ in range(SEARCHES)])
    common_ms = await latencies_ms([random.choice(common) for _ in range(SEARCHES)])
    questions = [" ".join(random.choices(kinds, cum_weights=weights, k=8)) for _ in range(SEARCHES)]
    asked_ms = await latencies_ms(questions)
    everywhere_ms = await latencies_ms([kinds[0]] * 5)
    return [
        Row(what="add, an item", measured=adding.seconds / ITEMS * 1e6, unit="µs", target=100),
        Row(what="items and events, held", measured=filled_mib - empty_mib, unit="MiB"),
        Row(what="first search: builds the index", measured=indexing.seconds, unit="s"),
        Row(what="index, held", measured=indexed_mib - filled_mib, unit="MiB"),
        Row(what="index, in SQLite", measured=database_mib(), unit="MiB"),
        Row(what="add one and search it", measured=growing.seconds * 1e3, unit="ms", target=10),
        Row(what="search 1,000 writes back", measured=going_back.seconds * 1e3, unit="ms"),
        Row(what="rare term, P50", measured=part(rare_ms, 0.5), unit="ms", target=10),
        Row(what="rare term, P99", measured=part(rare_ms, 0.99), unit="ms", target=10),
        Row(what="common term, P50", measured=part(common_ms, 0.5), unit="ms", target=100),
        Row(what="common term, P99", measured=part(common_ms, 0.99), unit="ms", target=100),
        Row(what="question of 8 words, P50", measured=part(asked_ms, 0.5), unit="ms", target=100),
        Row(what="question of 8 words, P99", measured=part(asked_ms, 0.99), unit="ms"),
        Row(what="a term in 94% of the items", measured=part(everywhere_ms, 0.5), unit="ms"),
        *await by_meaning(texts),
    ]


async def by_meaning(texts: list[str]) -> list[Row]:
    """What vectors add, on a tenth of the items; nothing where there is no sqlite-vec."""
    count = ITEMS // 10
    random = Random(1)

    async def embed(asked: list[str]) -> list[list[float]]:
        return [[random.gauss() for _ in range(NUMBERS)] for _ in asked]

    try:
        vectors = Memory("vectors", embed)
    except UsageError as error:
        print(f"  no vectors: {error}")
        return []
    for text in texts[:count]:
        vectors.add(text)
    await vectors.search("word7")
    found_ms = await latencies_ms([f"word{index}" for index in range(500, 520)], vectors)
    what = f"rare term, and meaning, {count:,} items, P50"
    return [Row(what=what, measured=part(found_ms, 0.5), unit="ms", target=100)]


async def latencies_ms(queries: Sequence[str], of: Memory = memory) -> list[float]:
    found: list[float] = []
    for query in queries:
        began = time.perf_counter()
        await of.search(query)
        found.append((time.perf_counter() - began) * 1e3)
    return sorted(found)


def part(ordered: Sequence[float], of: float) -> float:
    """The least of ``ordered`` that at least this part of them does not exceed."""
    return ordered[math.ceil(of * len(ordered)) - 1]


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def database_mib() -> float:
    """What SQLite says that its tables take."""
    log = current_scope("bench").execution.log
    database = log.fold(Indexes).of(log, memory.name, vectors=False)._database  # noqa: SLF001
    count = database.execute("PRAGMA page_count").fetchone()[0]
    return count * database.execute("PRAGMA page_size").fetchone()[0] / 2**20
