"""Runs that answer equal requests as before: which, how, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from itertools import product
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from accord import Agent, Retry, Runtime, arun, gather, run, stream, tool
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.engine.base import Capabilities, Prices, ToolCall, Usage
from accord.engine.openai import OpenAIEngine
from accord.errors import (
    AccordError,
    CallTimeoutError,
    EngineUnavailableError,
    RejectedError,
)
from accord.flow.execution import Token
from accord.graph import END, START, StateGraph
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.reuse.results import Mode, ResultCache, caching
from accord.runtime import Result
from accord.schedule.limits import Limit, Limits
from accord.sync.pipeline import Stage, pipeline
from accord.sync.stream import sentences
from accord.testing.scripted import ScriptedEngine
from accord.testing.stub import StubServer, error, text
from tests.reuse.cached import (
    an_agent,
    counting,
    echo,
    plain,
    reply,
    result_of,
    saved,
    seconds,
    writer,
    writer_of,
)
from tests.sync import replays

# -------------------------------------------------------------------------------- one entry for all


def test_however_a_run_is_made_equal_requests_share_an_entry() -> None:
    """And whatever the agents are called, and however urgent they are."""
    engine, shared = ScriptedEngine(echo), ResultCache()
    options: Any = {"engine": engine, "log": "memory", "cache_store": shared}
    other = Agent("author", "Write.", seed=1, priority=7, deadline_s=100, timeout_s=9, budget=99)

    async def streamed() -> str:
        items = [item async for item in stream(writer, "x", **options)]
        return "".join(item.text for item in items if isinstance(item, Token))

    assert run(writer, "x", **options).output == "X"
    assert asyncio.run(arun(writer, "x", **options)).output == "X"
    assert run(other, "x", **options).output == "X"
    assert asyncio.run(streamed()) == "X"
    assert len(engine.requests) == 1
    assert shared.statistics().hits == 3


def test_a_reply_that_was_streamed_and_one_that_was_not_are_the_same_reply() -> None:
    shared = ResultCache()
    told = "One two three. " * 20

    def tokens(engine: Any) -> str:
        async def main() -> str:
            options: Any = {"engine": engine, "log": "memory", "cache_store": shared}
            items = [item async for item in stream(writer, "x", **options)]
            return "".join(item.text for item in items if isinstance(item, Token))

        return asyncio.run(main())

    engine = ScriptedEngine(told, pieces=7)
    assert [tokens(engine), tokens(engine)] == [told, told]
    assert len(engine.requests) == 1


def test_who_reads_a_reply_while_it_is_written_reads_one_of_before_as_well() -> None:
    async def read(chunks: AsyncIterator[str]) -> list[str]:
        return [sentence async for sentence in sentences(chunks)]

    async def flow() -> list[list[str]]:
        return await pipeline(["x", "x", "y"], writer, Stage(read, streams=True))

    engine = ScriptedEngine("One is here. Two is there! Three.", pieces=9, decode_s=9)
    result = result_of(flow, engine)
    assert result.output == [["One is here.", "Two is there!", "Three."]] * 3
    assert len(engine.requests) == 2


def echoing(text: str) -> str:
    """Gives it back."""
    return text


def test_what_differs_for_the_engine_is_asked_for_each() -> None:
    """CAC-1, CAC-2: fields that only the engine knows count like any other."""
    options: list[dict[str, Any]] = [
        {"extra": {"num_ctx": 2048}},
        {"extra": {"num_ctx": 4096}},
        {"extra": {"foo": {"bar": 1}}},
        {"extra": {"foo": {"bar": True}}},
        {"extra": {"logit_bias": {"50256": -100}}},
        {"max_tokens": 7},
        {"seed": 2},
        {"temperature": 0.1},
        {"stop": ["."]},
        {"model": "other"},
        {"output": int},
        {"tools": [tool(echoing)]},
        {},
    ]
    with StubServer() as stub:
        stub.always(text("1"))
        engine = OpenAIEngine(stub.url)
        agents: list[Agent[Any]] = [an_agent(**{"seed": 1, **each}) for each in options]

        async def flow() -> None:
            for agent in (*agents, *agents):
                await agent("q")

        run(flow, engine=engine, log="memory")
        assert len(stub.requests) == len(options)


def test_engines_models_and_tenants_do_not_share() -> None:
    shared = ResultCache()
    engines = [
        ScriptedEngine(name, name=name, capabilities=Capabilities(model=model))
        for name, model in (("a", "m"), ("b", "m"), ("a", "n"))
    ]
    for engine, tenant in product(engines, ("", "t")):
        run(writer, "x", engine=engine, log="memory", cache_store=shared, tenant=tenant)
    assert [len(engine.requests) for engine in engines] == [2, 2, 2]


class State(TypedDict, total=False):
    q: str
    messages: Annotated[list[str], add]


def test_what_an_agent_is_not_shown_is_no_difference() -> None:
    """CAC-8: the state grows, what the node reads does not."""

    async def answer(state: State) -> State:
        return {"messages": [await writer(state.get("q", ""))]}

    graph = StateGraph(State)
    graph.add_node("answer", answer, reads=["q"])
    graph.add_edge(START, "answer")

    def again(state: State) -> str:
        return "answer" if len(state.get("messages", [])) < 3 else END

    graph.add_conditional_edges("answer", again, ["answer", END])
    engine = counting()
    result = result_of(graph.compile(), engine, {"q": "x", "messages": []})
    assert result.output["messages"] == ["1"] * 3
    assert len(engine.requests) == 1


# -------------------------------------------------------------------------------------------- modes


FOUND = {"off": False, "read": True, "write": False, "on": True}
KEPT = {"off": False, "read": False, "write": True, "on": True}


def made_with(mode: Mode | None, **options: Any) -> Agent[str]:
    return Agent("plain", "Write.", cache=mode, **options)


def once(
    engine: Any, shared: ResultCache, call: Mode | None, agent: Mode | None, in_run: Mode | None
) -> str:
    """What a call gives where these modes are said."""

    async def flow() -> str:
        with nullcontext() if call is None else caching(call):
            return await made_with(agent)("x")

    return run(flow, engine=engine, log="memory", cache_store=shared, cache=in_run).output


@pytest.mark.parametrize("place", [0, 1, 2], ids=["call", "agent", "run"])
@pytest.mark.parametrize("mode", ["off", "read", "write", "on"])
def test_a_mode_says_what_is_looked_up_and_what_is_kept(mode: Mode, place: int) -> None:
    said: list[Any] = [None, None, None]
    said[place] = mode
    engine, shared = ScriptedEngine(str(each) for each in range(1, 9)), ResultCache()
    assert once(engine, shared, *said) == "1"
    assert shared.statistics().kept == KEPT[mode], "on an empty cache"
    assert once(engine, ResultCache(), "on", None, None) == "2"
    engine, shared = ScriptedEngine(["1", "2", "3"]), ResultCache()
    assert once(engine, shared, "on", None, None) == "1"
    found = once(engine, shared, *said)
    assert found == ("1" if FOUND[mode] else "2")
    left = once(engine, shared, "read", None, None)
    assert left == ("2" if KEPT[mode] and not FOUND[mode] else "1")


@pytest.mark.parametrize("modes", list(product(["off", "on", None], repeat=3)))
def test_the_call_says_it_before_the_agent_and_that_before_the_run_and_off_is_a_veto(
    modes: Any,
) -> None:
    engine, shared = ScriptedEngine(["1", "2"]), ResultCache()
    once(engine, shared, "on", None, None)
    found = "on" in modes and "off" not in modes
    assert once(engine, shared, *modes) == ("1" if found else "2")


@pytest.mark.parametrize(
    ("options", "repeats"),
    [
        ({}, False),
        ({"temperature": 0.7}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"seed": 0}, True),
        ({"seed": 3, "temperature": 0.7}, True),
        ({"extra": {"seed": 3}}, True),
        ({"extra": {"temperature": 0}}, True),
        ({"temperature": 0, "extra": {"temperature": 1.0}}, False),
        ({"seed": 3, "extra": {"seed": None}}, False),
    ],
)
def test_what_is_drawn_by_chance_is_drawn_each_time_unless_one_asks(
    options: Any, repeats: bool
) -> None:
    agent = Agent("a", "Write.", **options)

    async def flow() -> list[str]:
        found = [await agent("x"), await agent("x")]
        with caching("on"):
            return [*found, await agent("x"), await agent("x")]

    expected = ["1", "1", "1", "1"] if repeats else ["1", "2", "3", "3"]
    assert result_of(flow, counting()).output == expected


def test_a_veto_around_it_stands_whatever_is_said_inside() -> None:
    async def flow() -> list[str]:
        with caching("off"):
            return await gather(writer_of(cache="on")("x") for _ in range(3))

    assert sorted(result_of(flow, counting()).output) == ["1", "2", "3"]


# ------------------------------------------------------------------------------- what is never kept


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (RejectedError("no"), {}),
        (EngineUnavailableError("gone"), {"retry": Retry(attempts=1)}),
        (reply(finish_reason="length"), {}),
        (reply(finish_reason="content_filter"), {}),
        (reply(finish_reason="error"), {}),
        (reply(text=""), {}),
        (reply(usage=Usage(prompt=5, completion=0)), {}),
        (reply(usage=Usage(prompt=0, completion=0)), {}),
        (reply(text="no json"), {"output": list[int], "repairs": 0}),
        (reply(text="[1,"), {"output": list[int], "repairs": 0}),
        ([ToolCall("1", "unknown", "{}")], {"repairs": 0}),
        (reply(text="told\ud800"), {}),
    ],
)
def test_what_is_no_complete_success_is_asked_for_again(answer: Any, options: Any) -> None:
    """CAC-12."""
    agent = Agent("a", "Do.", seed=1, cache="on", **options)

    async def flow() -> None:
        for _ in range(3):
            with suppress(AccordError, UnicodeError):
                await agent("x")

    engine = ScriptedEngine(lambda _: answer)
    result = result_of(flow, engine)
    assert len(engine.requests) == 3
    assert not saved(result)


def test_a_server_that_failed_first_is_asked_again_and_then_no_more() -> None:
    """CAC-12."""
    agent = Agent("a", seed=1, retry=Retry(attempts=1))

    async def flow() -> str:
        with suppress(EngineUnavailableError):
            await agent("x")
        return await agent("x") + await agent("x")

    with StubServer() as stub:
        stub.script(error(500, "broken"), text("whole"))
        assert run(flow, engine=OpenAIEngine(stub.url), log="memory").output == "wholewhole"
        assert len(stub.requests) == 2


def test_ten_equal_requests_at_once_reach_a_server_once() -> None:
    """CAC-12."""

    async def flow() -> list[str]:
        return await gather(writer("x") for _ in range(10))

    with StubServer(delay_s=0.05) as stub:
        stub.always(text("one"))
        assert run(flow, engine=OpenAIEngine(stub.url), log="memory").output == ["one"] * 10
        assert len(stub.requests) == 1


def test_a_reply_that_had_to_be_sent_back_is_not_kept_and_its_correction_is() -> None:
    agent = Agent("a", output=list[int], seed=1)
    engine = ScriptedEngine(["no json", "[1]", "no json"])

    async def flow() -> list[list[int]]:
        return [await agent("x"), await agent("x")]

    assert result_of(flow, engine).output == [[1], [1]]
    assert len(engine.requests) == 3


def test_a_reply_that_was_cut_to_stay_within_a_budget_is_not_kept() -> None:
    tight = Agent("a", "Do.", seed=1, max_tokens=500, budget=300)
    free = Agent("b", "Do.", seed=1, max_tokens=500)

    async def flow() -> str:
        return await tight("x") + await free("x") + await free("x")

    engine = counting()
    result = result_of(flow, engine)
    assert [each.max_tokens == 500 for each in engine.requests] == [False, True]
    assert result.output == "122"


def test_a_request_that_was_cancelled_leaves_nothing() -> None:
    hasty = Agent("a", "Write.", seed=1, timeout_s=0.5)

    async def flow() -> str:
        with suppress(CallTimeoutError):
            await hasty("x")
        return await writer("x")

    result = result_of(flow, counting())
    assert result.output == "2"
    assert not saved(result)


# ------------------------------------------------------------------------------------ what it costs


PRICED = Capabilities(model="m", prices=Prices(prompt=1e6, completion=1e6))


def test_a_hit_costs_nothing_and_says_what_it_saved() -> None:
    engine = ScriptedEngine("one two", decode_s=3, capabilities=PRICED)

    async def flow() -> list[str]:
        return [await writer("x"), await writer("x")]

    result = result_of(flow, engine)
    calls = index_calls(result.log.envelopes).by_scope.values()
    made, hit = [call.ended for call in calls if call.started.kind == "request"]
    assert isinstance(made, CallFinished)
    assert isinstance(hit, CallFinished)
    assert (hit.usage, hit.cost, made.saved) == (None, None, None)
    assert hit.saved is not None
    assert (hit.saved.usage, hit.saved.cost) == (made.usage, made.cost)
    assert hit.saved.took_ns == 3 * NANOSECONDS
    assert result.usage == made.usage
    assert seconds(result) == 3
    assert result.tax.closes


def test_who_waited_for_another_was_waiting_and_not_thinking() -> None:
    async def late() -> str:
        await asyncio.sleep(1)
        return await writer("x")

    async def flow() -> list[str]:
        return await gather(writer("x"), late())

    result = result_of(flow, ScriptedEngine(decode_s=4))
    [hit] = saved(result)
    assert hit.spent is not None
    assert hit.spent.queued_ns == 3 * NANOSECONDS
    assert result.tax.closes


def test_a_hit_takes_nothing_of_its_agents_budget() -> None:
    tight = Agent("tight", "Do.", seed=1, max_tokens=64, budget=120)

    async def flow() -> list[str]:
        return [await tight("x") for _ in range(20)]

    result = result_of(flow, ScriptedEngine("word " * 50))
    assert len(saved(result)) == 19


def test_a_hit_takes_nothing_of_a_limit() -> None:
    limits = Limits(agent=Limit(requests=1, per_s=1e6, patience_s=1))

    async def flow() -> list[str]:
        return [await writer("x") for _ in range(20)]

    assert result_of(flow, counting(), limits=limits).output == ["1"] * 20


def test_a_hit_takes_nothing_of_a_nodes_budget() -> None:
    async def node(state: State) -> State:
        return {"messages": [await writer("x") for _ in range(50)]}

    graph = StateGraph(State)
    graph.add_node("node", node, budget=1100)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    result = result_of(graph.compile(), ScriptedEngine("word " * 20), {"q": "x"})
    assert len(saved(result)) == 49


# ----------------------------------------------------------------------------------------- resuming


async def hits_and_effects() -> list[str]:
    parts = await gather(writer("x") for _ in range(4))
    await replays.book("first")
    return [*parts, await writer("x"), await plain("y"), await writer("z")]


def test_cut_anywhere_and_resumed_a_run_with_hits_comes_to_the_same() -> None:
    """In the middle of a call that others wait for, too."""
    full = replays.cut_anywhere(hits_and_effects)
    events = [envelope.event for envelope in full.envelopes]
    assert sum(isinstance(e, CallFinished) and e.saved is not None for e in events) == 4


def test_a_run_that_is_made_again_needs_neither_engine_nor_cache() -> None:
    store, engine = MemoryStore(), counting()

    async def main() -> list[Any]:
        first = Runtime(engine=engine, log=store, clock=VirtualClock())
        made = await first.arun(hits_and_effects, run_id="r")
        again = Runtime(engine=ScriptedEngine([]), log=store, clock=VirtualClock(), cache="off")
        return [made.output, (await again.aresume("r", hits_and_effects)).output]

    made, again = run_virtual(main())
    assert made == again


def test_a_run_that_stopped_while_others_waited_is_resumed(tmp_path: Path) -> None:
    """From its file, in another process's stead; and finds what another run has kept since."""
    path = tmp_path / "log.sqlite3"

    async def flow() -> list[str]:
        return [*await gather(writer("x") for _ in range(5)), await writer("y")]

    async def stops() -> None:
        begun = asyncio.Event()
        engine = ScriptedEngine(lambda _: begun.set() or "late", decode_s=60, name="one")
        async with Runtime(engine=engine, log=path) as runtime, asyncio.TaskGroup() as group:
            running = group.create_task(runtime.arun(flow, run_id="r"))
            await begun.wait()
            running.cancel()

    asyncio.run(stops())
    assert run(writer, "x", engine=ScriptedEngine("kept", name="one"), log=path).output == "kept"
    engine = ScriptedEngine("new", name="one")

    async def resumes() -> Result[Any]:
        async with Runtime(engine=engine, log=path) as runtime:
            return await runtime.aresume("r", flow)

    result = asyncio.run(resumes())
    assert result.output == [*["kept"] * 5, "new"]
    assert len(engine.requests) == 1
    assert result.tax.closes
