"""Pipelines: how long they take, what holds them back, and that a replay goes the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent, Blackboard, Retry, Runtime, gather, sleep, step, tool
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.comm.interrupt import interrupt
from accord.engine.base import Request, TextDelta
from accord.errors import (
    EngineUnavailableError,
    FlowChangedError,
    RunSuspendedError,
    StreamError,
    UnknownOutcomeError,
    UnserializableError,
    UsageError,
)
from accord.log.codec import decode_envelope
from accord.log.events import AttemptFailed, CallFinished, CallStarted, Envelope, Joined
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.runtime import Result
from accord.sync.lanes import pipeline_statistics
from accord.sync.pipeline import Stage, pipeline
from accord.sync.stream import lines, sentences
from accord.testing.scripted import ScriptedEngine

Flow = Callable[..., Coroutine[Any, Any, Any]]
made: list[str] = []
pace: dict[str, float] = {}
"""Seconds that a step takes, by its name, its argument, or both; 1 by default."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    made.clear()
    pace.clear()


def a_step(name: str, *, fails: Iterable[int] = (), pure: bool = True) -> Any:
    async def work(item: int) -> int:
        made.append(f"{name}{item}")
        await asyncio.sleep(pace.get(f"{name}{item}", pace.get(name, 1.0)))
        if item in fails:
            raise ValueError(f"{name}{item}")
        return item

    return step(name=name, pure=pure)(work)


@tool(pure=True)
def look() -> str:
    """Look."""
    return "x"


a, b, c, d = (a_step(name) for name in "abcd")


def result_of(flow: Flow, *, engine: Any = None) -> Result[Any]:
    async def main() -> Result[Any]:
        async with Runtime(
            engine=engine or ScriptedEngine(), log="memory", clock=VirtualClock()
        ) as runtime:
            result = await runtime.arun(flow)
        assert len(asyncio.all_tasks()) == 1, "no task is left behind"
        return result

    result = run_virtual(main())
    assert result.tax.closes
    return result


def a_flow(*stages: Any, items: Any = 16, **options: Any) -> Flow:
    async def flow() -> Any:
        source = range(items) if isinstance(items, int) else items()
        return await pipeline(source, *stages, **options)

    return flow


def seconds(result: Result[Any]) -> float:
    return result.log.envelopes[-1].at / NANOSECONDS


def starts(envelopes: Iterable[Envelope]) -> dict[str, float]:
    """When each call below the pipeline at ``1`` began, by its place there."""
    calls = index_calls(envelopes).by_scope
    return {
        path.removeprefix("1/"): call.start.at / NANOSECONDS
        for path, call in calls.items()
        if path.count("/") == 3
    }


# --------------------------------------------------------------------------------- how long


def test_overlapped_it_takes_a_stage_for_each_item_and_the_way_of_one():
    result = result_of(a_flow(a, b, c, d))
    assert result.output == list(range(16))
    assert seconds(result) == 16 + 4 - 1
    assert sum(s.end_ns - s.start_ns for s in result.tax.critical_path) == 19 * NANOSECONDS
    assert result.tax.time.tools == pytest.approx(19)


def test_strict_a_stage_begins_when_the_one_before_has_done_all():
    result = result_of(a_flow(a, b, c, d, overlapped=False))
    assert result.output == list(range(16))
    assert seconds(result) == 16 * 4
    assert result.tax.time.tools == pytest.approx(64)
    began = starts(result.log.envelopes)
    assert min(at for place, at in began.items() if place[0] == "2") == 16


def test_a_stage_works_on_as_many_items_at_a_time_as_it_is_wide():
    result = result_of(a_flow(Stage(a, width=4), b))
    assert seconds(result) == 17
    pace["b"] = 0.25
    result = result_of(a_flow(Stage(a, width=4), b))
    assert seconds(result) == 4 + 4 * 0.25
    assert result_of(a_flow(Stage(a, width=16), Stage(b, width=3), items=7)).output == [*range(7)]


def test_results_keep_the_order_of_the_items():
    random = Random(1)
    for index in range(16):
        pace[f"a{index}"] = random.uniform(0.1, 3)
    result = result_of(a_flow(Stage(a, width=5), Stage(b, width=2), buffer=2))
    assert result.output == list(range(16))


