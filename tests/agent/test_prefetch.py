"""Prefetch: what is read ahead, when, at whose cost; and that it delays nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accord import Agent, Blackboard, Runtime, gather, sleep, step
from accord.agent.prefetch import agents_used_by
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.engine.base import Capabilities, Prices, Request
from accord.engine.prefix import REPLY, common_bytes, rendered
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of
from accord.errors import EngineUnavailableError, RejectedError
from accord.graph import END, START, StateGraph
from accord.log.events import CallFinished, CallStarted, PrefetchEnded, PrefetchStarted
from accord.log.log import Log
from accord.log.store.memory import MemoryStore
from accord.runtime import Result
from accord.schedule.following import Following
from accord.schedule.limits import Limit, Limits
from accord.schedule.line import Ask
from accord.schedule.scheduler import Scheduler
from accord.schedule.slots import Slots
from accord.testing.scripted import ScriptedEngine
from tests.sync.replays import Ending

Flow = Callable[..., Coroutine[Any, Any, Any]]
board = Blackboard()
GUIDE = "Weigh each point by the guide, and say why. " * 60
planner = Agent("planner", "Plan it.", shares="brief", max_tokens=16)
writer = Agent(
    "writer", f"Write it. {GUIDE}", shares="brief", writes={"parts": "append"}, max_tokens=32
)
editor = Agent("editor", "Mend it.", shares="brief", reads="parts", max_tokens=16)


@step(pure=True)
async def search(_: str) -> str:
    await asyncio.sleep(3)
    return "what was found"


async def report(brief: str) -> str:
    board.write("brief", f"{brief}: {'all that is to be known. ' * 40}")
    await planner("Go on.")
    found = await search(brief)
    await writer(found)
    return await editor("Go on.")


def sim(**changes: Any) -> SimEngine:
    profile = replace(profile_of("8b"), **changes)
    return SimEngine(profile, replies=lambda request, _: request.max_tokens or 1)


def results_of(
    flow: Flow, *runs: tuple[Any, ...], engine: Any = None, **options: Any
) -> list[Result[Any]]:
    """Runs of ``flow`` one after the other, in one runtime."""
    options = {"log": "memory", "prefetch": True, **options}

    async def main() -> list[Result[Any]]:
        async with Runtime(engine=engine or sim(), clock=VirtualClock(), **options) as runtime:
            return [await runtime.arun(flow, *inputs) for inputs in runs]

    return run_virtual(main())


def prefetched(log: Log) -> list[str]:
    return [e.event.agent for e in log.envelopes if isinstance(e.event, PrefetchStarted)]


def first_token_s(log: Log, agent: str) -> float:
    for each in log.envelopes:
        if isinstance(each.event, CallFinished) and each.event.spent is not None:
            started = log.envelopes[each.event.call].event
            if isinstance(started, CallStarted) and started.name == agent:
                assert each.event.spent.first_token_ns is not None
                return each.event.spent.first_token_ns / NANOSECONDS
    raise AssertionError(agent)


def test_the_next_agent_begins_sooner_and_the_run_ends_no_later():
    _, plain = results_of(report, ("a",), ("b",), prefetch=False)
    _, ahead = results_of(report, ("a",), ("b",))
    assert prefetched(plain.log) == []
    assert "writer" in prefetched(ahead.log)
    assert first_token_s(ahead.log, "writer") < 0.5 * first_token_s(plain.log, "writer")
    assert ahead.log.envelopes[-1].at <= plain.log.envelopes[-1].at


def test_the_first_run_knows_nothing_of_what_comes():
    (first,) = results_of(report, ("a",))
    assert prefetched(first.log) == []


def test_another_process_learns_from_the_log():
    store = MemoryStore()
    results_of(report, ("a",), log=store)
    (second,) = results_of(report, ("b",), log=store)
    assert "writer" in prefetched(second.log)


def test_what_is_read_ahead_is_the_beginning_of_what_is_asked():
    """For it to be of use, byte for byte."""
    engine = ScriptedEngine(
        lambda _: "ok", decode_s=1, capabilities=Capabilities(model="m", prefix_cache=True)
    )
    results_of(report, ("a",), ("b",), engine=engine)
    ahead = [request for request in engine.requests if request.max_tokens == 1]
    asked = [rendered(request) for request in engine.requests if request.max_tokens != 1]
    assert {request.agent for request in ahead} == {"writer", "editor"} & {r.agent for r in ahead}
    for request in ahead:
        beginning = rendered(request).removesuffix(REPLY)
        assert any(prompt.startswith(beginning) for prompt in asked)


def test_it_changes_no_prompt_no_place_and_no_key():
    _, plain = results_of(report, ("a",), ("b",), prefetch=False)
    _, ahead = results_of(report, ("a",), ("b",))

    def made(log: Log) -> list[tuple[str, str]]:
        events = [(e.scope, e.event) for e in log.envelopes]
        return [(scope, event.key) for scope, event in events if isinstance(event, CallStarted)]

    assert made(plain.log) == made(ahead.log)
    assert plain.output == ahead.output


def test_it_is_accounted_apart():
    _, plain = results_of(report, ("a",), ("b",), prefetch=False)
    _, ahead = results_of(report, ("a",), ("b",))
    told = ahead.tax.reuse.prefetched
    assert told.requests == len(prefetched(ahead.log)) > 0
    assert told.read > 0
    assert told.dollars == 0
    assert ahead.tax.closes
    assert ahead.tax.tokens.prompt == plain.tax.tokens.prompt
    assert {name: each.requests for name, each in ahead.tax.agents.items()} == {
        name: each.requests for name, each in plain.tax.agents.items()
    }


def test_what_it_costs_is_told_where_prices_are_known():
    priced = sim(prices=Prices(prompt=1.0, completion=2.0, cached=0.1))
    _, ahead = results_of(report, ("a",), ("b",), engine=priced)
    dollars = ahead.tax.reuse.prefetched.dollars
    assert dollars is not None
    assert dollars > 0


def test_who_asks_in_earnest_gets_the_place_at_once():
    """One place, and another team's request in the middle of reading ahead: it is sent at once."""

    async def flow(number: int) -> float:
        async def beside() -> float:
            await sleep(0.51)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await Agent("other", "Something else.", max_tokens=1)("x")
            return loop.time() - began

        async def team() -> None:
            board.write("brief", f"{number}")
            await planner("Go on.")
            await sleep(2)
            await writer("Go on.")

        return (await gather(team(), beside()))[1]

    slow = ScriptedEngine(
        lambda _: "ok",
        prefill_s=lambda r: 0.5 if r.agent in ("planner", "other") else 5.0,
        capabilities=Capabilities(model="m", prefix_cache=True, concurrency=1),
    )
    (first, again) = results_of(flow, (1,), (2,), engine=slow)
    assert prefetched(again.log)[0] == "writer"
    ends = [e.event for e in again.log.envelopes if isinstance(e.event, PrefetchEnded)]
    assert ends[0].preempted
    assert again.output == pytest.approx(first.output)
    assert again.tax.reuse.prefetched.preempted >= 1


