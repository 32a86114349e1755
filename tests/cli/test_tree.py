"""The tree of calls, and numbers with their units."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accord import Agent, Runtime, gather, sleep, step
from accord.cli.document import simplify
from accord.cli.render import clean, columns, cost, count, plain, seconds, share, stretches, styled
from accord.cli.tree import Node, flatten, tree_of
from accord.clock import VirtualClock, run_virtual
from accord.comm.mailbox import Message, send
from accord.log.events import CallCancelled
from accord.log.fold import index_calls
from accord.log.log import Log
from accord.observe.critical import Segment
from accord.sync.actor import Actor
from accord.sync.actors import actors
from accord.sync.hedge import Hedge
from accord.sync.pipeline import pipeline
from accord.testing.scripted import ScriptedEngine

writer = Agent("writer")


@step(pure=True)
async def name(text: str) -> str:
    return text


def log_of(flow: Any) -> Log:
    async def main() -> Log:
        engine = ScriptedEngine(lambda _request: "one two")
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        return (await runtime.arun(flow)).log

    return run_virtual(main())


def outline(nodes: list[Node], depth: int = 0) -> list[str]:
    lines: list[str] = []
    for node in nodes:
        title = " ".join(filter(None, (node.kind, node.name, node.state)))
        lines += [f"{'.' * depth}{title}", *outline(node.children, depth + 1)]
    return lines


async def two_branches() -> None:
    async def both() -> None:
        await writer("a")
        await name("b")

    await name("first")
    await gather(both(), name("c"))
    await sleep(1)


def test_branches_of_one_call_are_that_call():
    calls = index_calls(log_of(two_branches).envelopes)
    assert outline(tree_of(calls, [], live=False)) == [
        "step name done",
        "join 2 branches joined",
        ".branch 0",
        "..agent writer done",
        "...request writer done",
        "..step name done",
        ".step name done",
        "sleep sleep done",
    ]


def test_a_join_whose_branches_have_not_met_is_in_the_tree():
    envelopes = log_of(two_branches).envelopes
    second = next(each.seq for each in envelopes if each.scope.startswith("1/1"))
    calls = index_calls(envelopes[: second + 1])
    assert outline(tree_of(calls, [], live=True))[1] == "join 2 branches running"
    assert outline(tree_of(calls, [], live=False))[1] == "join 2 branches unfinished"


def test_every_prefix_of_a_log_has_a_tree():
    envelopes = log_of(two_branches).envelopes
    for end in range(1, len(envelopes) + 1):
        calls = index_calls(envelopes[:end])
        nodes = tree_of(calls, [envelopes[end - 1].scope], live=True)
        listed = [each for each in flatten(nodes) if each["kind"] not in ("join", "branch")]
        assert {each["scope"] for each in listed} == set(calls.by_scope)


def test_tasks_of_the_flows_own_have_a_place():
    async def flow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(name("a"))
            group.create_task(name("b"))

    tree = outline(tree_of(index_calls(log_of(flow).envelopes), [], live=False))
    assert tree == ["task name", ".step name done"] * 2


def test_usage_is_on_requests_and_adds_up():
    nodes = tree_of(index_calls(log_of(two_branches).envelopes), [], live=False)
    whole = sum(node.usage_below.prompt for node in nodes)
    listed = [each["usage"].prompt for each in flatten(nodes) if each["usage"] is not None]
    assert sum(listed) == whole > 0


async def count_to(total: int, message: Message[str]) -> int:
    return total + len(await name(message.body))


@step(pure=True)
async def slow(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def test_a_pipeline_has_its_stages_and_items():
    async def flow() -> None:
        await pipeline(["a", "b"], writer, name)

    envelopes = log_of(flow).envelopes
    [node] = tree_of(index_calls(envelopes), [], live=False)
    assert outline([node]) == [
        "pipeline writer → name joined",
        ".stage writer",
        *["..agent writer done", "...request writer done"] * 2,
        ".stage name",
        *["..step name done"] * 2,
    ]
    assert [each.place for each in node.children[0].children] == ["item 0", "item 1"]
    assert node.children[0].end_ns is not None
    calls = index_calls(envelopes[:5])
    assert outline(tree_of(calls, [], live=True))[0] == "pipeline writer → name running"
    assert outline(tree_of(calls, [], live=False))[0] == "pipeline writer → name unfinished"


def test_actors_have_their_names():
    async def flow() -> None:
        async with actors(Actor("counter", count_to, state=0)):
            await send("counter", "x")

    [node] = tree_of(index_calls(log_of(flow).envelopes), [], live=False)
    assert outline([node]) == [
        "actors joined",
        ".actor counter",
        "..handle counter done",
        "...step name done",
    ]


def test_further_attempts_of_a_hedge_say_so():
    async def flow() -> None:
        await Hedge(after_s=0.5, share=1)(slow, 3)
        await sleep(1)

    hedged, _ = tree_of(index_calls(log_of(flow).envelopes), [], live=False)
    told = [(each.place, each.name, each.state) for each in hedged.children]
    assert told == [("", "slow", "done"), ("further attempt", "slow", "dropped")]


def test_nothing_is_unfinished_in_a_finished_run():
    async def flow() -> None:
        await gather(slow(1), slow(3), until="any")

    envelopes = log_of(flow).envelopes
    [cancelled] = [each for each in envelopes if isinstance(each.event, CallCancelled)]
    left = index_calls(each for each in envelopes if each is not cancelled)
    for calls in (index_calls(envelopes), left):
        tree = outline(tree_of(calls, [], live=False))
        assert tree == ["join 2 branches joined", ".step slow done", ".step slow dropped"]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (340_000, "0.3 ms"),
        (12_000_000, "12 ms"),
        (1_940_000_000, "1.9 s"),
        (59_960_000_000, "60.0 s"),
        (125_000_000_000, "2 min 05 s"),
    ],
)
def test_times_have_units(ns: int, text: str):
    assert seconds(ns) == text


def test_numbers_are_readable():
    assert count(1234567) == "1,234,567"
    assert [share(part, 1000) for part in (0, 1, 340)] == ["0%", "<1%", "34%"]
    assert share(1, 0) == "0%"
    assert [cost(each) for each in (None, 0.0, 0.0123, 12.0)] == ["–", "$0", "$0.0123", "$12.00"]
    assert clean("a\x1b[1m\n\u2028b\ud800") == "a [1m b "
    assert clean("abcdef", 4) == "abc…"


def test_columns_are_aligned_whatever_is_in_them():
    rows = [["a", styled("1", "red")], ["日本", "234"], ["", ""]]
    assert [plain(line) for line in columns(rows, "<>")] == ["a       1", "日本  234", ""]


def test_neighbours_on_the_critical_path_are_joined():
    path = [
        Segment(scope="0", kind="request", name=name, start_ns=at, end_ns=at + 5, parts=parts)
        for at, name, parts in [
            (0, "a", {"thinking": 5}),
            (5, "a", {"thinking": 2, "network": 3}),
            (10, "b", {"runtime": 5}),
        ]
    ]
    first, second = stretches(path)
    assert (first.name, first.length_ns, first.parts) == ("a", 10, {"thinking": 7, "network": 3})
    assert second.name == "b"


def test_anything_can_be_simplified():
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    assert simplify([Odd(), {Odd: (1,)}]) == ["odd", {str(Odd): [1]}]
