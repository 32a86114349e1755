"""Chats and crews over their logs: cut anywhere they end alike, whatever order things finish in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from accord import Agent, Runtime, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Reply, Request, ToolCall
from accord.errors import AccordError, UnknownOutcomeError
from accord.log.codec import decode_envelope
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.log.log import read_log
from accord.log.store.memory import MemoryStore
from accord.observe.tax import tax_of
from accord.team.chat import ChatResult, GroupChat
from accord.team.crew import Crew, CrewResult
from accord.team.manager import Manager
from accord.team.speakers import Swarm
from accord.team.task import Task
from accord.team.termination import MaxMessages, TextMention, Timeout, TokenUsage
from accord.testing.scripted import ScriptedEngine

effects: list[str] = []


@tool
async def book(what: str) -> str:
    """Book it."""
    effects.append(what)
    await asyncio.sleep(0.01)
    return f"booked {what}"


@tool(pure=True)
def look_up(what: str) -> str:
    """Look it up."""
    return f"{what}: a thing"


ANN, BOB = Agent("ann", "You are ann."), Agent("bob", "You are bob.", tools=[look_up])
CID = Agent("cid", "You are cid.", tools=[book])
MIXED = MaxMessages(7) | Timeout(1000) | TokenUsage(total=10**6) | TextMention("DONE", by="ann")


async def awkward(task: str) -> list[Any]:
    """A manager that is now and then of no use, twice in one flow, and side by side."""
    from accord import gather

    chat = GroupChat([ANN, BOB, CID], speakers=Manager(turns=2), until=MIXED)
    return [await chat(task), *await gather(chat(f"{task} {index}") for index in range(2))]


TASKS = [
    one := Task("One {x}.", agent=ANN, name="one"),
    two := Task("Two.", agent=BOB, name="two"),
    three := Task("Three.", agent=CID, name="three", context=[one, two], requires=[book]),
    Task("Four.", agent=ANN, name="four", context=[three]),
]
PROGRAMS: dict[str, tuple[Any, Any]] = {
    "round_robin": (GroupChat([ANN, BOB], until=MIXED), "talk"),
    "swarm": (GroupChat([ANN, BOB], speakers=Swarm(), until=MIXED), "talk"),
    "bids": (GroupChat([ANN, BOB, CID], speakers="bids", until=MaxMessages(3)), "talk"),
    "timeout": (GroupChat([ANN, CID], until=Timeout(0.5)), "talk"),
    "tokens": (GroupChat([ANN, BOB], until=TokenUsage(total=600)), "talk"),
    "awkward": (awkward, "talk"),
    "fool": (GroupChat([ANN, BOB], speakers=Manager(name="fool"), until=MaxMessages(7)), "talk"),
    "fools": (
        Crew([ANN, BOB], [Task(f"{i}") for i in range(5)], process="hierarchical", name="fools"),
        {},
    ),
    "sequential": (Crew([ANN, BOB, CID], TASKS), {"x": 1}),
    "parallel": (Crew([ANN, BOB, CID], TASKS, process="parallel"), {"x": 1}),
    "hierarchical": (
        Crew(
            [ANN, BOB, CID, Agent("dan"), GroupChat([ANN, BOB], until=MaxMessages(2), name="pair")],
            [Task("All of it.", requires=[book]), Task("And more.")],
            process="hierarchical",
            span=2,
        ),
        {},
    ),
}
ALL = pytest.mark.parametrize("name", PROGRAMS)


def answer(request: Request) -> Any:
    text = "\n".join(message.content for message in request.messages)
    last = request.messages[-1]
    if request.agent.endswith("bids"):
        return {"bid": len(text) % 7}
    if request.agent.startswith("fool"):
        return "Hello!"
    if request.agent == "manager":
        said = text.count("Remark")
        return ["done", {"turns": ["ann: go", "bob: on"]}, '{"speaker": "Cid"}', "ann"][
            (said + len(request.messages[-1].content)) % 4
        ]
    if "Members:" in text:
        listed = text.partition("Members:\n")[2].partition("\nGive each")[0].splitlines()
        if "no use" not in text and len(listed) % 2:
            return "I do it all myself."
        return {"turns": [f"{line.partition(':')[0]}: do" for line in listed[:2]]}
    told = "Use the tool" in text or "Remark" not in last.content
    if request.tools and last.role == "user" and told:
        wanted = f'{{"what": "{request.agent} {len(text)}"}}'
        call = ToolCall("1", request.tools[0].name, wanted)
        return Reply(text="", tool_calls=(call,), finish_reason="tool_calls")
    return f"Remark on {len(text)} by {request.agent}, with {text.count('Remark')} before."


@dataclass
class Ending:
    value: Any
    store: MemoryStore
    engine: ScriptedEngine
    effects: list[str] = field(default_factory=list[str])

    @property
    def records(self) -> list[bytes]:
        return self.store.read("run")


def play(
    name: str,
    *,
    cut: Ending | None = None,
    position: int = 0,
    repeat_unknown: bool = False,
    seconds: Callable[[Request], float] = lambda _: 0.05,
) -> Ending:
    """Run a program on virtual time; or resume it from ``position`` records of ``cut``."""
    flow, given = PROGRAMS[name]
    effects.clear()
    engine = ScriptedEngine(answer, prefill_s=0.01, decode_s=seconds)
    store = MemoryStore()
    if cut is not None:
        store.create("run", "flow")
        lease = store.acquire("run", "crashed")
        blobs = {digest: cut.store.blob(digest) for digest in cut.store._blobs}
        store.append(lease, 0, cut.records[:position], blobs)
        store.release(lease)

    async def main() -> Any:
        runtime = Runtime(
            engine=engine, log=store, clock=VirtualClock(), repeat_unknown=repeat_unknown
        )
        try:
            if cut is None:
                return (await runtime.arun(flow, given, run_id="run")).output
            return (await runtime.aresume("run", flow)).output
        except UnknownOutcomeError as error:
            return error
        finally:
            assert len(asyncio.all_tasks()) == 1

    return Ending(run_virtual(main()), store, engine, list(effects))


@ALL
def test_a_program_does_something(name: str) -> None:
    ending = play(name)
    assert not isinstance(ending.value, AccordError)
    assert len(ending.engine.requests) > 3
    tax = run_virtual(_tax(ending))
    assert tax.closes
    assert ending.records == play(name).records


async def _tax(ending: Ending) -> Any:
    return tax_of(read_log(ending.store, "run", VirtualClock()))


@ALL
def test_cut_anywhere_it_ends_the_same(name: str) -> None:
    full = play(name)
    envelopes = [decode_envelope(record) for record in full.records]
    for position in range(1, len(envelopes)):
        again = play(name, cut=full, position=position)
        unknown = isinstance(again.value, UnknownOutcomeError)
        before = index_calls(envelopes[:position]).by_scope.values()
        begun = [
            call for call in before if call.started.kind == "tool" and call.started.has_effects
        ]
        assert len(again.effects) <= len(full.effects) - len(begun), f"cut after {position}"
        if unknown:
            assert any(not isinstance(call.ended, CallFinished) for call in begun)
            again = play(name, cut=full, position=position, repeat_unknown=True)
        assert timeless(again.value) == timeless(full.value), f"cut after {position}"
        asked = [call for call in before if call.started.kind == "request" and call.ended]
        assert len(again.engine.requests) <= len(full.engine.requests) - len(asked)


@ALL
def test_whatever_order_things_finish_in_the_result_is_the_same(name: str) -> None:
    if name == "timeout":
        return  # it is what depends on time
    expected = timeless(play(name).value)
    for seed in range(8):
        random = Random(seed)
        shuffled = play(name, seconds=lambda _, random=random: random.uniform(0.001, 1.0))
        assert timeless(shuffled.value) == expected


def timeless(value: Any) -> Any:
    """``value`` without what tells the time."""
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if isinstance(value, ChatResult):
        return replace(value, messages=tuple(replace(m, after_s=0.0) for m in value.messages))
    assert isinstance(value, CrewResult)
    return value
