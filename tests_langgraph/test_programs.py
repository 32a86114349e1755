"""Real LangGraph programs do on the log what they do in LangGraph's own memory."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from accord.langgraph import AccordSaver
from tests_langgraph.graphs import Talk, answer, asking, config, fan_out, talk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def shape(history: Any) -> list[Any]:
    """A history without ids and times."""
    return [
        (state.values, state.next, state.metadata, [task.name for task in state.tasks])
        for state in history
    ]


def test_histories_are_those_of_the_memory_saver(path: Path) -> None:
    for builder in (talk(7), fan_out()):
        histories = []
        for number, saver in enumerate((InMemorySaver(), AccordSaver(path))):
            graph = builder.compile(checkpointer=saver)
            thread = config(f"{builder.nodes.keys()}")
            graph.invoke({"messages": []}, thread)
            graph.update_state(thread, {"messages": ["by hand"]}, as_node=next(iter(builder.nodes)))
            histories.append(shape(graph.get_state_history(thread)))
            assert number == 0 or histories[0] == histories[1]


def test_interrupt_and_resume_in_another_process(path: Path) -> None:
    first = asking().compile(checkpointer=AccordSaver(path))
    assert first.invoke({"messages": []}, config())["__interrupt__"][0].value == "go on?"
    second = asking().compile(checkpointer=AccordSaver(path))
    assert second.get_state(config()).next == ("ask",)
    said = second.invoke(answer("yes"), config())["messages"]
    assert said == ["before", "answer: yes", "after"]
    assert first.get_state(config()).next == ()


def test_async_interrupt_and_resume(path: Path) -> None:
    async def main() -> list[str]:
        async with AccordSaver(path) as saver:
            graph = asking().compile(checkpointer=saver)
            await graph.ainvoke({"messages": []}, config())
            result = await graph.ainvoke(answer("yes"), config())
            states = [state async for state in graph.aget_state_history(config())]
            assert len(states) == 5
            return result["messages"]

    assert asyncio.run(main()) == ["before", "answer: yes", "after"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_of_langgraph(path: Path, durability: Any) -> None:
    graph = talk(5).compile(checkpointer=AccordSaver(path))
    graph.invoke({"messages": []}, config(), durability=durability)
    assert len(graph.get_state(config()).values["messages"]) == 5


def test_time_travel_forks_and_leaves_the_past_as_it_was(path: Path) -> None:
    graph = talk(4).compile(checkpointer=AccordSaver(path))
    graph.invoke({"messages": []}, config())
    past = [state for state in graph.get_state_history(config()) if state.next]
    old = next(state for state in past if len(state.values["messages"]) == 2)
    before = shape(graph.get_state_history(config()))

    forked = graph.update_state(old.config, {"messages": ["another way"]})
    result = graph.invoke(None, forked)["messages"]
    assert [text[:6] for text in result] == ["000000", "000001", "anothe", "000003"]
    again = graph.get_state(old.config)
    assert (again.values, again.next) == (old.values, old.next)
    assert shape(graph.get_state_history(config()))[-len(before) :] == before
    # One channel has one version on both branches, and a value of its own on each.
    replayed = graph.invoke(None, old.config)["messages"]
    assert [text[:6] for text in replayed] == ["000000", "000001", "000002", "000003"]


def test_a_subgraph_with_its_own_memory_is_a_chain(path: Path) -> None:
    """CKP-14: each checkpoint has one child, in the graph and in the subgraph."""
    saver = AccordSaver(path)
    inner = StateGraph(Talk)
    inner.add_node("inside", lambda state: {"messages": [f"inside {len(state['messages'])}"]})
    inner.add_edge(START, "inside")
    outer = StateGraph(Talk)
    outer.add_node("sub", inner.compile(checkpointer=True))
    outer.add_edge(START, "sub")
    graph = outer.compile(checkpointer=saver)
    for number in range(3):
        graph.invoke({"messages": [f"turn {number}"]}, config())

    everything = list(saver.list({"configurable": {"thread_id": "1"}}))
    places = {found.config["configurable"]["checkpoint_ns"] for found in everything}
    assert places == {"", "sub"}
    for place in places:
        found = [one for one in everything if one.config["configurable"]["checkpoint_ns"] == place]
        parents = [
            one.parent_config["configurable"]["checkpoint_id"] if one.parent_config else None
            for one in found
        ]
        assert len(set(parents)) == len(parents)
        assert parents[:-1] == [one.config["configurable"]["checkpoint_id"] for one in found[1:]]
        assert parents[-1] is None
    assert len(graph.get_state(config(checkpoint_ns="sub")).values["messages"]) > 3


def test_parallel_nodes_on_several_os_threads_and_loops(path: Path) -> None:
    saver = AccordSaver(path)
    graph = fan_out().compile(checkpointer=saver)

    async def many(first: int) -> list[Any]:
        names = [f"thread {number}" for number in range(first, first + 10)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(graph.ainvoke({"messages": []}, config(name))) for name in names
            ]
        return [task.result()["messages"] for task in tasks]

    async def main() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            loops = [
                group.create_task(asyncio.to_thread(asyncio.run, many(first)))
                for first in (0, 10, 20)
            ]
        return [said for loop in loops for said in loop.result()]

    assert asyncio.run(main()) == [["a", "b", "c", "a+b+c"]] * 30
    assert len(list(saver.list(None))) == 30 * 4


def test_delta_channels(path: Path) -> None:
    """LangGraph's own way to store growing lists, with values stored now and then."""
    from typing import Annotated, TypedDict

    from langgraph.channels.delta import DeltaChannel

    def join(state: list[str], writes: list[list[str]]) -> list[str]:
        return [*state, *(text for write in writes for text in write)]

    class Deltas(TypedDict):
        messages: Annotated[list[str], DeltaChannel(join, snapshot_frequency=4)]

    def build() -> StateGraph:
        builder = StateGraph(Deltas)
        builder.add_node("say", lambda state: {"messages": [f"{len(state['messages'])}"]})
        builder.add_edge(START, "say")
        builder.add_conditional_edges(
            "say", lambda state: "say" if len(state["messages"]) < 11 else "__end__"
        )
        return builder

    wanted = [f"{number}" for number in range(11)]
    lengths = []
    for saver in (InMemorySaver(), AccordSaver(path)):
        graph = build().compile(checkpointer=saver)
        assert graph.invoke({"messages": []}, config())["messages"] == wanted
        states = graph.get_state_history(config())
        lengths.append([len(state.values.get("messages", ())) for state in states])
    assert lengths[0] == lengths[1]

    saver = AccordSaver(path)
    graph = build().compile(checkpointer=saver)
    saver.prune(["1"])
    assert graph.get_state(config()).values["messages"] == wanted
    saver.copy_thread("1", "2")
    assert graph.get_state(config("2")).values["messages"] == wanted


def test_the_commands_show_threads(path: Path) -> None:
    """They are runs that never end and have no calls of ours."""

    def accord(*command: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "accord", *command, "--log", str(path)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    with AccordSaver(path) as saver:
        talk(3).compile(checkpointer=saver).invoke({"messages": []}, config("my talk"))
    listed = accord("runs").stdout
    assert "thread:my talk" in listed
    assert "saved" in listed
    for command in ("show", "tax"):
        for form in ((), ("--json",)):
            shown = accord(command, "thread:my talk", *form)
            assert shown.returncode == 0, shown
            assert "Traceback" not in shown.stderr
    resumed = accord("resume", "thread:my talk")
    assert resumed.returncode != 0
    assert "Traceback" not in resumed.stderr
    assert "LangGraph" in resumed.stderr, resumed.stderr
    assert "removed 1 run" in accord("prune", "--keep", "0").stderr
