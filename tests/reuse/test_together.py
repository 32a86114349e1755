"""Of equal requests at the same time, one is made."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from accord import Agent, Retry, Runtime, gather, run, speculate
from accord.engine.base import Capabilities, Request, Usage, identity_of
from accord.engine.client import ClientEngine
from accord.engine.local import LocalEngine
from accord.engine.openai import OpenAIEngine
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of
from accord.errors import CallTimeoutError, DeadlinePassedError, RejectedError
from accord.reuse.results import ResultCache, racing
from accord.sync.hedge import Hedge
from accord.testing.scripted import ScriptedEngine
from tests.reuse.cached import (
    an_agent,
    counting,
    echo,
    on_virtual,
    reply,
    result_of,
    saved,
    seconds,
    writer,
    writer_of,
)


def test_of_a_thousand_equal_requests_at_once_one_reaches_the_engine() -> None:
    """CAC-12."""

    async def flow() -> list[str]:
        return await gather(writer("x") for _ in range(1000))

    engine = counting()
    result = result_of(flow, engine)
    assert result.output == ["1"] * 1000
    assert len(engine.requests) == 1
    assert len(saved(result)) == 999
    assert seconds(result) == 1
    assert result.usage == Usage(prompt=3, completion=1)
    assert result.tax.closes


def test_if_the_one_that_is_made_fails_the_others_are_made_at_once() -> None:
    engine = ScriptedEngine(
        [RejectedError("no"), *map(str, range(9))], prefill_s=1, capabilities=Capabilities()
    )

    async def flow() -> list[Any]:
        return await gather((writer("x") for _ in range(10)), policy="isolate")

    result = result_of(flow, engine)
    assert isinstance(result.output[0], RejectedError)
    assert result.output[1:] == [str(each) for each in range(9)]
    assert seconds(result) == 2


def test_if_its_reply_is_not_to_be_kept_the_others_are_made_at_once() -> None:
    cut = reply(finish_reason="length")
    engine = ScriptedEngine([cut, *map(str, range(9))], prefill_s=1)

    async def flow() -> list[Any]:
        return await gather(writer("x") for _ in range(10))

    result = result_of(flow, engine)
    assert result.output == ["told", *(str(each) for each in range(9))]
    assert seconds(result) == 2


def test_if_it_is_cancelled_the_next_is_made_and_nobody_is_lost() -> None:
    hasty = Agent("hasty", "Write.", seed=1, timeout_s=0.5)

    async def flow() -> list[Any]:
        agents = [hasty, *[writer] * 9]
        return await gather((agent("x") for agent in agents), policy="isolate")

    engine = counting()
    result = result_of(flow, engine)
    assert isinstance(result.output[0], CallTimeoutError)
    assert result.output[1:] == ["2"] * 9
    assert (len(engine.requests), seconds(result)) == (2, 1.5)
    assert result.tax.closes


def test_who_is_more_urgent_and_waits_lifts_what_it_waits_for() -> None:
    one_at_a_time = Capabilities(concurrency=1)
    engine = ScriptedEngine(echo, decode_s=1, capabilities=one_at_a_time)
    urgent, some = writer_of(priority=9), writer_of(priority=5)

    async def later(agent: Agent[str], text: str) -> str:
        await asyncio.sleep(0.5)
        return await agent(text)

    async def flow() -> None:
        await gather(
            writer("last"), some("a"), some("b"), writer("shared"), later(urgent, "shared")
        )

    result_of(flow, engine)
    order = [request.messages[-1].content for request in engine.requests]
    assert order == ["a", "shared", "b", "last"]


def test_who_only_reads_waits_for_who_is_at_it() -> None:
    async def flow() -> list[str]:
        return await gather(writer("x"), writer_of(cache="read")("x"), writer_of(cache="off")("x"))

    assert result_of(flow, counting()).output == ["1", "1", "2"]


def test_runs_of_one_runtime_wait_for_each_other() -> None:
    async def main(runtime: Runtime) -> list[str]:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(runtime.arun(writer, "x")) for _ in range(5)]
        return [each.result().output for each in runs]

    engine = counting()
    assert on_virtual(main, engine) == ["1"] * 5
    assert len(engine.requests) == 1


def test_a_run_that_waits_for_one_that_has_no_room_makes_way_for_it() -> None:
    """They do not wait for each other for ever."""
    engine = ScriptedEngine(
        echo, decode_s=1, capabilities=Capabilities(kv_tokens=300, prefix_cache=True)
    )
    large = "word " * 250

    async def first() -> str:
        await writer(large)
        await asyncio.sleep(0.5)
        return await writer("shared " * 50)

    async def second() -> str:
        return await writer("shared " * 50)

    async def main(runtime: Runtime) -> float:
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.arun(first))
            await asyncio.sleep(0.1)
            group.create_task(runtime.arun(second))
        return asyncio.get_running_loop().time()

    assert on_virtual(main, engine) == 2.5


def test_runs_on_loops_of_their_own_share_what_is_kept() -> None:
    engine, shared, found = ScriptedEngine(echo), ResultCache(), list[str]()

    async def flow() -> str:
        return "".join(await gather(writer(str(each % 10)) for each in range(50)))

    def work() -> None:
        found.append(run(flow, engine=engine, log="memory", cache_store=shared).output)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == ["0123456789" * 5] * 4
    assert 10 <= len(engine.requests) <= 40


def test_a_hedge_does_not_wait_for_its_first_attempt() -> None:
    takes_s = iter([60.0, 1.0])
    engine = ScriptedEngine(echo, decode_s=lambda _: next(takes_s))

    async def flow() -> str:
        return await Hedge(after_s=2)(writer, "x")

    assert seconds(result_of(flow, engine)) == 3


def test_a_second_attempt_that_races_the_first_is_made() -> None:
    async def flow() -> list[str]:
        async def race() -> str:
            await asyncio.sleep(0.25)
            with racing():
                return await writer("x")

        return await gather(writer("x"), race())

    assert result_of(flow, counting()).output == ["1", "2"]


@pytest.mark.parametrize(
    "options", [{"deadline_s": 3}, {"retry": Retry(first_token_s=3)}], ids=["deadline", "first"]
)
def test_who_waits_for_an_equal_call_waits_no_longer_than_for_an_engine(options: Any) -> None:
    """The other hangs: it makes its own request in time."""
    takes_s = iter([1000.0, 1.0, 1.0])
    engine = ScriptedEngine(echo, decode_s=lambda _: next(takes_s))
    hasty = Agent("hasty", "Write.", seed=1, **options)

    async def second() -> str:
        with suppress(DeadlinePassedError):  # or it is told, then
            await hasty("x")
        return "answered, or told"

    async def flow() -> list[str]:
        return await gather([writer("x"), second()], until="any")

    result = result_of(flow, engine)
    assert result.output == ["answered, or told"]
    assert seconds(result) <= 4


def test_engines_of_one_name_that_answer_otherwise_share_nothing() -> None:
    """CAC-5: by identity, not by name."""
    one = an_agent(seed=1, engine=ScriptedEngine("one"))
    two = an_agent(seed=1, engine=ScriptedEngine("two"))

    async def flow() -> list[str]:
        return [await one("q"), await two("q"), await one("q")]

    assert result_of(flow, ScriptedEngine()).output == ["one", "two", "one"]


def test_the_identity_of_an_engine_is_all_that_its_answers_depend_on(tmp_path: Path) -> None:
    url = "http://localhost/v1"
    ways = [
        OpenAIEngine(url),
        OpenAIEngine(f"{url}?deployment=a"),
        OpenAIEngine(f"{url}?deployment=b"),
        OpenAIEngine(url, headers={"x-route": "a"}),
        ClientEngine(object()),
        ClientEngine(object()),
        SimEngine(profile_of("8b")),
        SimEngine(profile_of("8b"), seed=2),
        SimEngine(profile_of("8b"), replies=lambda *_: 1),
        SimEngine(profile_of("8b"), replies=lambda *_: 1),
    ]
    assert len({identity_of(engine) for engine in ways}) == len(ways)
    assert identity_of(OpenAIEngine(url, api_key="a")) == identity_of(OpenAIEngine(url))
    assert identity_of(SimEngine(profile_of("8b"))) == identity_of(SimEngine(profile_of("8b")))
    weights = tmp_path / "m.gguf"
    weights.write_bytes(b"GGUF one")
    before = identity_of(LocalEngine(weights))
    weights.write_bytes(b"GGUF another")
    assert identity_of(LocalEngine(weights)) != before


def test_who_waits_for_what_runs_ahead_does_not_wait_for_all_others() -> None:
    """It is as urgent as whoever waits for it."""
    order: list[str] = []

    def script(request: Request) -> str:
        order.append(f"{request.agent} {request.messages[-1].content}")
        return "ok"

    router = Agent("router")
    engine = ScriptedEngine(
        script,
        decode_s=lambda r: 10.0 if r.agent == "router" else 1.0,
        capabilities=Capabilities(model="m", concurrency=2),
    )

    async def then(_: str) -> str:
        return await writer("shared")

    async def later(seconds: float, text: str) -> str:
        await asyncio.sleep(seconds)
        return await writer(text)

    async def flow(waits: bool) -> list[Any]:
        others = [later(0.2, f"other {number}") for number in range(4)]
        others += [later(0.5, "shared")] if waits else []
        guessed = speculate(router, "?", then=then, guess=lambda _: "ok")
        return await gather([writer("first"), guessed, *others])

    for waits, place in ((False, 6), (True, 2)):
        order.clear()
        result_of(flow, engine, waits, cache="on" if waits else "off")
        assert order.index("writer shared") == place
