"""The local engine: a real model, really run, and its own counters as the judge."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from accord.engine.base import Message, Reply, Request, TextDelta
from accord.engine.local import LocalEngine
from accord.errors import ContextTooLongError, EngineUnavailableError

needs_llama = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason='xllamacpp is not installed: pip install "accord[local]"',
)
pytestmark = [pytest.mark.local, needs_llama]

WINDOW = 1024


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    local = LocalEngine(slots=2, window=WINDOW)
    try:
        run(local, local.start())
    except EngineUnavailableError as error:
        pytest.skip(str(error))
    yield local
    asyncio.run(local.close())


def ask(text: str, **options: Any) -> Request:
    options = {"max_tokens": 12, "temperature": 0.0, **options}
    return Request(messages=(Message("user", text),), **options)


def run(engine: LocalEngine, main: Any) -> Any:
    """One loop of its own, and no connection left in it."""

    async def inside() -> Any:
        try:
            return await main
        finally:
            if engine._http is not None:
                await engine._http.close()

    return asyncio.run(inside())


async def generated(engine: LocalEngine, request: Request) -> tuple[str, Reply]:
    *deltas, reply = [piece async for piece in engine.generate(request)]
    assert isinstance(reply, Reply)
    return "".join(d.text for d in deltas if isinstance(d, TextDelta)), reply


def test_it_says_what_it_can_do(engine: LocalEngine) -> None:
    async def main() -> None:
        found = await engine.start()
        assert (found.concurrency, found.window, found.prefix_cache) == (2, WINDOW, True)
        assert found.kv_tokens == 2 * WINDOW
        assert found.prices is not None
        assert found.tokenizer is not None
        assert await found.tokenizer("hello world") == 2

    run(engine, main())


def test_usage_is_what_the_server_counted(engine: LocalEngine) -> None:
    async def main() -> None:
        before = await engine.counters()
        replies = [await generated(engine, ask(f"Say {word}.")) for word in ("red", "blue", "red")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(generated(engine, ask(f"Count to {n}."))) for n in (5, 6)]
        usages = [reply.usage for _, reply in replies + [task.result() for task in tasks]]
        after = await engine.counters()
        for name in ("prompt", "cached", "completion"):
            told = sum(getattr(usage, name) for usage in usages)
            assert told == after[name] - before[name], name
        for text, reply in replies:
            assert text == reply.text
            assert reply.timings is not None

    run(engine, main())


def test_the_second_call_reads_the_prefix_from_the_cache(engine: LocalEngine) -> None:
    async def main() -> None:
        brief = "The market for electric bicycles grows. " * 20
        _, cold = await generated(engine, ask(brief))
        _, warm = await generated(engine, ask(brief))
        assert cold.usage is not None
        assert warm.usage is not None
        assert warm.usage.prompt == cold.usage.prompt
        assert warm.usage.cached == warm.usage.prompt - 1
        assert cold.usage.cached < warm.usage.cached

    run(engine, main())


def test_the_reply_follows_a_schema(engine: LocalEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer"}},
        "required": ["colour", "count"],
    }
    text, _ = run(engine, generated(engine, ask("Describe a ball.", schema=schema, max_tokens=40)))
    assert set(json.loads(text)) == {"colour", "count"}


def test_a_prompt_beyond_the_window_is_told_apart(engine: LocalEngine) -> None:
    with pytest.raises(ContextTooLongError, match=str(WINDOW)):
        run(engine, generated(engine, ask("word " * 2 * WINDOW)))


def test_leaving_early_stops_the_generation(engine: LocalEngine) -> None:
    async def main() -> None:
        request = ask("Tell a very long story about a lighthouse.", max_tokens=900)
        async with aclosing(engine.generate(request)) as pieces:
            await anext(pieces)
        assert engine._http is not None
        async with asyncio.timeout(5):
            # The server has no event to wait for, only a page to ask for.
            while "requests_processing 0" not in await engine._http.get("/metrics"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    run(engine, main())


@pytest.mark.parametrize("end", ["close", "exit"])
def test_the_process_ends_whether_or_not_it_is_closed(end: str, engine: LocalEngine) -> None:
    code = f"""
import asyncio
from accord.engine.base import Message, Request
from accord.engine.local import LocalEngine

async def main():
    engine = LocalEngine(window=512)
    pieces = engine.generate(Request(messages=(Message("user", "Tell a story."),), max_tokens=400))
    await anext(pieces)
    if {end!r} == "close":
        await pieces.aclose()
        await engine.close()

asyncio.run(main())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, timeout=30, capture_output=True, check=False)
    assert done.returncode == 0
    # At exit, asyncio itself complains about the generator that nobody closed.
    assert end == "exit" or done.stderr == b""
