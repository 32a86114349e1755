"""The tax report, on runs whose answers are known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent, Prices, Runtime, gather, run, sleep, step
from accord.clock import VirtualClock, WallClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, Timings, Usage
from accord.engine.usage import normalise_usage
from accord.log.store.base import Lease, Store
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.observe.ledger import apportion
from accord.observe.tax import Tax, quantile
from accord.testing.scripted import ScriptedEngine
from accord.tokens.count import estimate

BRIEF = "The first sentence of the brief is long enough.\nAnd here is the second one, also long."
planner = Agent("planner", "Plan it.", coordination=True)
writer = Agent("writer", "Write it.")


def tax_of_run(flow: Any, *inputs: Any, engine: Any, store: Store | None = None) -> Tax:
    async def main() -> Tax:
        runtime = Runtime(engine=engine, log=store or MemoryStore(), clock=VirtualClock())
        result = await runtime.arun(flow, *inputs, baseline_tokens=100)
        return result.tax

    return run_virtual(main())


def test_tokens_are_told_apart_by_who_wrote_them() -> None:
    plan = "A plan that the planner wrote, in one line."

    async def flow(brief: str) -> str:
        said = await planner(brief)
        await writer(f"{brief}\n{said}")
        return await writer(f"{brief}\n{said}\nand more")

    tax = tax_of_run(flow, BRIEF, engine=ScriptedEngine([plan, "Chapter one.", "Chapter two."]))
    origins = tax.tokens.by_origin
    assert tax.closes
    assert sum(origins.values()) == tax.tokens.prompt
    assert origins["peers"] > 0
    assert origins["task"] > origins["peers"], "three times the brief, twice the plan"
    assert origins["instructions"] > 0
    assert origins["history"] == origins["tools"] == 0
    assert tax.agents["writer"].repeats > 0, "the second call sends the brief and the plan again"
    assert tax.agents["planner"].repeats == 0
    assert tax.tokens.coordination == sum(
        (tax.agents["planner"].prompt, tax.agents["planner"].completion)
    )
    assert tax.tokens.amplification == tax.tokens.total / 100


def test_what_an_agent_wrote_itself_is_history_and_what_a_step_gave_is_tools() -> None:
    @step
    async def fetch() -> str:
        return "A page that was fetched from somewhere."

    async def flow() -> str:
        draft = await writer(await fetch())
        return await writer(draft)

    engine = ScriptedEngine("My own draft of the chapter.")
    origins = tax_of_run(flow, engine=engine).tokens.by_origin
    assert origins["tools"] > 0
    assert origins["history"] > 0
    assert origins["peers"] == 0


SAID = "Vaultic writes an audit log of every access to it. It has no free trial."


@pytest.mark.parametrize(
    "wrapped",
    [
        SAID,
        f"- {SAID}",
        f"Chapter one: {SAID}",
        f"1. {SAID}",
        f"> {SAID}",
        f'{{"text":"{SAID}"}}',
        f"Please improve this: {SAID}",
        f"The planner said that {SAID[:-1]}, and so on",
        "\n".join(f"- {sentence}" for sentence in SAID.split(". ")),
    ],
)
def test_what_another_agent_said_is_found_again_however_it_is_put(wrapped: str) -> None:
    async def flow(brief: str) -> None:
        await planner(brief)
        await writer(wrapped)

    origins = tax_of_run(flow, BRIEF, engine=ScriptedEngine(SAID)).tokens.by_origin
    assert origins["peers"] > 0.6 * estimate(SAID)


@dataclass
class Findings:
    facts: list[str]


def test_typed_replies_are_found_again_in_what_a_flow_makes_of_them() -> None:
    """The shapes of the demo: facts as a list, a section under its title."""

    researcher = Agent("researcher", output=Findings)

    async def flow(brief: str) -> None:
        found = await researcher(brief)
        await writer("\n".join(f"- {fact}" for fact in found.facts))

    facts = ["Lockbox costs four dollars a user.", "Keyring is slow in the browser."]
    engine = ScriptedEngine(lambda r: {"facts": facts} if r.agent == "researcher" else "x")
    origins = tax_of_run(flow, BRIEF, engine=engine).tokens.by_origin
    assert origins["peers"] >= sum(map(estimate, facts))


def test_work_that_a_crash_cut_off_is_lost_time() -> None:
    async def main() -> Tax:
        store = MemoryStore()
        runtime = Runtime(
            engine=ScriptedEngine("x", decode_s=10.0), log=store, clock=VirtualClock()
        )
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(writer, "go", run_id="r"))
            await asyncio.sleep(4)
            task.cancel()
        return (await runtime.aresume("r", writer)).tax

    tax = run_virtual(main())
    assert tax.closes
    assert (tax.time.makespan, tax.time.lost, tax.time.thinking) == (14.0, 4.0, 10.0)


def test_time_is_told_apart_along_the_critical_path() -> None:
    @step
    async def work() -> None:
        import asyncio

        await asyncio.sleep(2)

    async def flow(brief: str) -> None:
        await gather(writer(brief), work())
        await sleep(5)

    engine = ScriptedEngine("x", prefill_s=1.0, decode_s=3.0)
    tax = tax_of_run(flow, BRIEF, engine=engine)
    assert tax.time.makespan == 9.0
    assert (tax.time.thinking, tax.time.waiting, tax.time.tools) == (4.0, 5.0, 0.0)
    assert [(s.kind, s.name) for s in tax.critical_path] == [
        ("request", "writer"),
        ("sleep", "sleep"),
    ]


def test_prefill_of_what_others_wrote_is_reading() -> None:
    async def flow(brief: str) -> None:
        said = await planner(brief)
        await writer(said)

    engine = ScriptedEngine("words that somebody else wrote " * 20, prefill_s=1.0)
    tax = tax_of_run(flow, BRIEF, engine=engine)
    assert tax.time.thinking + tax.time.reading == tax.time.makespan == 2.0
    assert 0.9 < tax.time.reading < 1.0


def test_a_prefix_that_was_evicted_is_recompute() -> None:
    cached = [0, 390, 10]

    def script(request: Request) -> Reply:
        usage = Usage(prompt=400, completion=1, cached=cached[len(engine.requests) - 1])
        return Reply(text="x", usage=usage, timings=Timings(prefill_s=1.0, decode_s=0.0))

    async def flow(brief: str) -> None:
        for _ in range(3):
            await writer(brief)

    engine = ScriptedEngine(script, prefill_s=1.0)
    tax = tax_of_run(flow, BRIEF * 20, engine=engine)
    assert tax.closes
    assert tax.time.recompute == pytest.approx(1.0, abs=0.1), "the third prompt, but for its end"


def test_engine_time_beyond_prefill_and_decode_is_network_when_alone() -> None:
    reply = Reply(
        text="x",
        usage=Usage(prompt=10, completion=1),
        timings=Timings(prefill_s=0.25, decode_s=0.5),
    )
    engine = ScriptedEngine(reply, prefill_s=1.0, decode_s=1.0)
    tax = tax_of_run(writer, BRIEF, engine=engine)
    assert (tax.time.network, tax.time.thinking) == (1.25, 0.75)


def test_cost_prices_cached_tokens_once() -> None:
    """USG-1, USG-3."""
    dear = Prices(prompt=1.25, cached=0.625, completion=10)
    assert dear.cost(Usage(prompt=262960, cached=257955, completion=1744)) == pytest.approx(
        0.184918125, abs=1e-12
    )
    cheap = Prices(prompt=0.8, cached=0.08, completion=4)
    assert cheap.cost(Usage(prompt=2459, cached=2455, completion=23)) == pytest.approx(
        0.0002916, abs=1e-12
    )


def test_cost_is_per_agent_and_unknown_is_not_zero() -> None:
    priced = ScriptedEngine(
        Reply(text="x", usage=Usage(prompt=1_000_000, completion=0)),
        capabilities=Capabilities(prices=Prices(prompt=2.0, completion=8.0)),
    )
    assert tax_of_run(writer, "x", engine=priced).agents["writer"].cost == 2.0
    assert tax_of_run(writer, "x", engine=ScriptedEngine()).agents["writer"].cost is None


def test_time_spent_on_the_log_has_a_name(tmp_path: Path) -> None:
    """OBS-11: 200 ms in each commit; the report says how much of the run that was."""

    class Later(WallClock):
        def __init__(self) -> None:
            self.extra_ns = 0

        def now_ns(self) -> int:
            return super().now_ns() + self.extra_ns

    class Slow(SqliteStore):
        def append(
            self, lease: Lease, first: int, records: Sequence[bytes], blobs: Mapping[str, bytes]
        ) -> None:
            clock.extra_ns += 200_000_000
            super().append(lease, first, records, blobs)

    async def flow() -> None:
        await writer("one")
        await writer("two")

    clock = Later()
    store = Slow(tmp_path / "log.db", now_s=WallClock().epoch_s)
    result = run(flow, engine=ScriptedEngine("x"), log=store, clock=clock)
    commits = result.log.statistics().commits
    assert result.tax.closes
    assert result.log.statistics().commit_ns >= commits * 200_000_000
    assert result.tax.time.runtime >= 0.95 * result.tax.time.makespan >= 0.95 * 0.2 * 3
    store.close()


def test_a_run_without_agents_has_a_report() -> None:
    async def flow() -> None: ...

    tax = tax_of_run(flow, engine=ScriptedEngine())
    assert tax.closes
    assert tax.tokens.total == 0
    assert tax.agents == {}


@given(st.integers(0, 10**6), st.lists(st.floats(0, 1e6), max_size=30))
def test_apportioning_adds_up(total: int, weights: list[float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == (total if weights else 0)
    assert all(part >= 0 for part in parts)


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([7], 0.99) == 7
    assert quantile(list(range(1, 101)), 0.5) == 50
    assert quantile(list(range(1, 101)), 0.99) == 99


def test_what_a_cache_gave_and_took_survives_to_the_end() -> None:
    """USG-11: cached_tokens and cache_write_tokens, from the wire to the sum of a run."""
    details = {"cached_tokens": 60, "cache_write_tokens": 10}
    usage = normalise_usage(
        {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": details}
    )
    engine = ScriptedEngine(Reply(text="ok", usage=usage))

    async def flow() -> None:
        for _ in range(2):
            await Agent("a")("x")

    result = run(flow, engine=engine, log="memory")
    assert (result.usage.cached, result.usage.cache_write) == (120, 20)
    assert result.tax.tokens.cached == 120
