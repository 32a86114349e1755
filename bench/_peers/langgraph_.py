"""LangGraph, at its best.

Compiled once and run warm, tracing off. Nodes as sync functions with `invoke` and as async ones
with `ainvoke`, whichever is quicker; branches as static edges and as `Send`.

The durable chain keeps its checkpoints in an SQLite file, with `SqliteSaver` and with
`AsyncSqliteSaver`, durability "async" (the default), a thread of its own for each run:
- "durable": as it comes, which is a commit on the disk for each checkpoint;
- "durable, no fsync": `PRAGMA synchronous = NORMAL` on its connection;
- "durable, no fsync, delta": and the document in a `DeltaChannel`, which is in beta: it is stored
  when it is written, not with each checkpoint. Its reducer keeps the last.
"""

# pyright: reportMissingImports=false, reportUnknownVariableType=false
# (it has an environment of its own)

import itertools
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from bench._peers.worker import (
    EXIT,
    RUNNER,
    Run,
    Way,
    async_way,
    document_state,
    new_file,
    serve,
    stored_in,
    sync_way,
)

STEPS = 100
LIMIT = {"recursion_limit": 1_000_000}


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


def last(held: str, written: Sequence[str]) -> str:
    return written[-1] if written else held


class DeltaDocument(TypedDict):
    """The same, with a document that is stored when it is written."""

    document: Annotated[str, DeltaChannel(last)]
    n: int
    note: str


def increment(state: Counter) -> dict[str, int]:
    return {"n": state["n"] + 1}


def one(_: Any) -> dict[str, int]:
    return {"n": 1}


def nothing(_: Any) -> dict[str, int]:
    return {}


def advance(state: Document) -> dict[str, Any]:
    n = state["n"] + 1
    return {"n": n, "note": f"{n:0100d}"}


def as_async(function: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    async def node(state: Any) -> Any:
        return function(state)

    return node


def as_it_is(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return function


def chain(size: int) -> list[Way]:
    return _ways(lambda kind: _chain(Counter, size, kind(increment)).compile(), size)


def fan(size: int) -> list[Way]:
    return _ways(partial(_edges, size), size) + _ways(partial(_sends, size), size)


def _ways(build: Callable[[Any], Any], size: int) -> list[Way]:
    """An app of sync nodes and one of async nodes."""
    blocking, waiting = build(as_it_is), build(as_async)

    def invoke() -> None:
        assert blocking.invoke({"n": 0}, LIMIT)["n"] == size

    async def ainvoke() -> None:
        assert (await waiting.ainvoke({"n": 0}, LIMIT))["n"] == size

    return [sync_way(invoke), async_way(ainvoke)]


def _chain(state: type, size: int, node: Any) -> Any:
    graph = StateGraph(state)
    before = START
    for index in range(size):
        graph.add_node(f"n{index}", node)
        graph.add_edge(before, f"n{index}")
        before = f"n{index}"
    return graph


def _edges(size: int, kind: Any) -> Any:
    graph = StateGraph(Total)
    graph.add_node("source", kind(nothing))
    graph.add_node("join", kind(nothing))
    graph.add_edge(START, "source")
    branches = [f"b{index}" for index in range(size)]
    for branch in branches:
        graph.add_node(branch, kind(one))
        graph.add_edge("source", branch)
    graph.add_edge(branches, "join")
    return graph.compile()


def _sends(size: int, kind: Any) -> Any:
    def each(_: Total) -> list[Send]:
        return [Send("branch", {"n": index}) for index in range(size)]

    graph = StateGraph(Total)
    graph.add_node("source", kind(nothing))
    graph.add_node("branch", kind(one))
    graph.add_node("join", kind(nothing))
    graph.add_edge(START, "source")
    graph.add_conditional_edges("source", each, ["branch"])
    graph.add_edge("branch", "join")
    return graph.compile()


def durable(state: type, pragma: str, size: int) -> list[Way]:
    return [_blocking(state, pragma, size), _waiting(state, pragma, size)]


def _blocking(state: type, pragma: str, size: int) -> Way:
    path = new_file()
    saver = EXIT.enter_context(SqliteSaver.from_conn_string(str(path)))
    saver.setup()
    saver.conn.execute(pragma)
    app = _chain(state, STEPS, advance).compile(checkpointer=saver)
    serials = itertools.count()

    def way() -> Run:
        serial = next(serials)
        began = time.perf_counter()
        end = app.invoke(document_state(serial, size), _thread(serial))
        seconds = time.perf_counter() - began
        _check(end, size)
        stored = 0 if serial else stored_in(path)
        saver.delete_thread(str(serial))
        return Run(seconds=seconds, stored=stored)

    return way


def _waiting(state: type, pragma: str, size: int) -> Way:
    path = new_file()
    saver = RUNNER.run(EXIT.enter_async_context(AsyncSqliteSaver.from_conn_string(str(path))))
    app = _chain(state, STEPS, as_async(advance)).compile(checkpointer=saver)
    serials = itertools.count()

    async def prepare() -> None:
        await saver.setup()
        await saver.conn.execute(pragma)

    async def way() -> Run:
        serial = next(serials)
        began = time.perf_counter()
        end = await app.ainvoke(document_state(serial, size), _thread(serial))
        seconds = time.perf_counter() - began
        _check(end, size)
        stored = 0 if serial else stored_in(path)
        await saver.adelete_thread(str(serial))
        return Run(seconds=seconds, stored=stored)

    RUNNER.run(prepare())
    return lambda: RUNNER.run(way())


def _thread(serial: int) -> dict[str, Any]:
    return LIMIT | {"configurable": {"thread_id": str(serial)}}


def _check(end: dict[str, Any], size: int) -> None:
    assert end["n"] == STEPS
    assert len(end["document"]) == size


AS_IT_COMES, NO_FSYNC = "PRAGMA synchronous", "PRAGMA synchronous = NORMAL"

if __name__ == "__main__":
    serve(
        {
            "chain": chain,
            "fan": fan,
            "durable": partial(durable, Document, AS_IT_COMES),
            "durable, no fsync": partial(durable, Document, NO_FSYNC),
            "durable, no fsync, delta": partial(durable, DeltaDocument, NO_FSYNC),
        },
        packages=["langgraph", "langgraph-checkpoint-sqlite"],
    )
