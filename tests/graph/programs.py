"""Graphs and flows on virtual time, run, answered, and cut at every event of their log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import add
from typing import Annotated, Any, TypedDict

import pytest

from accord import Runtime
from accord.clock import VirtualClock, run_virtual
from accord.errors import RunSuspendedError
from accord.graph import StateGraph
from accord.log.store.memory import MemoryStore
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine


class State(TypedDict, total=False):
    x: int
    y: int
    notes: Annotated[list[str], add]
    total: Annotated[int, add]
    text: str


def options(store: MemoryStore) -> Any:
    return {"engine": ScriptedEngine(), "log": store, "clock": VirtualClock()}


def node(name: str, ms: float = 10, **update: Any) -> Callable[[Any], Any]:
    async def body(_: Any) -> dict[str, Any]:
        await asyncio.sleep(ms / 1000)
        return {"notes": [name], **update}

    return body


def nodes(**times: float) -> StateGraph:
    """A graph of nodes that note their names after so many milliseconds."""
    graph = StateGraph(State)
    for name, ms in times.items():
        graph.add_node(name, node(name, ms))
    return graph


async def arun(flow: Any, given: Any, store: MemoryStore) -> Result[Any]:
    async with Runtime(**options(store)) as runtime:
        return await runtime.arun(flow, given, run_id="r")


async def aresume(flow: Any, store: MemoryStore, answers: Any = None) -> Result[Any]:
    async with Runtime(**options(store), repeat_unknown=True) as runtime:
        return await runtime.aresume("r", flow, answers=answers)


async def asked(flow: Any, given: Any, store: MemoryStore) -> list[str]:
    """The ids of the questions that a run waits with."""
    with pytest.raises(RunSuspendedError) as caught:
        await arun(flow, given, store)
    return [each.id for each in caught.value.questions]


def result_of(flow: Any, given: Any) -> Result[Any]:
    return run_virtual(arun(flow, given, MemoryStore()))


def cut(records: list[bytes], digests: dict[str, bytes], count: int) -> MemoryStore:
    """A store that holds the first ``count`` records of run ``r``."""
    store = MemoryStore()
    store.create("r", "flow")
    lease = store.acquire("r", "a dead process")
    store.append(lease, 0, records[:count], digests)
    store.release(lease)
    return store


def ends_the_same_cut_anywhere(flow: Any, given: Any) -> Result[Any]:
    """Resumed from any event of its log, a run comes to the same; returns the first one."""
    store = MemoryStore()
    first = run_virtual(arun(flow, given, store))
    records = store.read("r")
    for count in range(1, len(records)):
        half = cut(records, store._blobs, count)
        assert run_virtual(aresume(flow, half)).output == first.output, count
    return first