def test_who_was_read_ahead_for_goes_on_with_it():
    """The writer asks while its prompt is still being read: it waits for that."""

    async def flow(brief: str) -> None:
        board.write("brief", brief)
        await planner("Go on.")
        await sleep(0.02)
        await writer("Go on.")

    _, ahead = results_of(flow, ("a",), ("b",))
    (end,) = [e.event for e in ahead.log.envelopes if isinstance(e.event, PrefetchEnded)]
    assert not end.preempted


def test_nothing_is_read_ahead_where_there_is_no_room():
    async def flow(brief: str) -> None:
        await gather(report(f"{brief} {number}") for number in range(1))
        await gather(*(Agent(f"a{n}", "x", max_tokens=64)("go") for n in range(8)), report(brief))

    engine = sim(concurrency=1)
    _, ahead = results_of(flow, ("a",), ("b",), engine=engine)
    for each in ahead.log.envelopes:
        if isinstance(each.event, PrefetchStarted):
            waiting = [
                c
                for c in ahead.log.envelopes
                if isinstance(c.event, CallStarted)
                and c.event.kind == "request"
                and c.at == each.at
            ]
            assert not waiting


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"cache": "none"}, {}),
        ({}, {"limits": Limits(run=Limit(tokens=1_000_000, per_s=1))}),
    ],
)
def test_not_without_a_prefix_cache_and_not_at_the_cost_of_limits(changes: Any, options: Any):
    _, ahead = results_of(report, ("a",), ("b",), engine=sim(**changes), **options)
    assert prefetched(ahead.log) == []


