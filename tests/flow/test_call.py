"""Calls: steps in threads and on the loop, timeouts, cancellation, errors from the log."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from accord import Runtime, gather, idempotency_key, run, sleep, step
from accord.clock import VirtualClock, run_virtual
from accord.errors import (
    CallTimeoutError,
    FlowChangedError,
    UnserializableError,
    UsageError,
)
from accord.log.codec import decode_envelope
from accord.log.events import CallCancelled, CallFailed, CallFinished
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine


def play(flow: Any, *inputs: Any, store: MemoryStore | None = None, resume: Any = None) -> Any:
    """Run on virtual time; with ``resume``, go on with run ``run`` of ``store`` by that flow."""

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log=store or MemoryStore(), clock=VirtualClock())
        if resume is not None:
            return await runtime.aresume("run", resume)
        return await runtime.arun(flow, *inputs, run_id="run")

    return run_virtual(main())


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@step
def read_variable() -> str:
    return variable.get()


@step
def blocked(seconds: float) -> str:
    threading.Event().wait(seconds)
    return "done"


@step(timeout_s=0.05)
def overslept() -> None:
    released.wait(10)


released = threading.Event()


@step
async def echo(value: Any) -> Any:
    return value


def test_a_sync_step_sees_the_context_of_its_caller() -> None:
    async def flow() -> str:
        variable.set("from the flow")
        return await read_variable()

    assert play(flow).output == "from the flow"


def test_sync_steps_run_side_by_side() -> None:
    """SYN-12: two steps that block do not wait for each other."""
    meeting = threading.Barrier(2, timeout=5)

    @step
    def meet(_: int) -> int:
        return meeting.wait()

    async def flow() -> list[int]:
        return await gather(meet(index) for index in range(2))

    assert sorted(run(flow, engine=ScriptedEngine(), log="memory").output) == [0, 1]


def test_a_thread_that_outlives_its_timeout_is_reported() -> None:
    """CAN-1: the caller goes on at once, and the thread that is left behind is counted."""

    async def flow() -> str:
        try:
            await overslept()
        except CallTimeoutError as error:
            return str(error)
        return "no timeout"

    released.clear()
    result = run(flow, engine=ScriptedEngine(), log="memory")
    released.set()
    assert "step overslept took longer than its timeout_s of 0.05" in result.output
    assert result.leaked_threads == 1
    failed = [e.event for e in result.log.envelopes if isinstance(e.event, CallFailed)]
    assert [event.thread_left_running for event in failed] == [True]


def test_cancelling_a_run_cancels_what_it_does() -> None:
    """CAN-3: nothing happens after the cancel, and the log says what was cancelled."""
    seen: list[str] = []

    @step
    async def slow() -> None:
        seen.append("began")
        await asyncio.sleep(100)
        seen.append("went on")

    async def main() -> Runtime:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(flow, run_id="run"))
            await asyncio.sleep(1)
            task.cancel()
        assert task.cancelled()
        await asyncio.sleep(1000)
        return runtime

    async def flow() -> None:
        await slow()

    runtime = run_virtual(main())
    assert seen == ["began"]
    assert b"CallCancelled" in runtime.store.read("run")[2]
    assert b"RunInterrupted" in runtime.store.read("run")[3]


def test_a_cancel_during_the_clean_up_still_ends_as_cancelled() -> None:
    """CKP-13: children end, the cancellation goes on, no task is destroyed pending."""
    cleaned: list[str] = []

    async def branch(name: str) -> None:
        try:
            await sleep(100)
        finally:
            await asyncio.sleep(1)
            cleaned.append(name)

    async def flow() -> None:
        await gather(branch("a"), branch("b"))

    async def main() -> None:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(flow, run_id="run"))
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.sleep(0.5)
            task.cancel()
        assert task.cancelled()
        assert len(asyncio.all_tasks()) == 1
        assert not runtime.store.runs()[0].held

    run_virtual(main())
    assert set(cleaned) <= {"a", "b"}


@pytest.mark.parametrize("policy", ["fail_fast", "isolate"])
def test_no_tool_is_left_behind_by_the_failure_of_another(policy: Any) -> None:
    """CAN-2: what has come is kept, what has not is cancelled before its effect, nothing warns."""
    effects: list[str] = []

    @step(pure=True)
    async def ok() -> str:
        await asyncio.sleep(0.05)
        return "ok"

    @step
    async def raises() -> None:
        await asyncio.sleep(0.06)
        raise ValueError("no")

    @step
    async def slow() -> None:
        await asyncio.sleep(0.9)
        effects.append("slow")

    async def flow() -> Any:
        return await gather(ok(), raises(), slow(), policy=policy, deadline_s=0.5)

    store = MemoryStore()
    if policy == "fail_fast":
        with pytest.raises(ValueError, match="no"):
            play(flow, store=store)
    else:
        assert [str(result) for result in play(flow, store=store).output] == ["ok", "no"]
    assert not effects
    events = [decode_envelope(record).event for record in store.read(store.runs()[0].run)]
    outputs = [bytes(each.output) for each in events if isinstance(each, CallFinished)]
    assert b'"ok"' in outputs  # kept in the log, under either policy
    assert len([each for each in events if isinstance(each, CallCancelled)]) == 1


@pytest.mark.parametrize("policy", ["fail_fast", "isolate"])
def test_siblings_of_a_failure_follow_the_named_policy(policy: Any) -> None:
    """CAN-4: `fail_fast` cancels them, `isolate` keeps their results."""
    effects: list[str] = []

    @step
    async def after(seconds: float) -> str:
        await asyncio.sleep(seconds)
        effects.append(f"{seconds}")
        return "ok"

    @step
    async def raises() -> None:
        await asyncio.sleep(0.010)
        raise ValueError("no")

    async def flow() -> Any:
        return await gather(after(0.005), raises(), after(1.0), policy=policy)

    store = MemoryStore()
    if policy == "fail_fast":
        with pytest.raises(ValueError, match="no"):
            play(flow, store=store)
        assert effects == ["0.005"]
    else:
        results = play(flow, store=store).output
        assert [str(result) for result in results] == ["ok", "no", "ok"]
        assert effects == ["0.005", "1.0"]


def test_gather_says_what_it_takes() -> None:
    async def flow() -> None:
        await gather([], policy="best")  # pyright: ignore[reportCallIssue, reportArgumentType]

    with pytest.raises(UsageError, match="'fail_fast' and 'isolate', not 'best'"):
        play(flow)


def test_gather_holds_its_limit() -> None:
    running = 0
    peak = 0

    async def branch() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    async def flow() -> None:
        await gather((branch() for _ in range(10)), limit=3)

    play(flow)
    assert peak == 3


def test_a_failed_step_that_the_flow_handled_raises_the_same_error_again() -> None:
    class OddError(Exception):
        def __init__(self, code: int, *, extra: str = "x") -> None:
            super().__init__(f"code {code}{extra}")

    @step
    async def key_error() -> None:
        raise KeyError("k")

    @step
    async def odd() -> None:
        raise OddError(3)

    seen: list[Any] = []

    async def flow() -> str:
        for call in (key_error, odd):
            try:
                await call()
            except Exception as error:
                seen.append(error)
        return await echo("went on")

    async def cut_short() -> None:
        await flow()
        raise RuntimeError("stop here")

    store = MemoryStore()
    with pytest.raises(RuntimeError):
        play(cut_short, store=store)
    play(None, store=store, resume=flow)
    first, second = seen[:2], seen[2:]
    assert isinstance(second[0], KeyError)
    assert str(second[0]) == str(first[0])
    assert type(second[1]) is Exception, "the nearest class that can be found again"
    assert str(second[1]) == "code 3x"


def test_a_value_that_the_log_cannot_hold_names_the_step_and_the_path() -> None:
    @step
    async def give() -> Any:
        return {"rows": [1, object()]}

    async def flow() -> None:
        await give()

    with pytest.raises(UnserializableError, match=r"the output of step give\['rows'\]\[1\]"):
        play(flow)


def test_a_step_outside_of_a_run_says_how_to_start_one() -> None:
    with pytest.raises(UsageError, match=r"accord\.run"):
        asyncio.run(echo(1))


def test_a_changed_flow_is_shown_on_both_sides() -> None:
    async def before() -> None:
        await echo("same")
        await echo("old")
        raise RuntimeError("stop")

    async def after() -> None:
        await echo("same")
        await echo("new")

    store = MemoryStore()
    with pytest.raises(RuntimeError):
        play(before, store=store)
    records = store.read("run")
    with pytest.raises(FlowChangedError) as caught:
        play(None, store=store, resume=after)
    assert caught.value.recorded == "step echo(old)"
    assert caught.value.now == "step echo(new)"
    assert store.read("run")[: len(records)] == records, "nothing is lost"


def test_a_changed_flow_cannot_be_swallowed_by_the_flow() -> None:
    async def before() -> None:
        await echo("old")
        raise RuntimeError("stop")

    async def after() -> str:
        try:
            await echo("new")
        except Exception:
            return "swallowed"
        return "went on"

    store = MemoryStore()
    with pytest.raises(RuntimeError):
        play(before, store=store)
    with pytest.raises(FlowChangedError):
        play(None, store=store, resume=after)


def test_a_flow_that_makes_fewer_calls_has_changed() -> None:
    async def before() -> None:
        await echo(1)
        await echo(2)
        raise RuntimeError("stop")

    async def after() -> None:
        await echo(1)

    store = MemoryStore()
    with pytest.raises(RuntimeError):
        play(before, store=store)
    with pytest.raises(FlowChangedError, match="no call: the code ended before"):
        play(None, store=store, resume=after)


def test_an_idempotency_key_is_the_same_when_the_call_is_made_again() -> None:
    keys: list[str] = []

    @step(pure=True)
    async def pay() -> None:
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise ConnectionError("gone")

    async def flow() -> None:
        await echo(1)
        await pay()

    store = MemoryStore()
    with pytest.raises(ConnectionError):
        play(flow, store=store)
    play(None, store=store, resume=flow)
    assert keys[0] == keys[1]

    async def two_runs() -> set[str]:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        first = await runtime.arun(asks_once)
        await asyncio.sleep(1)
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())
        return {first.output, (await runtime.arun(asks_once)).output}

    assert len(run_virtual(two_runs())) == 2, "runs of one name in two logs have other keys"
    with pytest.raises(UsageError, match="inside a step"):
        play(outside)


@step
async def once() -> str:
    return idempotency_key()


async def asks_once() -> str:
    return await once()


async def outside() -> str:
    return idempotency_key()


def test_an_effect_before_a_failure_is_made_once() -> None:
    """CKP-16: resuming replays what finished, whatever the flow had in its hands."""
    effects: list[str] = []

    @step
    async def effect() -> str:
        effects.append("done")
        return "done"

    async def flow() -> str:
        found = [await effect()]
        if not ready:
            raise RuntimeError("not yet")
        return found[0]

    ready: list[int] = []
    store = MemoryStore()
    with pytest.raises(RuntimeError):
        play(flow, store=store)
    ready.append(1)
    assert play(None, store=store, resume=flow).output == "done"
    assert effects == ["done"]


def test_a_flow_may_call_flows_and_every_call_has_one_place() -> None:
    """CKP-14: history is a chain; no two calls share a place."""

    async def inner(name: str) -> Any:
        return [await echo(name), await echo(name)]

    async def flow() -> Any:
        return [await inner("a"), await inner("a"), *await gather(inner("b"), inner("b"))]

    result = play(flow)
    places = [e.scope for e in result.log.envelopes if "CallStarted" in repr(e.event)[:11]]
    assert len(places) == len(set(places)) == 8


def test_a_pause_is_not_waited_for_twice() -> None:
    async def flow() -> float:
        await sleep(100)
        return asyncio.get_running_loop().time()

    async def crash() -> None:
        async with asyncio.timeout(60):
            await sleep(100)

    store = MemoryStore()
    with pytest.raises(TimeoutError):
        play(crash, store=store)
    assert play(None, store=store, resume=flow).output == pytest.approx(40)


def test_a_cancelled_call_is_recorded_with_its_thread() -> None:
    gate = threading.Event()

    @step
    def wait() -> None:
        gate.wait(10)

    async def flow() -> None:
        async with asyncio.timeout(0.05):
            await wait()

    with pytest.raises(TimeoutError):
        run(flow, engine=ScriptedEngine(), log=(store := MemoryStore()))
    gate.set()
    runtime = Runtime(engine=ScriptedEngine(), log=store)
    from accord.log.log import read_log

    log = read_log(store, store.runs()[0].run, runtime.clock)
    cancelled = [e.event for e in log.envelopes if isinstance(e.event, CallCancelled)]
    assert [event.thread_left_running for event in cancelled] == [True]


def test_a_payload_of_megabytes_is_stored_by_reference() -> None:
    """CKP-18."""
    big = b"x" * 4_000_000

    @step
    async def fetch() -> bytes:
        return big

    async def flow() -> int:
        return len(await fetch())

    store = MemoryStore()
    assert play(flow, store=store).output == len(big)
    assert max(map(len, store.read("run"))) < 1000


def test_the_same_keys_come_of_a_cold_process() -> None:
    """CKP-19: what is cached in memory changes nothing that is recorded."""
    text = "a long text " * 500

    async def flow() -> None:
        for _ in range(3):
            await echo(text)

    first, second = MemoryStore(), MemoryStore()
    play(flow, store=first)
    play(flow, store=second)
    assert first.read("run") == second.read("run")