def test_functions_of_any_kind_are_stages():
    writer = Agent("writer", "Write.")

    async def twice(text: str) -> list[str]:
        return await gather(writer(text), writer(text + "!"))

    result = result_of(
        a_flow(str, lambda text: writer(text, more=True), len, a, str, twice, items=3)
    )
    assert result.output == [["ok", "ok"]] * 3


def test_no_items_are_no_work():
    assert result_of(a_flow(a, b, items=0)).output == []


def test_a_slow_stage_holds_back_those_before_it():
    pace["c"] = 10
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for index in range(16):
            drawn.append(index)
            yield index

    async def flow() -> Any:
        loop = asyncio.get_running_loop()
        at = loop.call_later(25, lambda: made.append("now"))
        try:
            return await pipeline(source(), a, b, c)
        finally:
            at.cancel()

    result = result_of(flow)
    before = made[: made.index("now")]
    # c is at its third; b may be two ahead of it (one done, one in the buffer), and a of b
    assert [sum(name[0] == stage for name in before) for stage in "abc"] == [7, 5, 3]
    assert seconds(result) == 162
    a_, b_, c_ = pipeline_statistics(result.log)[0].stages[1:]
    assert (c_.items, c_.busy_s, c_.starved_s, c_.held_s) == (16, 160, 2, 0)
    assert b_.busy_s == 16
    assert b_.held_s > 90
    assert a_.held_s > 60
    assert result.tax.time.tools == pytest.approx(162)


def test_a_buffer_evens_out():
    pace.update({f"b{i}": 3 for i in range(8)})
    pace.update({f"a{i + 8}": 3 for i in range(8)})
    narrow, wide = (seconds(result_of(a_flow(a, b, buffer=size))) for size in (1, 8))
    assert wide == 8 + 8 * 3 + 1
    assert narrow > wide + 10


def test_an_endless_source_is_drawn_as_there_is_room():
    def source() -> Iterator[int]:
        index = 0
        while True:
            yield index
            index += 1

    with pytest.raises(ValueError, match="a5"):
        result_of(a_flow(a_step("a", fails=[5]), b, items=source))


# --------------------------------------------------------------------------------- sources


@step(pure=True)
async def fetch(page: int) -> list[int]:
    await asyncio.sleep(0.5)
    return [page * 2, page * 2 + 1] if page < 3 else []


async def pages() -> AsyncIterator[int]:
    for page in range(4):
        for item in await fetch(page):
            yield item


def test_an_async_source_has_places_of_its_own():
    result = result_of(a_flow(a, b, items=pages))
    assert result.output == list(range(6))
    assert seconds(result) == 0.5 + 6 + 1
    began = starts(result.log.envelopes)
    assert [place for place in began if place[0] == "0"] == ["0/0/0", "0/2/0", "0/4/0", "0/6/0"]


def test_a_source_that_is_left_cleans_up():
    async def source() -> AsyncIterator[int]:
        try:
            for item in range(9):
                yield item
        finally:
            await d(99)

    with pytest.raises(ValueError, match="a2"):
        result_of(a_flow(a_step("a", fails=[2]), items=source))
    assert made[-1] == "d99"


@pytest.mark.parametrize("policy", ["fail_fast", "isolate"])
def test_a_source_that_fails_ends_the_pipeline(policy: Any):
    async def source() -> AsyncIterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        result_of(a_flow(a, items=source, policy=policy))


# --------------------------------------------------------------------------------- failures


def test_isolated_a_failed_item_skips_the_stages_that_are_left():
    result = result_of(a_flow(a, a_step("b", fails=[1, 3]), c, items=5, policy="isolate"))
    assert [str(each) for each in result.output] == ["0", "b1", "2", "b3", "4"]
    assert isinstance(result.output[1], ValueError)
    assert "c1" not in made
    assert "in stage 'b' of a pipeline, item 1" in result.output[1].__notes__


