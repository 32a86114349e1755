"""State graphs: what fires when, what a node sees, and what is refused before anything runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from random import Random
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from accord import Agent, Retry, Runtime, gather, step
from accord.clock import VirtualClock, run_virtual
from accord.errors import (
    GraphError,
    JoinError,
    LoopLimitError,
    StateConflictError,
    StateError,
    UsageError,
)
from accord.graph import END, START, Command, Graph, Overwrite, Send, StateGraph
from accord.log.events import CallCancelled
from accord.log.fold import index_calls
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine


class State(TypedDict, total=False):
    x: int
    notes: Annotated[list[str], add]
    total: Annotated[int, add]
    text: str


def run_of(app: Any, given: Any, *, engine: Any = None) -> Result[Any]:
    async def main() -> Result[Any]:
        async with Runtime(
            engine=engine or ScriptedEngine(), log="memory", clock=VirtualClock()
        ) as runtime:
            return await runtime.arun(app, given)

    return run_virtual(main())


def node(name: str, ms: float = 0, **update: Any) -> Callable[[Any], Any]:
    async def body(state: Any) -> dict[str, Any]:
        await asyncio.sleep(ms / 1000)
        return {"notes": [name], **update}

    return body


def graph_of(edges: dict[str, Any], **nodes: Any) -> StateGraph:
    """A graph of nodes that note their names; ``edges`` lead from a node to one or several."""
    graph = StateGraph(State)
    names = {each for targets in edges.values() for each in _listed(targets)} | set(edges)
    for name in sorted(names - {START, END}):
        graph.add_node(name, nodes.get(name, node(name)))
    for source, targets in edges.items():
        for target in _listed(targets):
            graph.add_edge(source, target)
    return graph


def _listed(targets: Any) -> list[str]:
    return [targets] if isinstance(targets, str) else list(targets)


def written(output: Any) -> dict[str, Any]:
    """The keys that hold something."""
    return {key: value for key, value in output.items() if value not in ([], 0)}


def starts(result: Result[Any]) -> dict[str, float]:
    """When each firing began, in seconds, by label."""
    calls = index_calls(result.log.envelopes)
    return {
        path.rpartition("~")[2]: call.start.at / 1e9
        for path, call in calls.by_scope.items()
        if call.started.kind == "node"
    }


# --------------------------------------------------------------------------------------- firing


def test_a_chain_adds_up_its_state():
    app = graph_of(
        {START: "a", "a": "b", "b": END}, a=node("a", x=1, total=2), b=node("b", total=3)
    )
    assert run_of(app.compile(), {"x": 0}).output == {"x": 1, "notes": ["a", "b"], "total": 5}


def test_a_node_starts_when_its_own_inputs_are_ready():
    """SYN-1: a slow sibling holds up only what comes after it."""
    graph = graph_of(
        {START: ["fast", "slow"], "fast": "after_fast", "after_fast": "end", "slow": "end"},
        fast=node("fast", 100),
        slow=node("slow", 1200),
    )
    began = starts(run_of(graph.compile(), {}))
    assert began["after_fast"] == pytest.approx(0.1, abs=0.05)
    assert began["end"] == pytest.approx(1.2, abs=0.05)


def test_a_join_waits_only_for_what_can_still_come():
    """SYN-3: a source that a router leaves out is not waited for."""
    graph = graph_of({"a": "c", "b": "c"})
    graph.add_conditional_edges(START, lambda _: ["a"], ["a", "b"])
    assert run_of(graph.compile(), {}).output["notes"] == ["a", "c"]


def test_a_join_of_so_many_says_who_is_missing():
    """SYN-3: never silent."""
    graph = StateGraph(State)
    for name in "ab":
        graph.add_node(name, node(name))
    graph.add_node("c", node("c"), until=2)
    graph.add_edge(["a", "b"], "c")
    graph.add_conditional_edges(START, lambda _: ["a"], ["a", "b"])
    with pytest.raises(JoinError, match=r"'c'.*waits for 2 inputs.*from a, not from b"):
        run_of(graph.compile(), {})


@pytest.mark.parametrize(
    ("options", "came", "at_s"),
    [
        ({}, ["b1", "b2", "b3", "b4", "b5"], 2.0),
        ({"until": "any"}, ["b1"], 0.01),
        ({"until": 4}, ["b1", "b2", "b3", "b4"], 0.04),
        ({"deadline_s": 0.09}, ["b1", "b2", "b3", "b4"], 0.1),
    ],
)
def test_joins_of_nodes_wait_as_those_of_branches_do(options: Any, came: list[str], at_s: float):
    """SYN-4: the deadline counts from the first input."""
    graph = StateGraph(State)
    for index, ms in enumerate((10, 20, 30, 40, 2000), 1):
        graph.add_node(f"b{index}", node(f"b{index}", ms))
        graph.add_edge(START, f"b{index}")
        graph.add_edge(f"b{index}", "join")
    graph.add_node("join", node("join"), **options)
    result = run_of(graph.compile(), {})
    assert result.output["notes"] == [*came, "join"]
    assert starts(result)["join"] == pytest.approx(at_s, abs=1e-6)
    calls = index_calls(result.log.envelopes)
    dropped = [c for c in calls.by_scope.values() if isinstance(c.ended, CallCancelled)]
    assert len(dropped) == 5 - len(came)
    assert result.tax.closes


def test_joins_in_a_loop_collect_anew_each_time_round():
    """SYN-5"""
    seen: list[list[str]] = []

    async def merge(state: State) -> dict[str, Any]:
        seen.append([*state.get("notes", [])])
        return {"x": state.get("x", 0) + 1, "notes": Overwrite([])}

    graph = graph_of(
        {START: "gate", "gate": ["bull", "bear"], "bull": "merge", "bear": "merge"},
        gate=node("gate"),
        merge=merge,
    )
    graph.add_conditional_edges("merge", lambda s: "gate" if s["x"] < 3 else END, ["gate", END])
    assert run_of(graph.compile(), {}).output["x"] == 3
    assert seen == [["gate", "bear", "bull"]] * 3


def test_a_parent_that_comes_later_in_a_loop_is_not_waited_for_for_ever():
    """SYN-8"""
    graph = graph_of({START: "generator", "generator": "limiter", "limiter": "reviewer"})
    graph.add_conditional_edges(
        "reviewer", lambda s: "limiter" if len(s["notes"]) < 5 else END, ["limiter", END]
    )
    app = graph.compile()
    assert run_of(app, {}).output["notes"] == [
        "generator",
        "limiter",
        "reviewer",
        "limiter",
        "reviewer",
    ]


def test_a_node_fires_for_each_input():
    """SYN-10: an or-join in a loop is armed again each time."""
    fired: list[int] = []

    async def handler(state: Any) -> dict[str, Any]:
        fired.append(state["x"])
        return {}

    async def count(state: State) -> dict[str, Any]:
        return {"x": state.get("x", 0) + 1}

    graph = StateGraph(State)
    graph.add_node("router", count).add_node("other", node("other"))
    graph.add_node("handler", handler, until="each")
    graph.add_edge(START, "router").add_edge("router", "handler")
    graph.add_conditional_edges("router", lambda s: "router" if s["x"] < 5 else END)
    graph.add_edge(START, "other")
    assert run_of(graph.compile(), {}).output["x"] == 5
    assert fired == [1, 2, 3, 4, 5]


def test_a_join_over_nodes_at_the_start():
    """SYN-11"""
    graph = graph_of({START: ["a", "b"], "a": "both", "b": "both", "both": "then"})
    assert run_of(graph.compile(), {}).output["notes"] == ["a", "b", "both", "then"]


def test_sync_nodes_run_side_by_side_in_threads():
    """SYN-12"""
    meeting = threading.Barrier(2, timeout=5)

    def meet(state: State) -> dict[str, Any]:
        meeting.wait()
        return {}

    graph = graph_of({START: ["a", "b"]}, a=meet, b=meet)

    async def main() -> Any:
        async with Runtime(engine=ScriptedEngine(), log="memory") as runtime:
            return (await runtime.arun(graph.compile(), {"x": 1})).output

    assert written(asyncio.run(main())) == {"x": 1}


@pytest.mark.parametrize("seed", range(10))
def test_lists_are_appended_in_the_order_declared(seed: int):
    """SYN-14"""
    random = Random(seed)
    graph = graph_of(
        {START: list("abcd"), **dict.fromkeys("abcd", "end")},
        **{n: node(n, random.uniform(1, 100)) for n in "abcd"},
    )
    result = run_of(graph.compile(), {"notes": ["first"]})
    assert result.output["notes"] == ["first", "a", "b", "c", "d", "end"]


def test_the_first_to_get_to_the_end_ends_it():
    """SYN-20"""
    late: list[str] = []

    async def emit(state: State) -> dict[str, Any]:
        await asyncio.sleep(0.05)
        late.append("emitted")
        return {}

    graph = graph_of({START: ["stop", "other"]}, stop=node("stop", 10), other=emit)
    result = run_of(graph.compile(until="any"), {})
    assert result.output["notes"] == ["stop"]
    assert not late
    assert result.log.envelopes[-1].at == pytest.approx(10_000_000)


def test_nodes_that_wait_for_each_other_in_a_circle_fire_together():
    graph = graph_of({START: ["a", "b"]})
    graph.add_conditional_edges("a", lambda s: "b" if len(s["notes"]) < 4 else END, ["b", END])
    graph.add_conditional_edges("b", lambda s: "a" if len(s["notes"]) < 4 else END, ["a", END])
    notes = run_of(graph.compile(), {}).output["notes"]
    assert notes.count("a") == notes.count("b") == 4


def test_sends_map_over_items_and_join():
    async def square(item: int) -> dict[str, Any]:
        await asyncio.sleep(0.1 / (item + 1))
        return {"notes": [str(item * item)], "total": item * item}

    graph = StateGraph(State)
    graph.add_node("square", square).add_node("end", node("end"))
    graph.add_conditional_edges(
        START, lambda s: [Send("square", i) for i in range(s["x"])], ["square"]
    )
    graph.add_edge("square", "end")
    result = run_of(graph.compile(), {"x": 12})
    assert result.output["notes"] == [*(str(i * i) for i in range(12)), "end"]
    assert result.output["total"] == sum(i * i for i in range(12))


def test_nothing_to_map_over_ends_it():
    graph = StateGraph(State)
    graph.add_node("work", node("work"))
    graph.add_conditional_edges(START, lambda _: [], ["work"])
    assert written(run_of(graph.compile(), {"x": 1}).output) == {"x": 1}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_faster_nothing_else_changes(seed: int):
    """Same state, same keys, same places, in whatever order nodes complete."""

    def built(random: Random) -> Graph:
        async def work(item: int) -> dict[str, Any]:
            await asyncio.sleep(random.random())
            return {"notes": [f"w{item}"], "total": 1}

        def timed(name: str) -> Any:
            return node(name, random.uniform(0, 1000))

        graph = graph_of(
            {
                START: ["a", "b"],
                "a": ["c", "d"],
                "b": ["d", "e"],
                "c": "f",
                "d": "f",
                "e": "g",
                "f": "h",
                "g": "h",
            },
            **{name: timed(name) for name in "abcdefgh"},
        )
        graph.add_node("work", work)
        graph.add_conditional_edges("e", lambda _: [Send("work", i) for i in range(4)], ["work"])
        graph.add_edge("work", "h")
        graph.add_conditional_edges(
            "h", lambda s: "a" if s["notes"].count("h") < 3 else END, ["a", END]
        )
        return graph.compile()

    def told(result: Result[Any]) -> Any:
        calls = index_calls(result.log.envelopes)
        return result.output, {(p, c.started.key) for p, c in calls.by_scope.items()}

    async def main(random: Random) -> Any:
        async with Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock()) as runtime:
            return told(await runtime.arun(built(random), {}))

    assert run_virtual(main(Random(seed))) == run_virtual(main(Random(99)))


# -------------------------------------------------------------------------------------- the state


def test_branches_that_write_one_key_are_in_conflict():
    graph = graph_of({START: ["a", "b"], "a": "c", "b": "c"}, a=node("a", x=1), b=node("b", x=2))
    with pytest.raises(StateConflictError, match=r"meet at node 'c' wrote 'x'.*1 by a and 2 by b"):
        run_of(graph.compile(), {"x": 0})


def test_branches_that_write_the_same_agree():
    graph = graph_of({START: ["a", "b"], "a": "c", "b": "c"}, a=node("a", x=7), b=node("b", x=7))
    assert run_of(graph.compile(), {"x": 0}).output["x"] == 7


def test_the_later_of_two_writes_on_one_way_counts():
    graph = graph_of(
        {START: ["a", "b"], "a": "c", "b": "d", "c": "d"}, a=node("a", x=1), c=node("c", x=2)
    )
    assert run_of(graph.compile(), {"x": 0}).output["x"] == 2


def test_shared_writes_count_once_where_ways_meet_again():
    graph = graph_of(
        {START: ["a", "b"], "a": ["c", "d"], "b": ["c", "d"], "c": "e", "d": "e"},
        **{name: node(name, total=1) for name in "abcde"},
    )
    output = run_of(graph.compile(), {}).output
    assert output["total"] == 5
    assert output["notes"] == ["a", "b", "c", "d", "e"]


class Listed(TypedDict, total=False):
    items: list[int]


def listing(*steps: list[int]) -> Callable[[Any], Any]:
    async def body(state: Any) -> dict[str, Any]:
        there = state.get("items", [])
        return {"items": [*there, *steps[1]] if steps[0] else steps[1]}

    return body


@pytest.mark.parametrize(("keeps", "merged"), [(True, [0, 1, 2, 3]), (False, [1, 2, 3])])
def test_lists_of_branches_are_put_one_after_the_other(keeps: bool, merged: list[int]):
    """SYN-14: without a reducer a write replaces, and branches that meet lose nothing."""
    graph = StateGraph(Listed)
    for name, number in (("a", 1), ("b", 2), ("c", 3)):
        graph.add_node(name, listing([0] if keeps else [], [number]))
        graph.add_edge(START, name)
        graph.add_edge(name, "end")
    graph.add_node("end", lambda _: None)
    assert run_of(graph.compile(), {"items": [0]}).output == {"items": merged}


def test_a_list_without_a_reducer_is_replaced():
    graph = StateGraph(Listed)
    graph.add_node("a", lambda _: {"items": [2]})
    graph.add_edge(START, "a")
    assert run_of(graph.compile(), {"items": [1]}).output == {"items": [2]}


@dataclass
class Data:
    x: int
    notes: Annotated[list[str], add] = field(default_factory=list)
    y: int = 5


class Struct(msgspec.Struct):
    x: int
    notes: Annotated[list[str], add] = []
    y: int = 5


class Model(pydantic.BaseModel):
    x: int
    notes: Annotated[list[str], add] = []
    y: int = 5


@pytest.mark.parametrize("kind", [Data, Struct, Model])
def test_states_may_be_classes(kind: Any):
    async def a(state: Any) -> dict[str, Any]:
        assert isinstance(state, kind)
        return {"x": state.x + state.y, "notes": ["a"]}

    graph = StateGraph(kind)
    graph.add_node("a", a)
    graph.add_edge(START, "a")
    output = run_of(graph.compile(), kind(x=1)).output
    assert output == kind(x=6, notes=["a"], y=5)


def test_nodes_may_read_and_write_single_keys():
    writer = Agent("writer", "Write.")
    graph = StateGraph(State)
    graph.add_node("write", writer, reads=["text"], writes="text")
    graph.add_edge(START, "write")
    result = run_of(graph.compile(), {"text": "go", "x": 1}, engine=ScriptedEngine("written"))
    assert written(result.output) == {"text": "written", "x": 1}
    assert result.exchanges[0].messages[-1].content == "go"


def test_a_graph_within_a_graph_writes_what_it_added():
    inner = graph_of({START: "i1", "i1": "i2"}, i1=node("i1", total=1), i2=node("i2", total=2))
    outer = graph_of({START: "a", "a": "b", "b": "c"}, b=inner.compile(name="inner"))
    output = run_of(outer.compile(), {"total": 10}).output
    assert output == {"notes": ["a", "i1", "i2", "c"], "total": 13}


def test_graphs_are_flows_within_flows():
    app = graph_of({START: "a"}).compile()

    async def flow(n: int) -> list[Any]:
        return await gather(app({"x": index}) for index in range(n))

    output = run_of(flow, 3).output
    assert [(each["x"], each["notes"]) for each in output] == [(i, ["a"]) for i in range(3)]


# ------------------------------------------------------------------------------------- policies


def test_a_command_writes_and_goes():
    async def choose(state: Any) -> Command[Literal["left", "right"]]:
        return Command(update={"x": 1}, goto="left" if state["x"] else "right")

    graph = graph_of({START: "choose"}, choose=choose)
    graph.add_node("left", node("left")).add_node("right", node("right"))
    assert written(run_of(graph.compile(), {"x": 0}).output) == {"x": 1, "notes": ["right"]}


def test_a_failed_attempt_is_made_again():
    tries: list[int] = []

    async def flaky(state: State) -> dict[str, Any]:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ValueError("not yet")
        return {"x": 1}

    graph = StateGraph(State)
    graph.add_node("flaky", flaky, retry=Retry(attempts=3, base_s=0.1))
    graph.add_edge(START, "flaky")
    result = run_of(graph.compile(), {})
    assert result.output["x"] == 1
    [call] = [
        c for c in index_calls(result.log.envelopes).by_start.values() if c.started.kind == "node"
    ]
    assert [each.attempt for each in call.attempts] == [1, 2]
    assert result.tax.closes


def test_equal_inputs_run_once_with_cache():
    made: list[Any] = []

    async def look_up(state: Any) -> dict[str, Any]:
        made.append(state)
        return {"notes": ["found"]}

    graph = StateGraph(State)
    graph.add_node("loop", lambda s: {"x": s["x"] + 1})
    graph.add_node("look_up", look_up, reads=["text"], cache=True)
    graph.add_edge(START, "loop").add_edge("loop", "look_up")
    graph.add_conditional_edges("look_up", lambda s: "loop" if s["x"] < 4 else END, ["loop", END])
    output = run_of(graph.compile(), {"x": 0, "text": "q"}).output
    assert output["notes"] == ["found"] * 4
    assert made == [{"text": "q"}]


def test_a_node_has_a_timeout():
    graph = StateGraph(State)
    graph.add_node("slow", node("slow", 5000), timeout_s=1)
    graph.add_edge(START, "slow")
    with pytest.raises(TimeoutError, match="node slow took longer than its timeout_s of 1"):
        run_of(graph.compile(), {})


def test_a_failure_stops_the_others_and_says_where():
    async def fail(state: State) -> None:
        await asyncio.sleep(0.01)
        raise ValueError("broken")

    slow: list[int] = []

    async def never(state: State) -> None:
        await asyncio.sleep(10)
        slow.append(1)

    graph = graph_of({START: ["fail", "slow"]}, fail=fail, slow=never)
    with pytest.raises(ValueError, match="broken") as caught:
        run_of(graph.compile(name="team"), {})
    assert caught.value.__notes__ == ["in node 'fail' of graph 'team'"]
    assert not slow


# ------------------------------------------------------------------------- before anything runs


def test_a_router_that_is_async_may_ask_an_agent():
    judge = Agent("judge", "Say left or right.")

    async def route(state: Any) -> str:
        return await judge(state["text"])

    graph = StateGraph(State)
    graph.add_node("a", node("a")).add_node("left", node("left")).add_node("right", node("right"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", route, ["left", "right"])
    result = run_of(graph.compile(), {"text": "?"}, engine=ScriptedEngine("right"))
    assert result.output["notes"] == ["a", "right"]


def built_badly(build: Callable[[StateGraph], Any], **options: Any) -> Graph:
    graph = StateGraph(State)
    graph.add_node("plan", node("plan")).add_node("write", node("write"))
    build(graph)
    return graph.compile(**options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda g: g.add_edge(START, "plna"),
            "names 'plna', which is no node; did you mean 'plan'",
        ),
        (lambda g: g.add_edge("plan", "write"), "has no beginning; add_edge"),
        (lambda g: g.add_edge(START, "plan"), "never comes to 'write'"),
        (lambda g: g.add_node("plan", node("x")), "a node 'plan' already"),
        (lambda g: g.add_node("a/b", node("x")), "a node's name is printable text"),
        (lambda g: g.add_node("__end__", node("x")), "it is the graph's own"),
        (lambda g: g.add_node("x", 5), "needs a function"),
        (lambda g: g.add_node("x", node("x"), retrys=3), "no option 'retrys'"),
        (lambda g: g.add_node("x", node("x"), retry=0), "at least 1, or a Retry, not 0"),
        (lambda g: g.add_node("x", node("x"), timeout_s=-1), "timeout_s is a number above 0"),
        (lambda g: g.add_node("x", node("x"), reads="topic"), "reads or writes 'topic'"),
        (lambda g: g.add_edge(END, "plan"), "an edge leads from the start to the end"),
        (
            lambda g: g.add_edge(START, "plan").add_edge("plan", "write").add_edge("write", "plan"),
            "goes round plan → write → plan for ever",
        ),
        (
            lambda g: (
                g.add_edge(START, "plan")
                .add_conditional_edges("plan", _always_write, ["write"])
                .add_conditional_edges("write", _always_plan, ["plan"])
            ),
            "cannot end once it has come to 'plan'",
        ),
        (
            lambda g: (
                g.add_edge(START, "plan")
                .add_edge("plan", "write")
                .add_node("two", node("two"), until=2)
                .add_edge("write", "two")
            ),
            "waits for 2 inputs, and at most 1 of 'write' can come",
        ),
        (
            lambda g: (
                g.add_conditional_edges(START, _either)
                .add_node("two", node("two"), until=2)
                .add_edge(["plan", "write"], "two")
            ),
            "waits for 2 inputs, and at most 1",
        ),
        (lambda g: g.add_conditional_edges("plan", "write"), "is a function of the state"),
        (lambda g: g.add_edge(START, ["plan"]), "an edge leads to one node"),
    ],
)
def test_what_cannot_work_is_said_before_it_runs(build: Any, message: str):
    with pytest.raises((GraphError, TypeError), match=message):
        built_badly(build)


def _always_write(state: State) -> Literal["write"]:
    return "write"


def _always_plan(state: State) -> Literal["plan"]:
    return "plan"


def _either(state: State) -> Literal["plan", "write"]:
    return "plan"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda s: {"nots": ["a"]},
            "node 'a' names 'nots', which State has not; did you mean 'notes'",
        ),
        (lambda s: {"x": "one"}, "node 'a' writes 'one' to 'x', which holds int"),
        (lambda s: ["x"], "node 'a' gave \\['x'\\]; give a dict of the keys that change"),
        (lambda s: {"total": None}, "node 'a' writes None to 'total', which holds int"),
        (lambda s: Command(goto="b"), "goes to 'b', and may go to no other node"),
    ],
)
def test_what_does_not_fit_the_state_is_said_with_node_and_key(body: Any, message: str):
    graph = graph_of({START: "a"}, a=body)
    with pytest.raises((StateError, GraphError), match=message):
        run_of(graph.compile(), {"x": 1})


def test_an_input_that_does_not_fit_is_refused():
    app = graph_of({START: "a"}).compile()
    with pytest.raises(StateError, match="the input of a graph on State"):
        run_of(app, {"y": 1})
    with pytest.raises(StateError, match="holds int"):
        run_of(app, {"x": []})


def broken(there: Any, written: Any) -> Any:
    raise RuntimeError("no")


class Broken(TypedDict):
    key: Annotated[int, broken]


def test_a_reducer_that_raises_is_named_with_what_it_got():
    graph = StateGraph(Broken)
    graph.add_node("a", lambda s: {"key": 1})
    graph.add_edge(START, "a")
    with pytest.raises(StateError, match="the reducer of 'key' failed on what a writes"):
        run_of(graph.compile(), {})


def test_a_router_that_says_nonsense():
    graph = graph_of({START: "a"})
    graph.add_conditional_edges("a", lambda s: "nowhere", ["a"])
    with pytest.raises(GraphError, match=r"router '<lambda>' after 'a'.*said 'nowhere'"):
        run_of(graph.compile(), {})


def test_recursion_without_end_is_stopped():
    graph = graph_of({START: "a", "a": "b"}, b=node("b", x=1))
    graph.add_conditional_edges("b", lambda s: "a", ["a", END])
    with pytest.raises(
        LoopLimitError, match=r"went round a → b more than 50 times .they write notes, x"
    ):
        run_of(graph.compile(max_loops=50), {})


def test_sends_without_end_are_stopped():
    graph = StateGraph(State)
    graph.add_node("a", node("a"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda s: [Send("a", {})], ["a", END])
    with pytest.raises(LoopLimitError, match="more than 20 times"):
        run_of(graph.compile(max_loops=20), {})


def test_ten_thousand_nodes():
    graph = StateGraph(State)
    graph.add_node("n0", node("n0"))
    graph.add_edge(START, "n0")

    async def count(state: State) -> dict[str, Any]:
        return {"total": 1}

    for index in range(1, 10_000):
        graph.add_node(f"n{index}", count)
        graph.add_edge(f"n{index - 1}", f"n{index}")
    assert run_of(graph.compile(), {}).output["total"] == 9_999


def test_drawn_as_mermaid():
    graph = graph_of({START: "a", "a": ["b", "c"]})
    graph.add_conditional_edges("b", lambda s: True, {True: "c", False: END})
    assert graph.compile().draw_mermaid() == (
        'flowchart TD\n  start(["start"])\n  n0["a"]\n  n1["b"]\n  n2["c"]\n  stop(["end"])\n'
        "  start --> n0\n  n0 --> n1\n  n0 --> n2\n"
        '  n1 -.->|"True"| n2\n  n1 -.->|"False"| stop\n  n2 --> stop\n'
    )


def test_streams_updates_values_and_tokens():
    writer = Agent("writer", "Write.")
    graph = StateGraph(State)
    graph.add_node("plan", node("plan")).add_node("write", writer, reads="text", writes="text")
    graph.add_edge(START, "plan").add_edge("plan", "write")
    app = graph.compile()

    async def main() -> list[Any]:
        engine = ScriptedEngine("one two", pieces=2)
        options: Any = {"engine": engine, "log": "memory"}
        modes: Any = ("updates", "values", "tokens")
        return [item async for item in app.astream({"text": "go"}, mode=modes, **options)]

    assert asyncio.run(main()) == [
        ("updates", {"plan": {"notes": ["plan"]}}),
        ("values", {"notes": ["plan"], "total": 0, "text": "go"}),
        ("tokens", ("one ", "writer")),
        ("tokens", ("two", "writer")),
        ("updates", {"write": {"text": "one two"}}),
        ("values", {"notes": ["plan"], "total": 0, "text": "one two"}),
    ]


def test_effects_in_steps_are_steps():
    charged: list[int] = []

    @step
    async def charge(state: State) -> dict[str, Any]:
        charged.append(1)
        return {"x": 1}

    graph = graph_of({START: "charge"}, charge=charge)
    result = run_of(graph.compile(), {})
    kinds = [c.started.kind for c in index_calls(result.log.envelopes).by_start.values()]
    assert kinds == ["graph", "node", "step"]


def test_there_is_nothing_to_give_that_is_no_state():
    with pytest.raises(UsageError, match="a state is a TypedDict"):
        StateGraph(dict)
