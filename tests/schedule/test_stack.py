"""The whole way from an agent to a server and back, with everything in between switched on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accord import Agent, Retry, Runtime
from accord.engine.openai import OpenAIEngine
from accord.errors import CallTimeoutError, UsageError
from accord.log.events import AttemptFailed
from accord.log.store.memory import MemoryStore
from accord.schedule.limits import Limit, Limits
from accord.testing.scripted import ScriptedEngine
from accord.testing.stub import Script, StubServer, hang, text


@pytest.mark.parametrize(
    "script",
    [hang(), text("one ", "two ", ending="hang"), text("slow", delay_s=30.0)],
    ids=["before the first token", "mid-stream", "late"],
)
def test_whoever_leaves_is_seen_leaving_by_the_server(script: Script) -> None:
    """CAN-6: runtime, scheduler, limits, budget, retries and client hide no disconnect for 1 s."""
    agent = Agent(
        "agent", "Go.", timeout_s=0.3, budget=10_000, priority=2, retry=Retry(first_token_s=60)
    )
    limits = Limits(agent=Limit(tokens=100_000), tenant=Limit(requests=100))

    async def flow() -> str:
        return await agent("now")

    async def main() -> None:
        async with StubServer() as stub:
            stub.script(script)
            engine = OpenAIEngine(stub.url)
            runtime = Runtime(engine=engine, log=MemoryStore(), policy="priority", limits=limits)
            with pytest.raises(CallTimeoutError):
                await runtime.arun(flow)
            await asyncio.to_thread(stub.wait_until, lambda s: bool(s.aborts), timeout_s=1)
            await engine.close()

    asyncio.run(main())


def test_an_attempt_that_does_not_begin_in_time_is_made_again_at_once() -> None:
    """And nobody else has to wait for that: it is no cool-down."""

    async def main() -> Any:
        async with StubServer() as stub:
            stub.script(hang(), text("here"))
            engine = OpenAIEngine(stub.url)
            runtime = Runtime(engine=engine, log=MemoryStore())
            result = await runtime.arun(Agent("agent", retry=Retry(first_token_s=0.2)), "go")
            await asyncio.to_thread(stub.wait_until, lambda s: bool(s.aborts), timeout_s=1)
            await engine.close()
            return result

    result = asyncio.run(main())
    assert result.output == "here"
    [failed] = [e.event for e in result.log.envelopes if isinstance(e.event, AttemptFailed)]
    assert failed.retry_in_s == 0.0
    assert "had not begun to answer 'agent' after first_token_s=0.2" in failed.error.message


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_no_time_for_a_first_token_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="some time for a first token"):
        Retry(first_token_s=seconds)


def test_a_reply_that_comes_whole_is_in_time() -> None:
    runtime = Runtime(engine=ScriptedEngine("whole", pieces=1), log=MemoryStore())
    agent = Agent("agent", retry=Retry(first_token_s=5))

    async def flow() -> str:
        return await agent("go")

    assert runtime.run(flow).output == "whole"
