"""What :class:`accord.engine.base.Engine` promises, whatever answers behind it.

Each check runs loops of its own, so call it from plain code. What an engine makes of a server that
misbehaves depends on the server, and is left to the engine's own tests.
"""
# ruff: noqa: D103  # the name of a check is the promise that it checks

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from accord.engine.base import Engine, Message, Reply, Request, TextDelta
from accord.testing.conformance.kit import added_to, same

MakeEngine = Callable[[], Engine]
EngineCheck = Callable[[MakeEngine], None]

REQUEST = Request(
    messages=(Message("user", "Say hello."),), agent="conformance", max_tokens=16, temperature=0.0
)

ENGINE_CHECKS: list[EngineCheck] = []
"""One check a promise."""

_check = added_to(ENGINE_CHECKS)


@_check
def its_name_says_which_engine_on_one_line(make: MakeEngine) -> None:
    name = make().name
    assert name.strip(), "the engine has no name"
    assert name.isprintable(), f"the name {name!r} cannot be printed on one line"


@_check
def starting_twice_is_free(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        first = await engine.start()
        same("the second start", await engine.start(), first)

    _in_a_loop(make(), use)


@_check
def text_comes_in_pieces_and_exactly_one_reply_last(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        for _ in range(2):
            *deltas, last = await _pieces(engine)
            assert isinstance(last, Reply), f"the last piece is no reply: {last!r}"
            strays = [piece for piece in deltas if not isinstance(piece, TextDelta)]
            same("pieces before the reply that are no text", strays, [])

    _in_a_loop(make(), use)


@_check
def the_reply_holds_the_text_of_its_pieces(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        pieces = await _pieces(engine)
        text = "".join([piece.text for piece in pieces if isinstance(piece, TextDelta)])
        same("the text of the reply", _reply(pieces).text, text)

    _in_a_loop(make(), use)


@_check
def its_usage_adds_up(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        usage = _reply(await _pieces(engine)).usage
        if usage is None:
            return  # it has told none, which is not zero
        counts = (usage.cached, usage.cache_write, usage.reasoning, usage.completion)
        assert min(counts) >= 0, f"less than nothing: {usage}"
        assert usage.cached + usage.cache_write <= usage.prompt, (
            f"cached beyond the prompt: {usage}"
        )
        assert usage.reasoning <= usage.completion, f"reasoning beyond the completion: {usage}"

    _in_a_loop(make(), use)


@_check
def leaving_early_ends_cleanly(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        await engine.start()
        pieces = engine.generate(REQUEST)
        await anext(pieces)
        await _leave(pieces)
        same("what is left after leaving", [piece async for piece in pieces], [])
        _reply(await _pieces(engine))

    _in_a_loop(make(), use)


@_check
def requests_at_the_same_time_each_get_a_reply(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        await engine.start()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_pieces(engine)) for _ in range(3)]
        for task in tasks:
            _reply(task.result())

    _in_a_loop(make(), use)


@_check
def a_closed_engine_works_again_in_another_loop(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        await engine.start()
        _reply(await _pieces(engine))

    engine = make()
    for _ in range(2):
        _in_a_loop(engine, use)


@_check
def closing_needs_no_start_and_may_be_done_again(make: MakeEngine) -> None:
    async def use(engine: Engine) -> None:
        await engine.close()
        await engine.start()
        await engine.close()

    _in_a_loop(make(), use)


def _in_a_loop(engine: Engine, use: Callable[[Engine], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        try:
            await use(engine)
        finally:
            await engine.close()

    asyncio.run(main())


async def _pieces(engine: Engine) -> list[TextDelta | Reply]:
    return [piece async for piece in engine.generate(REQUEST)]


def _reply(pieces: list[TextDelta | Reply]) -> Reply:
    replies = [piece for piece in pieces if isinstance(piece, Reply)]
    same("replies", len(replies), 1)
    return replies[0]


async def _leave(pieces: AsyncIterator[TextDelta | Reply]) -> None:
    close = getattr(pieces, "aclose", None)
    assert close is not None, "the iterator has no aclose: nobody can leave it early"
    await close()