def test_fail_fast_cancels_what_runs_and_raises_the_failure():
    async def flow() -> Any:
        try:
            return await pipeline(range(9), Stage(a, width=2), a_step("b", fails=[1]), c)
        except ValueError as error:
            return str(error)

    result = result_of(flow)
    assert result.output == "b1"
    assert seconds(result) == 3
    calls = index_calls(result.log.envelopes).by_scope.values()
    assert all(call.ended is not None for call in calls)
    [joined] = [e for e in result.log.envelopes if isinstance(e.event, Joined)]
    assert joined.at == 3 * NANOSECONDS


def test_of_two_failures_at_once_the_first_stands_and_the_other_is_cancelled():
    async def flow() -> Any:
        with pytest.raises(ValueError, match="b0"):
            await pipeline(range(9), a_step("a", fails=[1]), a_step("b", fails=[0]))

    result = result_of(flow)
    failed = [e for e in result.log.envelopes if type(e.event).__name__ == "CallFailed"]
    assert len(failed) == 1


def test_cancelled_it_leaves_nothing_behind():
    async def main() -> Any:
        async with Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock()) as runtime:
            for after in (0, 0.5, 3, 7.5):
                flow = a_flow(Stage(a, width=2), b, c, items=pages)
                task = asyncio.get_running_loop().create_task(runtime.arun(flow))
                await asyncio.sleep(after)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


