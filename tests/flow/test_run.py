"""Running, streaming and resuming, as a user does it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import accord
from accord import Agent, Runtime, gather, run, step, stream
from accord.clock import VirtualClock, run_virtual
from accord.errors import (
    EngineUnavailableError,
    RunLockedError,
    RunNotFoundError,
    UsageError,
)
from accord.flow.execution import Token
from accord.log.events import CallFinished, Envelope, RunFinished, RunInterrupted, RunStarted
from accord.log.store.memory import MemoryStore
from accord.log.store.sqlite import SqliteStore
from accord.testing.scripted import ScriptedEngine

writer = Agent("writer", "Write.")


@step
async def echo(value: Any) -> Any:
    return value


async def hello(name: str) -> str:
    return await writer(f"Greet {name}.")


def test_a_run_gives_output_usage_tax_and_id(tmp_path: Path) -> None:
    result = run(hello, "Ada", engine=ScriptedEngine("Hello, Ada."), log=tmp_path / "log.db")
    assert result.output == "Hello, Ada."
    assert result.run_id == "hello-1"
    assert result.usage.prompt > 0
    assert result.usage.completion > 0
    assert result.tax.closes
    assert result.tax.tokens.total == result.usage.prompt + result.usage.completion


def test_an_agent_is_a_flow() -> None:
    assert run(writer, "hi", engine=ScriptedEngine("ho"), log="memory").output == "ho"


def test_run_works_where_a_loop_runs_already() -> None:
    """A notebook's cell."""

    async def cell() -> str:
        return run(hello, "Ada", engine=ScriptedEngine("Hi."), log="memory").output

    assert asyncio.run(cell()) == "Hi."


def test_one_runtime_serves_many_runs_at_once() -> None:
    """OBS-4, USG-8: one agent, one engine, fifty runs; each counts its own."""

    async def main() -> list[Any]:
        async with Runtime(engine=ScriptedEngine("x"), log="memory") as runtime:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(runtime.arun(hello, f"n{i}")) for i in range(50)]
            return [task.result() for task in tasks]

    results = asyncio.run(main())
    assert {result.tax.agents["writer"].calls for result in results} == {1}
    assert len({result.run_id for result in results}) == 50


def test_a_stream_gives_events_and_tokens_in_order() -> None:
    """STR-15: the stream ends with the usage that the run reports."""

    async def main() -> list[Any]:
        engine = ScriptedEngine("Hello, Ada.", pieces=4, decode_s=1.0)
        items = stream(hello, "Ada", engine=engine, log="memory", clock=VirtualClock())
        return [item async for item in items]

    items = run_virtual(main())
    envelopes = [item for item in items if isinstance(item, Envelope)]
    assert [envelope.seq for envelope in envelopes] == list(range(len(envelopes)))
    assert isinstance(envelopes[0].event, RunStarted)
    assert items[-1] is envelopes[-1]
    assert isinstance(envelopes[-1].event, RunFinished)
    text = "".join(item.text for item in items if isinstance(item, Token))
    assert text == "Hello, Ada."
    usages = [e.event.usage for e in envelopes if isinstance(e.event, CallFinished)]
    assert any(usage is not None and usage.completion > 0 for usage in usages)


def test_streamed_and_not_a_run_is_the_same() -> None:
    """STR-8."""

    async def streamed(store: MemoryStore) -> None:
        runtime = Runtime(engine=engine(), log=store, clock=VirtualClock())
        async for _ in runtime.stream(hello, "Ada", run_id="run"):
            pass

    async def plain(store: MemoryStore) -> None:
        runtime = Runtime(engine=engine(), log=store, clock=VirtualClock())
        await runtime.arun(hello, "Ada", run_id="run")

    def engine() -> ScriptedEngine:
        return ScriptedEngine("Hello.", pieces=3, decode_s=1.0)

    one, other = MemoryStore(), MemoryStore()
    run_virtual(streamed(one))
    run_virtual(plain(other))
    assert one.read("run") == other.read("run")


def test_a_stream_raises_what_the_flow_raises_after_its_last_event() -> None:
    async def flow() -> None:
        await echo(1)
        raise ValueError("broken")

    async def main() -> list[Any]:
        items: list[Any] = []

        async def consume() -> None:
            async for item in stream(flow, engine=ScriptedEngine(), log="memory"):
                items.append(item)  # noqa: PERF401  # what came before the failure counts

        with pytest.raises(ValueError, match="broken"):
            await consume()
        return items

    assert "RunFailed" in repr(asyncio.run(main())[-1])


def test_leaving_a_stream_interrupts_the_run() -> None:
    store = MemoryStore()

    async def main() -> None:
        runtime = Runtime(
            engine=ScriptedEngine("x" * 100, pieces=50, decode_s=100.0),
            log=store,
            clock=VirtualClock(),
        )
        async with aclosing(runtime.stream(hello, "Ada", run_id="run")) as items:
            async for item in items:
                if isinstance(item, Token):
                    break
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main())
    assert b"RunInterrupted" in store.read("run")[-1]
    assert RunInterrupted.__name__ == "RunInterrupted"
    assert not store.runs()[0].held


