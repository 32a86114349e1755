"""Accord, the same shapes: a state graph compiled once, and each run in a runtime of its own.

In memory the time includes opening and closing the runtime. The durable chain is in the default
log, an SQLite file, durability "async" (the default), and each run in a new file; as with the
peers, the time is that of the run, from its start until it is stored.
"""

import itertools
import operator
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from accord import Runtime, gather
from accord.comm.mailbox import Mailbox
from accord.graph import START, StateGraph
from accord.testing.scripted import ScriptedEngine
from bench._peers.worker import (
    RUNNER,
    Run,
    Way,
    async_way,
    document_state,
    new_file,
    serve,
    stored_in,
)

STEPS = 100


class Counter(TypedDict):
    """The state of a chain."""

    n: int


class Total(TypedDict):
    """The state of a fan-out: what branches add up."""

    n: Annotated[int, operator.add]


class Document(TypedDict):
    """The state of a durable chain."""

    document: str
    n: int
    note: str


async def increment(state: Counter) -> dict[str, int]:
    return {"n": state["n"] + 1}


async def one(_: Total) -> dict[str, int]:
    return {"n": 1}


async def nothing(_: Total) -> dict[str, int]:
    return {}


async def advance(state: Document) -> dict[str, Any]:
    n = state["n"] + 1
    return {"n": n, "note": f"{n:0100d}"}


def chain(size: int) -> list[Way]:
    return [_counting(_chain(Counter, size, increment), size)]


def fan(size: int) -> list[Way]:
    graph = StateGraph(Total)
    graph.add_node("source", nothing)
    graph.add_node("join", nothing)
    graph.add_edge(START, "source")
    branches = [f"b{index}" for index in range(size)]
    for branch in branches:
        graph.add_node(branch, one)
        graph.add_edge("source", branch)
    graph.add_edge(branches, "join")
    return [_counting(graph.compile(), size)]


def hops(size: int) -> list[Way]:
    async def ping() -> None:
        box: Mailbox[int] = Mailbox("ping")
        for index in range(size // 2):
            await box.send("pong", index)
            await box.receive()

    async def pong() -> None:
        box: Mailbox[int] = Mailbox("pong")
        for _ in range(size // 2):
            await box.send("ping", (await box.receive()).body)

    async def rally() -> None:
        await gather([ping(), pong()])

    return [_in_memory(rally)]


def durable(size: int) -> list[Way]:
    app = _chain(Document, STEPS, advance)
    serials = itertools.count()

    async def way() -> Run:
        path, state = new_file(), document_state(next(serials), size)
        async with Runtime(engine=ScriptedEngine(), log=path) as runtime:
            began = time.perf_counter()
            end = (await runtime.arun(app, state)).output
            seconds = time.perf_counter() - began
        assert end["n"] == STEPS
        assert end["document"] == state["document"]
        run = Run(seconds=seconds, stored=stored_in(path))
        path.unlink()
        return run

    return [lambda: RUNNER.run(way())]


def _chain(state: type, size: int, node: Callable[..., Any]) -> Any:
    graph = StateGraph(state)
    before = START
    for index in range(size):
        graph.add_node(f"n{index}", node)
        graph.add_edge(before, f"n{index}")
        before = f"n{index}"
    return graph.compile()


def _counting(app: Any, size: int) -> Way:
    return _in_memory(app, {"n": 0}, check=lambda end: end["n"] == size)


def _in_memory(flow: Any, *inputs: Any, check: Callable[[Any], bool] | None = None) -> Way:
    async def work() -> None:
        async with Runtime(engine=ScriptedEngine(), log="memory") as runtime:
            end = (await runtime.arun(flow, *inputs)).output
        assert check is None or check(end)

    return async_way(work)


if __name__ == "__main__":
    serve(
        {"chain": chain, "fan": fan, "hops": hops, "durable": durable},
        packages=["accord"],
    )