def test_a_question_holds_up_one_item_only():
    async def ask(item: int) -> Any:
        return item if item != 1 else await interrupt("sure?")

    async def main() -> Any:
        async with Runtime(
            engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock()
        ) as runtime:
            flow = a_flow(a, ask, b, items=3)
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.arun(flow, run_id="r")
            assert made == ["a0", "a1", "b0", "a2", "b2"]
            [question] = caught.value.questions
            made.clear()
            result = await runtime.aresume("r", flow, answers={question.id: 7})
            return result.output

    assert run_virtual(main()) == [0, 7, 2]
    assert made == ["b7"]


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (a_flow(), "at least one stage"),
        (a_flow(a, buffer=0), "buffer of at least 1 item, not 0"),
        (a_flow(a, policy="hope"), "knows the policies"),
        (a_flow(7), "a stage of a pipeline is an agent"),
        (a_flow(a, items=lambda: 7.5), "takes an iterable"),
        (a_flow(Stage(sentences, streams=True)), "it is the first"),
        (a_flow(a, Stage(sentences, streams=True)), "'a': that is no agent"),
        (
            a_flow(Agent("w", output=int), Stage(sentences, streams=True)),
            "'w': its answer is a int",
        ),
        (
            a_flow(Agent("w", tools=[look]), Stage(sentences, streams=True)),
            "'w': it has tools",
        ),
        (a_flow(Agent("w", guard=len), Stage(sentences, streams=True)), "'w': its guard"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(flow: Flow, message: str):
    with pytest.raises(UsageError, match=message):
        result_of(flow)
    assert not made


def test_bad_stages_are_refused():
    with pytest.raises(UsageError, match="'a' works on at least 1 item at a time, not 0"):
        Stage(a, width=0)
    with pytest.raises(UsageError, match="'a' is one recorded call"):
        Stage(a, streams=True)
    with pytest.raises(UsageError, match="'w' is one recorded call"):
        Stage(Agent("w"), streams=True)


def test_an_item_that_cannot_be_recorded_fails_alone():
    result = result_of(a_flow(a, items=lambda: [1, object(), 2], policy="isolate"))
    assert result.output[::2] == [1, 2]
    assert isinstance(result.output[1], UnserializableError)


# ------------------------------------------------------------------------------- who knows of whom


def test_what_stages_write_is_read_in_the_order_of_the_program():
    board = Blackboard()

    async def note(item: int) -> int:
        board.append("seen", await a(item))
        return item

    async def last(item: int) -> int:
        board.write("last", await b(item))
        board.append("seen", -item)
        return item

    async def flow() -> Any:
        await pipeline(range(4), note, last)
        return board.read("seen"), board.read("last")

    for slow in ("a", "b"):
        pace.clear()
        pace[slow] = 3
        assert result_of(flow).output == ([0, 1, 2, 3, 0, -1, -2, -3], 3)


def test_an_agent_at_a_stage_remembers_the_items_before():
    writer = Agent("writer", "Write.", sees="diff")
    engine = ScriptedEngine(lambda r: f"said {r.messages[-1].content}", decode_s=1.0)
    result_of(a_flow(str, writer, a_step("x"), items=3), engine=engine)
    assert "said 1" in str(engine.requests[-1].messages)
    assert len(engine.requests[-1].messages) == 6


def test_a_pipeline_may_stand_in_a_stage_of_another():
    board = Blackboard()

    async def inner(item: int) -> int:
        async def put(part: int) -> int:
            board.write(f"last of {item}", await b(part))
            return part

        return sum(await pipeline(range(item + 1), a, put))

    async def outer(item: int) -> int:
        board.write(f"last of {item}", -1)  # it knows of what inner wrote for this item
        return item

    store = MemoryStore()
    expected = run_in(store, a_flow(inner, outer, items=3))
    assert expected == [0, 1, 3]
    for seed in range(5):
        random = Random(seed)
        pace.update({f"{s}{i}": random.uniform(0.01, 5) for s in "ab" for i in range(3)})
        again = MemoryStore()
        assert run_in(again, a_flow(inner, outer, items=3)) == expected
        assert keys_of(again) == keys_of(store)


# --------------------------------------------------------------------------------- replay


def read_of(store: MemoryStore) -> list[Envelope]:
    return [decode_envelope(record) for record in store.read("r")]


def run_in(store: MemoryStore, flow: Flow, *, engine: Any = None, resume: bool = False) -> Any:
    """What a run of ``flow`` comes to: its output, or its failure."""

    async def main() -> Any:
        runtime = Runtime(engine=engine or ScriptedEngine(), log=store, clock=VirtualClock())
        try:
            made_run = runtime.aresume("r", flow) if resume else runtime.arun(flow, run_id="r")
            result = await made_run
        except (ValueError, StreamError, FlowChangedError) as error:
            return f"{type(error).__name__}: {error}"
        else:
            assert result.tax.closes
            return result.output
        finally:
            assert len(asyncio.all_tasks()) == 1

    return run_virtual(main())


def cut(full: MemoryStore, position: int) -> MemoryStore:
    """What a crash after so many records leaves."""
    store = MemoryStore()
    store.create("r", "flow")
    lease = store.acquire("r", "crashed")
    blobs = {digest: full.blob(digest) for digest in full._blobs}
    store.append(lease, 0, full.read("r")[:position], blobs)
    store.release(lease)
    return store


def shown(value: Any) -> str:
    return repr([str(each) for each in value] if isinstance(value, list) else value)


def keys_of(store: MemoryStore) -> dict[str, str]:
    calls = index_calls(read_of(store)).by_scope.items()
    return {path: call.started.key for path, call in calls}


async def handled() -> Any:
    try:
        return await pipeline(pages(), Stage(a, width=2), a_step("b", fails=[2]), c)
    except ValueError as error:
        return [str(error), await d(5)]


PROGRAMS: dict[str, Flow] = {
    "overlapped": a_flow(a, b, c, items=5),
    "strict": a_flow(a, b, items=4, overlapped=False),
    "wide": a_flow(Stage(a, width=3), Stage(b, width=2), c, items=6, buffer=2),
    "async source": a_flow(a, b, items=pages),
    "isolated": a_flow(a, a_step("b", fails=[1, 3]), c, items=5, policy="isolate"),
    "failing": a_flow(a, a_step("b", fails=[1]), items=4),
    "handled": handled,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_anywhere_it_ends_the_same(name: str):
    """The signature test: resume from every position."""
    flow, full = PROGRAMS[name], MemoryStore()
    pace.update(a1=3, a2=0.5, b0=2, c=0.7)
    expected = run_in(full, flow)
    for position in range(1, len(full.read("r"))):
        store = cut(full, position)
        finished = [
            call
            for call in index_calls(read_of(store)).by_scope.values()
            if isinstance(call.ended, CallFinished) and call.started.kind == "step"
        ]
        made.clear()
        again = run_in(store, flow, resume=True)
        assert shown(again) == shown(expected), f"cut after {position}"
        starts_of = [e for e in read_of(store)[position:] if isinstance(e.event, CallStarted)]
        places = {each.scope for each in starts_of}
        assert places.isdisjoint(call.scope for call in finished)


@pytest.mark.parametrize("name", ["overlapped", "strict", "wide", "async source", "isolated"])
def test_a_finished_one_answers_from_the_log(name: str):
    store = MemoryStore()
    stop = [True]

    async def flow() -> Any:
        got = await PROGRAMS[name]()
        await sleep(1)
        if stop[0]:
            raise ValueError("stop")
        return [str(each) for each in got]

    pace.update(a1=3, a2=0.5, b0=2, c=0.7)
    run_in(store, flow)
    before = len(store.read("r"))
    stop[0] = False
    made.clear()
    assert len(run_in(store, flow, resume=True)) >= 4
    assert not made
    after = [e.event for e in read_of(store)[before:]]
    assert [type(each).__name__ for each in after] == ["RunResumed", "RunFinished"]


@pytest.mark.parametrize("name", ["overlapped", "wide", "strict", "async source", "isolated"])
def test_whichever_stage_is_faster_results_and_keys_are_the_same(name: str):
    flow, first = PROGRAMS[name], MemoryStore()
    expected = run_in(first, flow)
    for seed in range(8):
        random = Random(seed)
        pace.update({f"{s}{i}": random.uniform(0.01, 5) for s in "abc" for i in range(6)})
        store = MemoryStore()
        assert shown(run_in(store, flow)) == shown(expected)
        assert keys_of(store) == keys_of(first)


def test_the_same_run_gives_the_same_bytes():
    stores = [MemoryStore(), MemoryStore()]
    for store in stores:
        run_in(store, PROGRAMS["wide"])
    assert stores[0].read("r") == stores[1].read("r")


def test_effects_at_a_stage_happen_once():
    flow = a_flow(a, a_step("charge", pure=False), items=3)
    full = MemoryStore()
    run_in(full, flow)
    for position in range(1, len(full.read("r"))):
        store = cut(full, position)
        begun = sum(
            call.started.has_effects for call in index_calls(read_of(store)).by_scope.values()
        )
        made.clear()
        with suppress(UnknownOutcomeError):
            run_in(store, flow, resume=True)
        assert sum(name.startswith("charge") for name in made) <= 3 - begun


# --------------------------------------------------------------------------------- streams

TEXT = "One is here. Two is there! Three? Four, at last."
writer = Agent("writer", "Write.", retry=Retry(base_s=0.1))


@step(pure=True)
async def check(sentence: str) -> str:
    made.append(sentence)
    await asyncio.sleep(pace.get("check", 0.1))
    return sentence.upper()


async def checked(chunks: AsyncIterator[str]) -> list[str]:
    return [await check(sentence) async for sentence in sentences(chunks)]


EXPECTED = ["ONE IS HERE.", "TWO IS THERE!", "THREE?", "FOUR, AT LAST."]
streaming = a_flow(str, writer, Stage(checked, streams=True), items=2)


def slow_writer(text: str | Callable[[Request], Any] = TEXT, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(text, prefill_s=1, decode_s=10, pieces=20, **options)


def test_a_reader_begins_before_the_writer_has_ended():
    result = result_of(streaming, engine=slow_writer())
    assert result.output == [EXPECTED] * 2
    assert seconds(result) == pytest.approx(18 + 0.1)
    began = starts(result.log.envelopes)
    assert began["3/0/0"] < 5
    assert began["3/0/3"] == pytest.approx(9)
    whole = a_flow(str, writer, checked_whole, items=2)
    assert seconds(result_of(whole, engine=slow_writer())) == pytest.approx(18 + 0.4)


async def checked_whole(text: str) -> list[str]:
    async def once() -> AsyncIterator[str]:
        yield text

    return await checked(once())


def test_the_wait_for_a_text_is_its_writers_time():
    """The critical path goes through what is read: sentences come at 3.5, 5.5, 7 and 9 s."""
    one = a_flow(str, writer, Stage(checked, streams=True), items=1)
    pace["check"] = 1.8
    result = result_of(one, engine=slow_writer())
    time = result.tax.time
    assert [s.name for s in result.tax.critical_path[:3]] == ["writer", "check", "writer"]
    assert (time.thinking, time.tools, time.makespan) == pytest.approx((3.7, 4 * 1.8, 10.9))
    pace["check"] = 0.5
    time = result_of(one, engine=slow_writer()).tax.time
    assert (time.thinking, time.tools, time.makespan) == pytest.approx((9.0, 0.5, 9.5))


def test_whole_replies_and_strict_pipelines_give_a_reader_the_same():
    whole = result_of(a_flow(str, writer, checked_whole, items=2), engine=slow_writer())
    strict = a_flow(str, writer, Stage(checked, streams=True), items=2, overlapped=False)
    assert whole.output == result_of(strict, engine=slow_writer()).output == [EXPECTED] * 2


def test_one_place_at_the_engine_is_enough_for_writer_and_reader():
    """No writer waits for its reader, so they cannot wait for each other."""
    from accord.engine.base import Capabilities

    editor = Agent("editor", "Edit.")

    async def edited(chunks: AsyncIterator[str]) -> list[str]:
        return [await editor(sentence) async for sentence in sentences(chunks)]

    engine = slow_writer(
        lambda r: TEXT if r.agent == "writer" else "edited",
        capabilities=Capabilities(concurrency=1),
    )
    result = result_of(a_flow(str, writer, Stage(edited, streams=True), items=3), engine=engine)
    assert result.output == [["edited"] * 4] * 3


def test_a_reader_may_leave_off():
    async def first(chunks: AsyncIterator[str]) -> str:
        async for sentence in sentences(chunks):
            return await check(sentence)
        return ""

    result = result_of(
        a_flow(str, writer, Stage(first, streams=True), a_step("x"), items=2), engine=slow_writer()
    )
    assert result.output == ["ONE IS HERE."] * 2


class Breaks(ScriptedEngine):
    """Breaks off after some pieces, once for each text but the last."""

    def __init__(self, *texts: str, after: int = 10) -> None:
        super().__init__(list(texts), decode_s=10, pieces=20)
        self._left = len(texts) - 1
        self._after = after

    async def generate(self, request: Request) -> AsyncIterator[Any]:
        breaks, self._left = self._left > 0, self._left - 1
        count = 0
        async for piece in super().generate(request):
            if breaks and count == self._after:
                raise EngineUnavailableError("broken off")
            count += isinstance(piece, TextDelta)
            yield piece


one_text = a_flow(str, writer, Stage(checked, streams=True), items=1)


def test_a_retry_tells_nothing_twice():
    result = result_of(one_text, engine=Breaks(TEXT, TEXT, TEXT))
    assert result.output == [EXPECTED]
    assert made == ["One is here.", "Two is there!", "Three?", "Four, at last."]
    assert sum(isinstance(e.event, AttemptFailed) for e in result.log.envelopes) == 2


def test_a_retry_that_goes_otherwise_fails_the_reader():
    other = TEXT.replace("Two", "Zwei")
    with pytest.raises(StreamError, match="differs from what had been passed on, after 13 char"):
        result_of(one_text, engine=Breaks(TEXT, other))
    assert made == ["One is here.", "Two is there!"]


def test_what_was_not_yet_told_may_be_otherwise():
    result = result_of(one_text, engine=Breaks(TEXT, "Quite other.", after=0))
    assert result.output == [["QUITE OTHER."]]


def test_a_run_that_failed_for_a_text_begun_anew_can_be_resumed():
    store = MemoryStore()
    other = "One is here. Zwei. Three?"
    assert "StreamError" in run_in(store, one_text, engine=Breaks(TEXT, other, after=12))
    assert "Two is there!" in made or "One is here." in made
    assert run_in(store, one_text, engine=ScriptedEngine(other), resume=True) == [
        ["ONE IS HERE.", "ZWEI.", "THREE?"]
    ]


def test_cut_anywhere_a_stream_ends_the_same():
    full = MemoryStore()
    pace["check"] = 2.0
    assert run_in(full, streaming, engine=slow_writer()) == [EXPECTED] * 2
    for position in range(1, len(full.read("r"))):
        store = cut(full, position)
        assert run_in(store, streaming, engine=slow_writer(), resume=True) == [EXPECTED] * 2
        began = [e.scope for e in read_of(store) if isinstance(e.event, CallStarted)]
        assert len(began) == len(set(began)), "what is recorded is not made again"


def test_cut_anywhere_and_written_otherwise_a_stream_still_ends():
    """A text of which only the beginning is known binds nobody, as long as nothing came of it."""
    full = MemoryStore()
    run_in(full, one_text, engine=slow_writer())
    other = "One is here. Zwei."
    for position in range(1, len(full.read("r"))):
        store = cut(full, position)
        got = run_in(store, one_text, engine=slow_writer(other), resume=True)
        assert got in ([["ONE IS HERE.", "ZWEI."]], [EXPECTED])
        again = cut(store, len(store.read("r")) - 1)
        assert run_in(again, one_text, engine=ScriptedEngine("never"), resume=True) == got


def test_an_effect_of_a_text_that_was_never_finished_is_not_forgotten():
    @step
    async def charge(sentence: str) -> str:
        made.append(sentence)
        return sentence

    async def charged(chunks: AsyncIterator[str]) -> list[str]:
        return [await charge(sentence) async for sentence in sentences(chunks)]

    flow = a_flow(str, writer, Stage(charged, streams=True), items=1)
    full = MemoryStore()
    run_in(full, flow, engine=slow_writer())
    ends = [e.seq for e in read_of(full) if isinstance(e.event, CallFinished)]
    store = cut(full, ends[0] + 1)
    got = run_in(store, flow, engine=slow_writer("Another text."), resume=True)
    assert "FlowChangedError" in got


def test_however_fast_writer_and_reader_are_places_are_the_same():
    stores: list[MemoryStore] = []
    for check_s, decode_s, pieces in ((0, 0, 1), (0.1, 10, 20), (9, 1, 7), (2, 30, 48)):
        pace["check"] = check_s
        stores.append(MemoryStore())
        engine = ScriptedEngine(TEXT, decode_s=decode_s, pieces=pieces)
        assert run_in(stores[-1], streaming, engine=engine) == [EXPECTED] * 2
    assert all(keys_of(store) == keys_of(stores[0]) for store in stores)


def test_isolated_a_writer_that_fails_fails_its_item():
    def answer(request: Request) -> Any:
        return ValueError("no") if request.messages[-1].content == "1" else TEXT

    flow = a_flow(str, writer, Stage(checked, streams=True), items=3, policy="isolate")
    result = result_of(flow, engine=slow_writer(answer))
    assert result.output[::2] == [EXPECTED] * 2
    assert isinstance(result.output[1], ValueError)


def test_cancelled_writer_and_reader_end():
    async def main() -> None:
        async with Runtime(engine=slow_writer(), log="memory", clock=VirtualClock()) as runtime:
            for after in (0, 0.5, 3, 12):
                task = asyncio.get_running_loop().create_task(runtime.arun(streaming))
                await asyncio.sleep(after)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(asyncio.all_tasks()) == 1

    run_virtual(main())


# --------------------------------------------------------------------------------- cutting


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(each, len(text)) for each in cuts} | {0, len(text)})
    return [text[one:other] for one, other in pairwise(ends)]


async def _all(cutter: Any, pieces: list[str]) -> list[str]:
    async def chunks() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    return [each async for each in cutter(chunks())]


@given(st.text('ab.!? \n"』。！', max_size=40), st.lists(st.integers(0, 40), max_size=8))
def test_where_pieces_were_cut_changes_nothing(text: str, cuts: list[int]):
    for cutter in (sentences, lines):
        whole = asyncio.run(_all(cutter, [text]))
        assert asyncio.run(_all(cutter, pieces_of(text, cuts))) == whole
    assert "".join("".join(asyncio.run(_all(sentences, [text]))).split()) == "".join(text.split())
    assert "\n".join(asyncio.run(_all(lines, [text]))) == text.removesuffix("\n")


def test_sentences_and_lines():
    text = 'He said "no." And left!\n\nVersion 1.5 of it…\nこれは本。それは「犬。」です'
    assert asyncio.run(_all(sentences, [text])) == [
        'He said "no."',
        "And left!",
        "Version 1.5 of it…",
        "これは本。",
        "それは「犬。」",
        "です",
    ]
    assert asyncio.run(_all(lines, ["a\n\nb\n"])) == ["a", "", "b"]
