"""An engine that answers from a script: no network, no model, the same every time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, cast

import msgspec

from accord.engine.base import (
    Capabilities,
    Reply,
    Request,
    TextDelta,
    Timings,
    ToolCall,
    Usage,
    identity_of_its_own,
)
from accord.tokens.count import estimate

Answer = str | Reply | BaseException | list[ToolCall] | dict[str, Any]
Script = Callable[[Request], Answer] | Iterable[Answer] | Answer


class ScriptedEngine:
    """Answers each request from ``script``.

    ``script`` is one answer for all, an iterable with one per request in the order in which
    they come, or a function of the request. An answer is a text, a :class:`Reply`, a dict
    (sent as JSON), a list of tool calls, or an exception to raise. Replies that bring no usage
    get one, counted by ``count``. A reply takes ``prefill_s`` and then ``decode_s`` on the loop's
    clock: 0 on any clock by default. ``requests`` keeps what was asked. What engines of one given
    ``name`` answer may serve for each other, in a result cache.
    """

    def __init__(
        self,
        script: Script = "ok",
        *,
        name: str = "",
        prefill_s: float | Callable[[Request], float] = 0.0,
        decode_s: float | Callable[[Request], float] = 0.0,
        pieces: int = 1,
        count: Callable[[str], int] = estimate,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.name = name or "scripted"
        self.identity = name or identity_of_its_own(self.name)
        self.requests: list[Request] = []
        self._answer = _answerer(script)
        self._prefill_s = prefill_s
        self._decode_s = decode_s
        self._pieces = pieces
        self._count = count
        self._capabilities = capabilities or Capabilities(model=self.name)

    async def start(self) -> Capabilities:
        return self._capabilities

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        self.requests.append(request)
        answer = self._answer(request)
        prefill_s, decode_s = _of(self._prefill_s, request), _of(self._decode_s, request)
        await _pass(prefill_s)
        if isinstance(answer, BaseException):
            raise answer
        reply = self._reply(request, answer, prefill_s, decode_s)
        size = max(1, -(-len(reply.text) // self._pieces))
        for start in range(0, len(reply.text), size):
            await _pass(decode_s / self._pieces)
            yield TextDelta(reply.text[start : start + size])
        yield reply

    async def close(self) -> None:
        """Nothing to let go of."""

    def _reply(self, request: Request, answer: Any, prefill_s: float, decode_s: float) -> Reply:
        if isinstance(answer, dict):
            answer = msgspec.json.encode(answer).decode()
        if isinstance(answer, str):
            answer = Reply(text=answer)
        elif isinstance(answer, list):
            asked = tuple(cast("list[ToolCall]", answer))
            answer = Reply(text="", tool_calls=asked, finish_reason="tool_calls")
        if answer.usage is not None:
            return answer
        usage = Usage(
            prompt=sum(self._count(message.content) for message in request.messages),
            completion=self._count(answer.text),
        )
        timings = Timings(prefill_s=prefill_s, decode_s=decode_s)
        return msgspec.structs.replace(answer, usage=usage, timings=answer.timings or timings)


def _answerer(script: Any) -> Callable[[Request], Any]:
    if callable(script) and not isinstance(script, BaseException):
        return script
    if isinstance(script, str | Reply | BaseException | dict):
        return cast("Callable[[Request], Any]", lambda _: script)  # pyright: ignore[reportUnknownLambdaType]
    answers = iter(script)

    def following(request: Request) -> Any:
        try:
            return next(answers)
        except StopIteration:
            msg = f"the script has no answer left for {request.agent!r}: {request.messages[-1]}"
            raise AssertionError(msg) from None

    return following


def _of(seconds: float | Callable[[Request], float], request: Request) -> float:
    return seconds(request) if callable(seconds) else seconds


async def _pass(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