def test_a_slow_consumer_slows_the_run_and_loses_nothing() -> None:
    async def flow() -> None:
        for index in range(1000):
            await echo(index)

    async def main() -> int:
        count = 0
        runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
        async for item in runtime.stream(flow):
            count += isinstance(item, Envelope)
            if count % 100 == 0:
                await asyncio.sleep(1)
        return count

    assert run_virtual(main()) == 2002


def test_a_finished_run_gives_its_output_again_without_the_engine() -> None:
    engine = ScriptedEngine(["once"])
    store = MemoryStore()
    run(hello, "Ada", engine=engine, log=store, run_id="r")
    assert accord.resume("r", hello, engine=engine, log=store).output == "once"
    assert len(engine.requests) == 1


def test_a_run_that_failed_goes_on_where_it_failed() -> None:
    """RTL-9: what was done before the failure is not done again."""
    engine = ScriptedEngine(["one", "two", *[EngineUnavailableError("down")] * 2, "three"])
    patient = Agent("patient", retry=accord.Retry(attempts=2, base_s=0.0))

    async def flow() -> list[str]:
        return [await patient(str(index)) for index in range(3)]

    store = MemoryStore()
    with pytest.raises(EngineUnavailableError):
        run(flow, engine=engine, log=store, run_id="r")
    result = accord.resume("r", flow, engine=engine, log=store)
    assert result.output == ["one", "two", "three"]
    assert [request.messages[-1].content for request in engine.requests] == list("01222")


def test_input_is_event_0_and_enough_to_run_again() -> None:
    """CKP-21."""
    engine = ScriptedEngine(lambda request: request.messages[-1].content)
    store = MemoryStore()
    first = run(hello, "Ada", engine=engine, log=store, run_id="r")
    started = first.log.envelopes[0].event
    assert isinstance(started, RunStarted)
    inputs = first.log.values.decode(started.input)
    second = run(hello, *inputs, engine=engine, log=store)
    assert second.output == first.output
    assert engine.requests[0] == engine.requests[1]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_keeps_a_finished_run(durability: Any, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    engine = ScriptedEngine("ok")
    run(hello, "Ada", engine=engine, log=path, run_id="r", durability=durability)
    again = accord.resume("r", hello, engine=engine, log=path)
    assert again.output == "ok"
    assert len(engine.requests) == 1


def test_a_run_under_way_cannot_be_resumed_by_another(tmp_path: Path) -> None:
    """SYN-16."""
    path = tmp_path / "log.db"

    async def flow() -> str:
        with pytest.raises(RunLockedError, match="'r' is being written by"):
            await Runtime(engine=ScriptedEngine(), log=path).aresume("r", flow)
        return "still mine"

    assert run(flow, engine=ScriptedEngine(), log=path, run_id="r").output == "still mine"


def test_a_stale_writer_is_fenced(tmp_path: Path) -> None:
    """SYN-16: whoever lost the lease must not write, and its work since is not in the log."""
    path = tmp_path / "log.db"
    late: list[float] = [0.0]

    async def flow() -> None:
        await echo("mine")
        late[0] = 1000.0
        other = SqliteStore(path, now_s=lambda: late[0])
        lease = other.acquire("r", "elsewhere/1/1")
        other.release(lease)
        other.close()
        await echo("no longer mine")

    store = SqliteStore(path, now_s=lambda: late[0])
    with pytest.raises(accord.AccordError, match="taken over by another process"):
        run(flow, engine=ScriptedEngine(), log=store, run_id="r")
    assert not any(b"no longer" in record for record in store.read("r"))
    store.close()


def test_bad_use_is_told_before_anything_runs() -> None:
    def not_async(_: str) -> None: ...

    engine = ScriptedEngine()
    store = MemoryStore()
    for flow, inputs, message in (
        (not_async, ("x",), "not async"),
        (hello, (), "missing a required argument: 'name'"),
        (hello, ("a", "b"), "too many positional arguments"),
        ("text", (), "not a function"),
    ):
        with pytest.raises(UsageError, match=message):
            run(flow, *inputs, engine=engine, log=store)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RunNotFoundError, match="no run 'nobody'"):
        accord.resume("nobody", hello, engine=engine, log=store)
    with pytest.raises(UsageError, match="durability is"):
        Runtime(durability="maybe")  # pyright: ignore[reportArgumentType]
    assert store.runs() == []


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    run(hello, "Ada", engine=engine, log=tmp_path / "l.db", run_id="mine")
    with pytest.raises(UsageError, match="'mine' exists"):
        run(hello, "Ada", engine=engine, log=tmp_path / "l.db", run_id="mine")


def test_shared_clients_count_each_call_once() -> None:
    """USG-8, USG-9: per agent and in all, three calls are three."""
    one, two = Agent("one"), Agent("two")

    async def flow() -> None:
        await gather(one("a"), two("b"))
        await one("c")

    tax = run(flow, engine=ScriptedEngine("ok"), log="memory").tax
    assert {name: agent.calls for name, agent in tax.agents.items()} == {"one": 2, "two": 1}
    assert sum(agent.prompt for agent in tax.agents.values()) == tax.tokens.prompt
    assert sum(agent.completion for agent in tax.agents.values()) == tax.tokens.completion
