"""Numbered invariants over a corpus of tiny programs, each cut at every position and resumed.

I1  a log is well formed: causes come first, time never runs back, each call starts once
I2  the tax report closes
I3  the same seed gives the same bytes
I4  cut anywhere and resumed, a run comes to the same ending
I5  no finished call is made again
I6  an effect happens at most once, or its outcome is reported as unknown
I7  whatever order branches finish in, results, places and keys are the same
I8  nothing is left behind: no task, no pending write, no lease
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from accord import Agent, Retry, Runtime, gather, sleep, step, tool
from accord.clock import VirtualClock, run_virtual
from accord.comm.blackboard import Blackboard
from accord.comm.mailbox import Mailbox, send
from accord.comm.memory import Memory
from accord.engine.base import Reply, Request, ToolCall
from accord.errors import (
    CallTimeoutError,
    ConflictError,
    EngineUnavailableError,
    RateLimitedError,
    UnknownOutcomeError,
)
from accord.log.codec import decode_envelope
from accord.log.events import CallFailed, CallFinished, CallStarted, RunEnded, RunStarted
from accord.log.fold import Call, index_calls
from accord.log.store.memory import MemoryStore
from accord.observe.tax import tax_of
from accord.sync.pipeline import Stage, pipeline
from accord.sync.stream import sentences
from accord.testing.scripted import ScriptedEngine

effects: list[str] = []
pauses_of_steps = Random(0)


async def wait() -> None:
    """Steps take a random time, so that they finish in another order with another seed."""
    await asyncio.sleep(pauses_of_steps.uniform(0.001, 0.1))


@dataclass
class Plan:
    parts: list[str]


@step
async def book(what: str) -> str:
    effects.append(what)
    await wait()
    return f"booked {what}"


@step(pure=True)
async def measure(what: str) -> int:
    await wait()
    return len(what)


@step
def in_a_thread(what: str) -> str:
    effects.append(what)
    return what.upper()


@step
async def fail(what: str) -> str:
    effects.append(what)
    raise ValueError(what)


@tool(pure=True)
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a word"


@tool
async def charge(amount: int) -> str:
    """Charge a card."""
    effects.append(f"charge {amount}")
    return "charged"


async def allow(task: str) -> None:
    await asyncio.sleep(0.3)
    raise PermissionError(f"no {task}")


planner = Agent("planner", "Plan.", output=Plan)
writer = Agent("writer", "Write.")
librarian = Agent("librarian", "Look it up.", tools=[look_up])
stubborn = Agent("stubborn", "Try.", retry=Retry(attempts=4, base_s=0.1))


async def chain(n: int) -> str:
    last = "start"
    for index in range(n):
        last = await book(f"{last[-1]}{index}")
    return last


async def fan(n: int) -> list[str]:
    return await gather(book(str(index)) for index in range(n))


async def team(brief: str) -> str:
    plan = await planner(brief)
    texts = await gather(writer(part) for part in plan.parts)
    return await writer(*texts)


async def nested(_: int) -> list[Any]:
    async def branch(name: str) -> list[Any]:
        return [await measure(name), *await gather(book(f"{name}1"), book(f"{name}2"))]

    return await gather(branch("a"), branch("b"), limit=1)


async def isolated(_: int) -> list[str]:
    results = await gather([book("a"), fail("b"), book("c")], policy="isolate")
    return [await book(str(result)) for result in results]


async def handled(_: int) -> str:
    try:
        await gather([book("slow"), fail("no")])
    except ValueError as error:
        return await book(f"after {error}")
    return "unreachable"


async def tools(_: int) -> str:
    return await librarian("what is a gate?")


async def retried(_: int) -> str:
    return await stubborn("go")


async def pauses(_: int) -> str:
    await sleep(3600)
    text = await in_a_thread("woken")
    await sleep(3600)
    return text


async def own_tasks(_: int) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(own_task(name)) for name in ("x", "yy", "x")]
    return [await book("".join(task.result())) for task in tasks]


async def own_task(name: str) -> str:
    await wait()
    return await book(name) + str(await measure(name))


async def named_tasks(_: int) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(joins(name), name=name) for name in ("x", "y", "z")]
    return [task.result() for task in tasks]


async def joins(name: str) -> list[str]:
    await wait()
    return await gather(book(f"{name}1"), book(f"{name}2"))


async def cleaning(_: int) -> str:
    try:
        await book("first")
        return await fail("last")
    finally:
        await gather(book("clean"), book("up"))
        await book("done")


async def failing(_: int) -> str:
    await book("first")
    return await fail("last")


board = Blackboard()
noted = Agent("noted", "Note it.", writes={"notes": "append"})
reader = Agent("reader", "Go on.", shares="brief", reads={"notes": "summary", "plan": "last"})
chatty = Agent("chatty", "Talk.", reads="notes", writes={"notes": "append"})
listener = Agent("listener", "Listen.", reads="@listener", writes="@replies")
guarded = Agent("guarded", "Do it.", tools=[charge], guard=allow)


async def on_the_board(_: int) -> list[Any]:
    async def branch(index: int) -> None:
        await wait()
        board.append("items", index)
        board.maximum("most", index)
        board.union("names", {f"n{index}"})
        board.merge("by_name", {f"n{index}": await measure("x" * index)})
        board.write("same", "echo")

    board.write("plan", {"parts": [1, 2], "title": "old"})
    position = board.diff().position
    await gather(branch(index) for index in range(4))
    board.update("plan", lambda plan: {**plan, "title": "new"})
    try:
        board.write("plan", "lost", if_version=1)
    except ConflictError as error:
        conflict = error.writer
    changed = board.diff(position)
    board.remove("same")
    booked = await book(str(board.read("most")))
    return [board.snapshot(), changed.values, changed.added, conflict, booked, board.keys("n*")]


async def conflicting(_: int) -> Any:
    async def branch(index: int) -> None:
        await asyncio.sleep(index)
        board.write("one", index)

    try:
        await gather(branch(index) for index in range(2))
    except ConflictError as error:
        return [error.key, await book("conflict"), board.read("one")]


async def mailing(_: int) -> list[Any]:
    async def worker() -> list[Any]:
        box: Mailbox[int] = Mailbox("worker", topics=["news"], capacity=1)
        heard: list[Any] = []
        for _ in range(4):
            message = await box.receive()
            await wait()
            heard.append(await book(f"got {message.body} from {message.sender}"))
        await box.reply(await box.receive(), "done")
        return heard

    async def boss() -> Any:
        box: Mailbox[Any] = Mailbox("boss")
        for index in range(3):
            await wait()
            await box.send("worker", index)
        await box.send("news", "extra")
        with suppress(CallTimeoutError):
            await box.receive(timeout_s=1000)
        return await box.ask("worker", "ready?")

    await send("nobody", "lost")
    return await gather(worker(), boss())


async def watching(_: int) -> list[Any]:
    async def watcher() -> list[Any]:
        seen: list[Any] = []
        since = 0
        for _ in range(3):
            since = await board.wait_for("step/*", after=since)
            seen.append(await book(f"saw {len(seen)}"))
        return seen

    async def walker() -> None:
        for index in range(3):
            await wait()
            board.write(f"step/{index}", await measure("y" * index))

    return await gather(watcher(), walker())


async def remembering(_: int) -> list[Any]:
    memory = Memory()

    async def branch(index: int) -> list[Any]:
        await wait()
        key = memory.add(f"vault {index} holds {index * 7} coins", tags="vault")
        memory.add("a draft", f"draft/{index}")
        await wait()
        memory.add(f"draft {index}, the second", f"draft/{index}")
        if index == 2:
            memory.remove("draft/2")
        found = await memory.search("old coins", at=pin)
        return [key, await book(found[0].text), memory.get(f"draft/{index}")]

    memory.add("the old coins are lost", "old")
    pin = memory.position()
    memory.add("the old coins are found", "old")
    made = await gather(branch(index) for index in range(3))
    found = await memory.search("coins of vault 1, draft 2", 9)
    booked = await book(found[0].key)
    tagged = await memory.search("coins", tags="vault")
    return [made, [(item.key, item.value, item.score) for item in (*found, *tagged)], booked]


async def reading(_: int) -> list[Any]:
    board.write("brief", "The brief of all. " * 20)
    board.write("plan", {"a": 1})
    for index in range(6):
        await noted(f"Fact {index} is that the vault number {index} holds {index * 7} coins. " * 20)
    answers = [await reader("first?")]
    board.write("plan", {"a": 2})
    await noted("and one more")
    answers += [await reader("second?"), await chatty("hello"), await chatty("again")]
    await send("listener", "psst")
    answers += [await listener(), await listener("and now?")]
    return [*answers, [m.body for m in [await Mailbox("replies").receive()]]]


async def guarding(_: int) -> Any:
    try:
        return await guarded("a charge")
    except PermissionError as error:
        return await book(str(error))


async def piping(_: int) -> list[Any]:
    async def source() -> AsyncIterator[str]:
        for word in ("one", "two", "three"):
            await wait()
            yield word * await measure(word)

    async def read(chunks: AsyncIterator[str]) -> list[Any]:
        return [(each, await measure(each)) async for each in sentences(chunks)]

    drafted = await pipeline(source(), Stage(book, width=2), writer, Stage(read, streams=True))
    mixed = await pipeline(["x", "y"], book, fail, policy="isolate")
    return [drafted, [await book(str(each)) for each in mixed]]


PROGRAMS: dict[str, tuple[Callable[..., Coroutine[Any, Any, Any]], Any]] = {
    "chain": (chain, 4),
    "fan": (fan, 5),
    "team": (team, "a brief"),
    "nested": (nested, 0),
    "isolated": (isolated, 0),
    "handled": (handled, 0),
    "tools": (tools, 0),
    "retried": (retried, 0),
    "pauses": (pauses, 0),
    "own_tasks": (own_tasks, 0),
    "named_tasks": (named_tasks, 0),
    "cleaning": (cleaning, 0),
    "failing": (failing, 0),
    "on_the_board": (on_the_board, 0),
    "conflicting": (conflicting, 0),
    "mailing": (mailing, 0),
    "watching": (watching, 0),
    "remembering": (remembering, 0),
    "reading": (reading, 0),
    "guarding": (guarding, 0),
    "piping": (piping, 0),
}
ALL = pytest.mark.parametrize("name", PROGRAMS)


@dataclass
class Ending:
    """What a run came to, and what it did on the way."""

    value: Any
    store: MemoryStore
    engine: ScriptedEngine
    effects: list[str] = field(default_factory=list[str])

    @property
    def records(self) -> list[bytes]:
        return self.store.read("run")


def answer(request: Request) -> Any:
    if request.agent == "planner":
        return {"parts": ["one", "two", "three"]}
    if request.agent == "guarded":
        return [ToolCall(id="c1", name="charge", arguments='{"amount": 5}')]
    if request.agent == "librarian" and request.messages[-1].role == "user":
        asked = [ToolCall(id=f"c{i}", name="look_up", arguments=f'{{"word":"w{i}"}}') for i in "12"]
        return Reply(text="", tool_calls=tuple(asked))
    return f"{request.agent} on {request.messages[-1].content}"


def unreliable(attempts: int) -> Callable[[Request], Any]:
    """Answers the stubborn agent at its third attempt, of which ``attempts`` were before."""
    failures: list[Any] = [
        RateLimitedError("slow down", retry_after_s=2.0),
        EngineUnavailableError("gone"),
    ][: max(0, 2 - attempts)]
    return lambda r: failures.pop() if r.agent == "stubborn" and failures else answer(r)


def play(
    name: str,
    *,
    cut: Ending | None = None,
    position: int = 0,
    repeat_unknown: bool = False,
    seconds: Callable[[Request], float] = lambda _: 0.05,
    seed: int = 0,
) -> Ending:
    """Run a program on virtual time; or resume it from ``position`` records of ``cut``."""
    flow, given = PROGRAMS[name]
    effects.clear()
    pauses_of_steps.seed(seed)
    before = [] if cut is None else cut.records[:position]
    attempts = sum(b"AttemptFailed" in record for record in before)
    engine = ScriptedEngine(unreliable(attempts), prefill_s=0.01, decode_s=seconds, pieces=2)
    store = MemoryStore()
    if cut is not None:
        refill(store, cut.store, position)

    async def main() -> Any:
        runtime = Runtime(
            engine=engine, log=store, clock=VirtualClock(), repeat_unknown=repeat_unknown
        )
        try:
            if cut is None:
                return (await runtime.arun(flow, given, run_id="run")).output
            return (await runtime.aresume("run", flow)).output
        except (ValueError, UnknownOutcomeError, ExceptionGroup) as error:
            return error
        finally:
            assert len(asyncio.all_tasks()) == 1, "I8: no task is left behind"

    return Ending(run_virtual(main()), store, engine, list(effects))


def refill(store: MemoryStore, full: MemoryStore, position: int) -> None:
    """What a crash after ``position`` records leaves: those, and any blobs."""
    store.create("run", "flow")
    lease = store.acquire("run", "crashed")
    records = full.read("run")[:position]
    blobs = {digest: full.blob(digest) for digest in full._blobs}
    store.append(lease, 0, records, blobs)
    store.release(lease)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Exception):
        return type(one) is type(other) and str(one) == str(other)
    return one == other


@ALL
def test_i1_logs_are_well_formed(name: str) -> None:
    envelopes = [decode_envelope(record) for record in play(name).records]
    assert isinstance(envelopes[0].event, RunStarted)
    assert isinstance(envelopes[-1].event, RunEnded)
    started: set[str] = set()
    for index, envelope in enumerate(envelopes):
        assert envelope.seq == index
        assert all(cause < envelope.seq for cause in envelope.causes)
        assert envelope.causes or index == 0
        assert envelope.at >= envelopes[max(0, index - 1)].at
        if isinstance(envelope.event, CallStarted):
            assert envelope.scope not in started
            started.add(envelope.scope)
    assert all(call.ended is not None for call in index_calls(envelopes).by_scope.values())


@ALL
def test_i2_the_tax_report_closes(name: str) -> None:
    ending = play(name)

    async def report() -> Any:
        from accord.log.log import read_log

        return tax_of(read_log(ending.store, "run", VirtualClock()))

    tax = run_virtual(report())
    assert tax.closes
    parts = [getattr(tax.time, part) for part in tax.time.__struct_fields__ if part != "makespan"]
    assert sum(parts) == pytest.approx(tax.time.makespan, abs=1e-9)


@ALL
def test_i3_the_same_seed_gives_the_same_bytes(name: str) -> None:
    assert play(name).records == play(name).records


@ALL
def test_i4_i5_i6_cut_anywhere_a_run_ends_the_same(name: str) -> None:
    full = play(name)
    envelopes = [decode_envelope(record) for record in full.records]
    for position in range(1, len(envelopes)):
        calls = index_calls(envelopes[:position]).by_scope.values()
        begun = [call.started.preview for call in calls if may_have_happened(call)]
        again = play(name, cut=full, position=position)
        for what in begun:
            left = full.effects.count(what) - begun.count(what)
            assert again.effects.count(what) <= left, f"I6: cut after {position}, {what} repeated"
        finished = [
            call
            for call in calls
            if call.started.kind == "request" and isinstance(call.ended, CallFinished)
        ]
        asked = len(again.engine.requests)
        assert asked <= len(full.engine.requests) - len(finished), f"I5: cut after {position}"
        if any(map(is_unknown, calls)):
            assert unknowns_reported(again), f"I6: cut after {position}, nobody was told"
            again = play(name, cut=full, position=position, repeat_unknown=True)
        assert same(again.value, full.value), f"I4: cut after {position}"


def may_have_happened(call: Call) -> bool:
    """A step with effects that began, and did not fail: a failed one is to be made again."""
    return is_effect(call) and not isinstance(call.ended, CallFailed)


def is_unknown(call: Call) -> bool:
    """Begun, and neither its end nor a flow that went on without it is recorded."""
    return (
        is_effect(call)
        and not isinstance(call.ended, CallFinished | CallFailed)
        and not call.led_on
        and not call.cleaned_up
    )


def is_effect(call: Call) -> bool:
    return call.started.kind == "step" and not call.started.pure


def unknowns_reported(ending: Ending) -> int:
    events = [decode_envelope(record).event for record in ending.records]
    failures = [event for event in events if isinstance(event, CallFailed)]
    return sum(event.error.type.endswith("UnknownOutcomeError") for event in failures)


@ALL
def test_i7_completion_order_changes_nothing(name: str) -> None:
    expected = play(name)
    places = keys_by_place(expected)
    for seed in range(1, 11):
        random = Random(seed)
        shuffled = play(
            name, seconds=lambda _, random=random: random.uniform(0.001, 5.0), seed=seed
        )
        assert same(shuffled.value, expected.value)
        assert keys_by_place(shuffled) == places


def keys_by_place(ending: Ending) -> dict[str, str]:
    """Of all calls but those that wait for others: whether they have to is a matter of time."""
    waits = ("send", "receive", "watch")
    calls = index_calls(map(decode_envelope, ending.records))
    return {
        scope: call.started.key
        for scope, call in calls.by_scope.items()
        if call.started.kind not in waits
    }


@ALL
def test_i8_the_lease_is_given_back(name: str) -> None:
    store = play(name).store
    assert not store.runs()[0].held
    store.acquire("run", "next")