def test_what_slots_at_work_hold_is_not_read_twice():
    """llama.cpp: a slot at work shares nothing, so the whole brief would be read again."""

    async def flow(brief: str) -> None:
        board.write("brief", f"{brief}: {'all that is to be known. ' * 40}")
        await gather(planner("a"), planner("b"))
        await editor("Go on.")

    engine = sim(cache="slots", concurrency=3)
    _, ahead = results_of(flow, ("a",), ("b",), engine=engine, single_flight=False)
    usages = [e.event.usage for e in ahead.log.envelopes if isinstance(e.event, PrefetchEnded)]
    assert all(usage is None or usage.cached > usage.prompt // 2 for usage in usages)


def test_an_engine_that_refuses_is_not_asked_again_and_the_run_goes_on():
    def script(request: Request) -> Any:
        if request.max_tokens == 1:
            return RejectedError("no user message")
        return "ok"

    engine = ScriptedEngine(
        script, decode_s=1, capabilities=Capabilities(model="m", prefix_cache=True)
    )
    with pytest.warns(UserWarning, match="writer' is not read ahead any more"):
        _, ahead = results_of(report, ("a",), ("b",), engine=engine)
    assert ahead.output == "ok"
    assert prefetched(ahead.log).count("writer") == 1


def test_only_what_is_certain_to_stay_is_read_ahead():
    """Of parts in the order of the program, nothing behind one that is still being written."""
    lengths = {"0": 64, "1": 8, "2": 8}
    author = Agent("author", "Write it.", writes={"parts": "append"}, max_tokens=64)

    async def flow(brief: str) -> None:
        board.write("brief", f"{brief}: {'all that is to be known. ' * 40}")
        await gather(author(number) for number in lengths)
        await editor("Go on.")

    engine = SimEngine(
        profile_of("8b"), replies=lambda r, _: lengths.get(r.messages[-1].content, 8)
    )
    _, ahead = results_of(flow, ("a",), ("b",), engine=engine)
    told = ahead.tax.reuse.prefetched
    assert told.requests == 1  # the brief; no part, for the first is the last to end


class State(TypedDict, total=False):
    topic: str
    draft: str
    final: str


def test_a_graph_says_by_its_edges_who_comes_next():
    """In the first run already."""
    graph = StateGraph(State)
    graph.add_node("search", _searched, reads="topic", writes="draft")
    graph.add_node("write", writer, reads="draft", writes="final")
    graph.add_edge(START, "search").add_edge("search", "write").add_edge("write", END)
    app = graph.compile()

    async def main() -> Any:
        runtime = Runtime(engine=sim(), log="memory", clock=VirtualClock(), prefetch=True)
        return await runtime.arun(app, {"topic": "harbours"})

    assert prefetched(run_virtual(main()).log) == ["writer"]


async def _searched(topic: str) -> str:
    await asyncio.sleep(3)
    return topic


def test_a_run_with_prefetch_fails_and_is_cancelled_as_any_other():
    async def fails(brief: str) -> None:
        board.write("brief", brief)
        await planner("Go on.")
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        results_of(fails, ("a",))

    async def main() -> None:
        runtime = Runtime(engine=sim(), log="memory", clock=VirtualClock(), prefetch=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.arun(report, "a"), 0.1)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_a_crash_in_the_middle_of_reading_ahead_changes_nothing():
    store = MemoryStore()
    first = results_of(report, ("a",), log=store)[0]
    second = results_of(report, ("b",), log=store)[0]
    at = next(e.seq for e in second.log.envelopes if isinstance(e.event, PrefetchStarted))
    for cut in (at, at + 1, at + 2):
        full = Ending(second.output, store, [])
        left = MemoryStore()
        left.create("run", "flow")
        lease = left.acquire("run", "crashed")
        blobs = {digest: store.blob(digest) for digest in store._blobs}
        left.append(lease, 0, full.store.read(second.run_id)[:cut], blobs)
        left.release(lease)

        async def main(left: MemoryStore = left) -> Result[Any]:
            runtime = Runtime(engine=sim(), log=left, clock=VirtualClock(), prefetch=True)
            return await runtime.aresume("run", report)

        again = run_virtual(main())
        assert again.output == second.output != ""
        assert again.tax.closes
    assert first.output


class Dead(ScriptedEngine):
    async def start(self) -> Capabilities:
        raise EngineUnavailableError("dead")


def test_an_engine_that_the_run_may_not_need_is_not_started_for_it():
    special = Agent("special", GUIDE, engine=Dead(name="dead"))
    backup = Agent("backup", GUIDE, max_tokens=8)

    async def flow(question: str) -> str:
        found = await search(question)
        try:
            return await special(found)
        except EngineUnavailableError:
            return await backup(found)

    _, ahead = results_of(flow, ("a",), ("b",))
    assert ahead.output
    assert "special" not in prefetched(ahead.log)


def test_whatever_is_wrong_with_reading_ahead_the_run_goes_on():
    def script(request: Request) -> Any:
        return RuntimeError("a bug") if request.max_tokens == 1 else "ok"

    engine = ScriptedEngine(
        script, decode_s=1, capabilities=Capabilities(model="m", prefix_cache=True)
    )
    with pytest.warns(UserWarning, match="not read ahead any more"):
        _, ahead = results_of(report, ("a",), ("b",), engine=engine)
    assert ahead.output == "ok"


def test_what_hangs_when_it_is_read_ahead_holds_up_nobody_for_long():
    """One place only, and the agent that it is read for wants it."""

    async def flow(brief: str) -> str:
        board.write("brief", f"{brief}: {GUIDE}")
        await search(brief)
        return await editor("Go on.")

    engine = ScriptedEngine(
        lambda _: "ok",
        prefill_s=lambda r: 1e6 if r.max_tokens == 1 else 0.5,
        capabilities=Capabilities(model="m", prefix_cache=True, concurrency=1),
    )
    with pytest.warns(UserWarning, match="editor' is not read ahead any more"):
        _, ahead = results_of(flow, ("a",), ("b",), engine=engine)
    assert ahead.log.envelopes[-1].at < 60 * NANOSECONDS


def test_what_was_preempted_does_not_count_as_read():
    following = Following(Capabilities(prefix_cache=True), on=True)
    prompt = b"all that is to be known. " * 40
    assert following.pays_ahead(prompt)

    async def main() -> bool:
        scheduler = Scheduler(sim())
        await scheduler.start()
        taken: list[str] = []
        async with scheduler.spare_place(Ask(prompt=prompt), lambda: taken.append("back")) as place:
            assert place is not None
            async with scheduler.place(Ask(prompt=b"something else")):
                assert taken == ["back"]
                assert scheduler.statistics().active == 1
        assert scheduler.statistics().active == 0
        async with scheduler.spare_place(Ask(prompt=prompt), lambda: None) as again:
            return again is not None

    assert run_virtual(main())


@pytest.mark.parametrize("concurrency", [None, 1, 2])
def test_more_requests_than_slots_are_known_of_are_no_trouble(concurrency: int | None):
    engine = ScriptedEngine(
        lambda _: "ok",
        decode_s=1,
        capabilities=Capabilities(
            model="m", prefix_cache=True, slots=True, concurrency=concurrency
        ),
    )

    async def flow(brief: str) -> list[str]:
        return await gather(planner(f"{brief} {number}") for number in range(12))

    _, ahead = results_of(flow, ("a",), ("b",), engine=engine)
    assert ahead.output == ["ok"] * 12


prompts = st.binary(min_size=0, max_size=6)


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), prompts), max_size=30))
def test_slots_hold_no_more_than_there_are(count: int, steps: list[tuple[bool, bytes]]):
    slots, busy = Slots(count), list[bytes]()
    for begins, prompt in steps:
        if begins:
            slots.sent(prompt)
            busy.append(prompt)
        elif busy:
            slots.ended(busy.pop(0))
        assert len(slots._idle) <= count
        assert len(slots._idle) + len(slots._busy) <= max(count, len(busy))
        assert sorted(slots._busy) == sorted(busy)
        assert slots.held(prompt)[1] == max(
            (common_bytes(prompt, each) for each in busy), default=0
        )


def test_agents_are_found_where_a_flow_names_them():
    def beside() -> object:
        return writer

    own = Agent("own")

    async def flow() -> None:
        await planner("x")
        assert beside()
        await gather(own(each) for each in "ab")

    assert {each.name for each in agents_used_by(flow)} >= {"planner", "writer", "own"}
    assert {each.name for each in agents_used_by(report)} == {"planner", "writer", "editor"}
    assert agents_used_by(editor) == [editor]
    assert agents_used_by(print) == []
