"""What went wrong once where graphs, crashes, questions and forks meet, one test a kind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from accord import Runtime, gather, sleep, step
from accord.clock import run_virtual
from accord.comm.interrupt import interrupt
from accord.comm.memory import Memory
from accord.errors import GraphError, RunSuspendedError, StateConflictError, UsageError
from accord.graph import END, START, Graph, Overwrite, Send, StateGraph
from accord.log.events import CallStarted
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from tests.graph.programs import (
    State,
    aresume,
    arun,
    asked,
    cut,
    ends_the_same_cut_anywhere,
    node,
    nodes,
    options,
    result_of,
)


@step(pure=True)
async def told(what: Any) -> Any:
    await asyncio.sleep(0.1)
    return what


# ------------------------------------------------------------------------------------------ forks


def forked(app: Graph, place: str, update: dict[str, Any], given: Any = None) -> Any:
    """The ends of a run and of a fork of it."""

    async def main() -> Any:
        store = MemoryStore()
        first = await arun(app, given or {}, store)
        return first, await app.afork("r", place, update, **options(store))

    return run_virtual(main())


def test_a_fork_is_seen_by_what_comes_after_a_send():
    """What was sent depends on nothing; who comes after it does."""

    async def search(what: str) -> dict[str, Any]:
        return {"notes": [f"found {what}"]}

    async def write(state: Any) -> dict[str, Any]:
        return {"x": len(state["text"])}

    graph = StateGraph(State)
    graph.add_node("plan", node("plan", text="plan A"))
    graph.add_node("search", search).add_node("write", write)
    graph.add_edge(START, "plan").add_edge("search", "write")
    graph.add_conditional_edges("plan", lambda _: [Send("search", w) for w in "ab"], ["search"])
    first, other = forked(graph.compile(), "plan", {"text": "another plan"})
    assert other.output == {**first.output, "text": "another plan", "x": len("another plan")}


def test_a_fork_is_seen_by_what_comes_after_a_node_that_reads_less():
    async def reader(state: Any) -> dict[str, Any]:
        return {"y": state["x"] + 1}

    async def after(state: Any) -> dict[str, Any]:
        return {"notes": [f"saw {state['text']}"]}

    graph = StateGraph(State)
    graph.add_node("a", node("a", text="A")).add_node("reader", reader, reads="x")
    graph.add_node("after", after)
    graph.add_edge(START, "a").add_edge("a", "reader").add_edge("reader", "after")
    first, other = forked(graph.compile(), "a", {"text": "B"}, {"x": 1})
    assert first.output["notes"] == ["a", "saw A"]
    assert other.output == {**first.output, "text": "B", "notes": ["a", "saw B"]}


def test_a_fork_holds_only_what_it_used_or_made():
    """What the first run did on the way that the fork did not go is not in its history."""

    async def left(_: Any) -> dict[str, Any]:
        return {"notes": [await told("left")]}

    async def right(_: Any) -> dict[str, Any]:
        return {"notes": [await told("right")]}

    graph = StateGraph(State).add_node("a", node("a", text="left"))
    graph.add_node("left", left).add_node("right", right).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda s: s["text"], ["left", "right"])
    app = graph.compile()
    first, other = forked(app, "a", {"text": "right"})
    assert first.output["notes"] == ["a", "left"]
    assert other.output["notes"] == ["a", "right"]
    assert [each.label for each in app.get_state_history(other.log)] == ["right", "a"]
    assert {*index_calls(other.log.envelopes).by_scope} == {
        "0",
        "0/~a",
        "0/~right",
        "0/~right/0",
    }


def test_a_question_answered_otherwise_in_a_fork_leaves_nothing_of_the_first_answer():
    async def ask(_: Any) -> dict[str, Any]:
        return {"text": await interrupt("which way?")}

    graph = nodes(left=10, right=10).add_node("ask", ask).add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda s: s["text"], ["left", "right"])
    app = graph.compile()

    async def main() -> Any:
        store = MemoryStore()
        [question] = await asked(app, {}, store)
        await aresume(app, store, {question: "left"})
        async with Runtime(**options(store)) as runtime:
            return await runtime.afork("r", {question: "right"}, app)

    other = run_virtual(main())
    assert other.output["notes"] == ["right"]
    assert [each.label for each in app.get_state_history(other.log)] == ["right", "ask"]
    assert "0/~left" not in index_calls(other.log.envelopes).by_scope


def test_the_memory_of_a_fork_holds_only_what_the_fork_noted():
    memory = Memory("mem")

    async def flow(_: Any) -> list[str]:
        memory.add(f"note {await told('first')}")
        memory.add("note other")
        return [each.value for each in await memory.search("note")]

    async def main() -> Any:
        store = MemoryStore()
        first = await arun(flow, 0, store)
        async with Runtime(**options(store)) as runtime:
            return first.output, (await runtime.afork("r", {"0": "changed"}, flow)).output

    first, other = run_virtual(main())
    assert sorted(first) == ["note first", "note other"]
    assert sorted(other) == ["note changed", "note other"]


# ---------------------------------------------------------------------------------------- crashes


def test_a_router_that_calls_is_resumed_from_anywhere():
    async def route(_: Any) -> str:
        return await told("b")

    graph = nodes(a=10, b=1000).add_edge(START, "a").add_conditional_edges("a", route, ["b"])
    assert ends_the_same_cut_anywhere(graph.compile(), {}).output["notes"] == ["a", "b"]


def test_a_join_that_was_over_in_time_is_so_after_its_deadline():
    """A resumed run that is past the deadline of a join goes by what the join had collected."""
    graph = nodes(a=10, late=10_000, end=10).add_edge(START, "a")
    before = START
    for number in range(4):  # a replay takes some turns to get through these
        left, right, join = (f"{name}{number}" for name in ("left", "right", "join"))
        for name in (left, right, join):
            graph.add_node(name, node(name))
        graph.add_edge(before, left).add_edge(before, right).add_edge([left, right], join)
        before = join
    graph.add_node("early", node("early"), deadline_s=5).add_edge(["a", before], "early")
    graph.add_edge("early", "late").add_edge("late", "end")
    output = ends_the_same_cut_anywhere(graph.compile(), {}).output
    assert output["notes"][-3:] == ["early", "late", "end"]
    assert "a" in output["notes"]


def test_a_node_that_changes_its_state_in_place_changes_its_own_alone():
    """Neither a later run, nor a sibling, nor those after it see that, live or resumed."""

    async def sneaks(state: Any) -> dict[str, Any]:
        state["notes"].append("sneaked")
        return {"x": 1}

    async def looks(state: Any) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        return {"text": str(state["notes"])}

    after = StateGraph(State).add_node("a", sneaks).add_node("b", looks)
    after.add_edge(START, "a").add_edge("a", "b")
    beside = StateGraph(State).add_node("a", sneaks).add_node("b", looks)
    beside.add_edge(START, "a").add_edge(START, "b")
    given = {"notes": ["given"]}
    for graph in (after, beside):
        app = graph.compile()
        for _ in range(2):
            assert result_of(app, {}).output["text"] == "[]"
        first = ends_the_same_cut_anywhere(app, given)
        assert (first.output["notes"], first.output["text"]) == (["given"], "['given']")
    assert given == {"notes": ["given"]}


def test_a_cached_node_that_fires_twice_works_once_also_over_a_crash():
    worked: list[str] = []

    async def work(_: Any) -> dict[str, Any]:
        worked.append("work")
        await told("one")
        await sleep(1)
        return {"notes": [await told("two")]}

    graph = StateGraph(State).add_node("slow", node("slow", 500)).add_node("fast", node("fast"))
    graph.add_node("work", work, cache=True, reads="x", until="each")
    graph.add_edge(START, "slow").add_edge(START, "fast")
    graph.add_edge("slow", "work").add_edge("fast", "work")
    app = graph.compile()
    first = result_of(app, {"x": 1})
    steps = [e.event for e in first.log.envelopes if isinstance(e.event, CallStarted)]
    assert [each.kind for each in steps].count("step") == 2
    assert worked == ["work"]
    ends_the_same_cut_anywhere(app, {"x": 1})


def test_a_router_may_return_a_set():
    """Processes with other hash seeds write the same log."""
    logs = {
        subprocess.check_output(
            [sys.executable, str(Path(__file__).parent / "hash_order.py")],
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )
        for seed in ("1", "2", "3")
    }
    assert len(logs) == 1


# -------------------------------------------------------------------------------------- questions


def test_a_router_at_the_start_may_ask():
    async def route(_: Any) -> str:
        return "a" if await interrupt("go?") == "yes" else END

    app = nodes(a=10).add_conditional_edges(START, route, ["a", END]).compile()

    async def main(answer: str) -> Any:
        store = MemoryStore()
        [question] = await asked(app, {}, store)
        return (await aresume(app, store, {question: answer})).output["notes"]

    assert run_virtual(main("yes")) == ["a"]
    assert run_virtual(main("no")) == []


@pytest.mark.parametrize("writes", [True, False])
def test_an_answer_before_a_node_is_added_once(writes: bool):
    """The same live, resumed from anywhere, and in the history."""

    async def silent(_: Any) -> None:
        pass

    graph = nodes(b=1000).add_node("a", node("a") if writes else silent)
    graph.add_edge(START, "a").add_edge("a", "b")
    app = graph.compile(interrupt_before=["a"])
    expected = ["person", "a", "b"] if writes else ["person", "b"]

    async def main() -> None:
        store = MemoryStore()
        [question] = await asked(app, {}, store)
        answers = {question: {"notes": ["person"]}}
        result = await aresume(app, store, answers)
        assert result.output["notes"] == expected
        assert app.get_state_history(result.log)[0].values["notes"] == expected
        records = store.read("r")
        for count in range(1, len(records)):
            half = cut(records, store._blobs, count)
            try:
                output = (await aresume(app, half)).output
            except RunSuspendedError:
                output = (await aresume(app, half, answers)).output
            assert output["notes"] == expected, count

    run_virtual(main())


def test_an_answer_of_the_wrong_type_is_asked_for_again():
    app = nodes(a=10).add_edge(START, "a").compile(interrupt_before=["a"])

    async def main() -> Any:
        store = MemoryStore()
        [question] = await asked(app, {}, store)
        with pytest.raises(RunSuspendedError) as caught:
            await aresume(app, store, {question: {"x": "one"}})
        [again] = caught.value.questions
        assert again.id != question
        assert "'one' to 'x', which holds int" in again.question["refused"]
        return (await aresume(app, store, {again.id: {"x": 1}})).output

    output = run_virtual(main())
    assert (output["x"], output["notes"]) == (1, ["a"])


def test_questions_in_a_task_group_wait_as_others_do():
    async def flow(_: Any) -> list[str]:
        async with asyncio.TaskGroup() as group:
            a = group.create_task(interrupt("A"), name="a")
            b = group.create_task(interrupt("B"), name="b")
        return [a.result(), b.result()]

    async def main() -> Any:
        store = MemoryStore()
        one, two = await asked(flow, 0, store)
        with pytest.raises(RunSuspendedError):
            await aresume(flow, store, {two: "second"})
        return (await aresume(flow, store, {one: "first"})).output

    assert run_virtual(main()) == ["first", "second"]


@pytest.mark.parametrize(
    "bad", [object(), "\ud800", float("nan"), b"bytes", {1: 2}], ids=lambda bad: type(bad).__name__
)
def test_an_answer_that_is_no_json_changes_nothing(bad: object):
    """Nor does a good one that is given beside it."""

    async def flow(_: Any) -> Any:
        return await gather(interrupt("A", name="a"), interrupt("B", name="b"))

    async def main() -> Any:
        store = MemoryStore()
        one, two = await asked(flow, 0, store)
        before = store.read("r"), list(store.posted("r"))
        with pytest.raises(UsageError, match=f"the answer to '{two}' is plain JSON data"):
            await aresume(flow, store, {one: "fine", two: bad})
        assert (store.read("r"), list(store.posted("r"))) == before
        return (await aresume(flow, store, {one: "first", two: "second"})).output

    assert run_virtual(main()) == ["first", "second"]


# ------------------------------------------------------------------------------- joins and firing


@pytest.mark.parametrize("at_the_end", [True, False])
def test_what_a_join_has_gone_on_without_never_begins(at_the_end: bool):
    graph = nodes(x=10, y=10).add_edge(START, "x").add_edge("x", "y")
    if at_the_end:
        app = graph.add_edge("x", END).compile(until="any")
    else:
        graph.add_node("z", node("z"), until="any")
        app = graph.add_edge("x", "z").add_edge("y", "z").compile()
    result = result_of(app, {})
    assert "0/~y" not in index_calls(result.log.envelopes).by_scope
    assert "y" not in result.output["notes"]


@pytest.mark.parametrize("times", [(10, 20, 30), (20, 10, 30), (30, 20, 10)])
def test_whom_a_race_has_dropped_is_not_said_to_be_missing(times: tuple[int, ...]):
    """A join that has lost its inputs to a race is dropped with them, not refused."""
    graph = nodes(**dict(zip(("fast", "p", "q"), times, strict=True)))
    graph.add_node("two", node("two"), until=2).add_node("j", node("j"), until="any")
    for name in ("fast", "p", "q"):
        graph.add_edge(START, name)
    graph.add_edge(["p", "q"], "two")
    for name in ("fast", "two", "p"):
        graph.add_edge(name, "j")
    assert result_of(graph.compile(), {}).output["notes"][-1] == "j"


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_conflict_that_shows_when_a_deadline_is_over_is_raised(at_the_end: bool):
    graph = StateGraph(State).add_node("a", node("a", x=1)).add_node("b", node("b", x=2))
    graph.add_node("c", node("c", 20_000))
    for name in "abc":
        graph.add_edge(START, name)
    if not at_the_end:
        graph.add_node("j", node("j"), deadline_s=5).add_edge([*"abc"], "j")
    app = graph.compile(deadline_s=5 if at_the_end else None)
    with pytest.raises(StateConflictError, match=r"wrote 'x'.*: 1 by a and 2 by b"):
        result_of(app, {})


def test_places_of_sends_and_of_inputs_taken_singly_never_meet():
    async def work(_: Any) -> dict[str, Any]:
        await asyncio.sleep(5)
        return {"total": 1}

    graph = StateGraph(State).add_node("m", node("m", total=1))
    graph.add_node("n", work, until="each").add_edge(START, "m")
    graph.add_conditional_edges(
        "m",
        lambda s: ["m", Send("n", {}), Send("n", {})] if s["total"] < 2 else ["n"],
        ["m", "n"],
    )
    assert ends_the_same_cut_anywhere(graph.compile(), {}).output["total"] == 5


@pytest.mark.parametrize("ms", [1, 5000])
def test_a_node_called_start_is_not_the_start(ms: float):
    async def work(item: Any) -> dict[str, Any]:
        await asyncio.sleep(ms / 1000)
        return {"notes": [f"w{item}"]}

    graph = nodes(start=10).add_node("work", work)
    graph.add_conditional_edges(START, lambda _: ["start", Send("work", 1)], ["start", "work"])
    graph.add_conditional_edges("start", lambda _: [Send("work", 2)], ["work"])
    app = graph.compile()
    result = ends_the_same_cut_anywhere(app, {})
    assert sorted(result.output["notes"]) == ["start", "w1", "w2"]
    assert len({each.place for each in app.get_state_history(result.log)}) == 3


@pytest.mark.parametrize(("order", "left"), [("ab", ["fresh", "b"]), ("ba", ["fresh"])])
def test_a_graph_in_a_graph_may_overwrite(order: str, left: list[str]):
    """As it may alone."""

    async def fresh(_: Any) -> dict[str, Any]:
        return {"notes": Overwrite(["fresh"])}

    inner = nodes(b=10).add_node("a", fresh)
    inner.add_edge(START, order[0]).add_edge(order[0], order[1])
    app = inner.compile(name="inner")
    outer = nodes(first=10).add_node("inner", app)
    outer.add_edge(START, "first").add_edge("first", "inner")
    assert result_of(app, {"notes": ["old"]}).output["notes"] == left
    assert result_of(outer.compile(), {"notes": ["old"]}).output["notes"] == left


def test_lists_without_a_reducer_are_put_in_a_row_where_branches_meet():
    """The same live and resumed; a write alone replaces."""

    class Listed(TypedDict, total=False):
        items: list[str]
        seen: Annotated[list[str], "what the join was given"]

    def adds(name: str, ms: float) -> Any:
        async def body(state: Any) -> dict[str, Any]:
            await asyncio.sleep(ms / 1000)
            return {"items": [*state["items"], name]}

        return body

    async def join(state: Any) -> dict[str, Any]:
        return {"seen": state["items"], "items": ["new"]}

    graph = StateGraph(Listed).add_node("a", adds("a", 20)).add_node("b", adds("b", 10))
    graph.add_node("join", join)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "join")
    output = ends_the_same_cut_anywhere(graph.compile(), {"items": ["given"]}).output
    assert output == {"items": ["new"], "seen": ["given", "a", "b"]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"until": 0}, "not 0"),
        ({"until": -1}, "not -1"),
        ({"until": "x"}, "not 'x'"),
        ({"until": "each"}, "cannot end for each input"),
        ({"deadline_s": -1}, "deadline_s above 0 or None, not -1"),
    ],
)
def test_ends_that_cannot_be_are_refused(given: dict[str, Any], said: str):
    with pytest.raises(GraphError, match=f"the end of graph 'State'.*{said}"):
        nodes(a=10).add_edge(START, "a").compile(**given)
