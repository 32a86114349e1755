"""Answers for :class:`accord.testing.stub.StubServer`: what a server may send, good or bad.

Each is an :class:`Answer`, or a function from the request to one. The default, :func:`echo`, is
deterministic: the same request gets the same reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from accord.engine.shapes import items, mapping
from accord.engine.sim.reply import minimal

if TYPE_CHECKING:
    from accord.engine.base import ToolCall

_JSON = {"content-type": "application/json"}

Ending = Literal["close", "hang", "disconnect"]


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request as it came. ``at`` is on the monotonic clock, in seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to send: bytes, and pauses in seconds between them, then an ending.

    ``close`` ends the body properly, ``hang`` sends nothing more, ``disconnect`` resets the
    connection. ``head=False`` sends no status line or headers at all.
    """

    parts: Sequence[bytes | float] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    ending: Ending = "close"
    head: bool = True


Script = Answer | Callable[[Received], Answer]


def text(
    *pieces: str,
    usage: Mapping[str, Any] | None = None,
    finish_reason: str = "stop",
    delay_s: float = 0.0,
    calls: Sequence[ToolCall] = (),
    ending: Ending = "close",
) -> Script:
    """A reply in ``pieces``: a stream if the request asks for one, whole if not.

    With another ``ending`` than ``close`` a stream stops after the last piece, before its finish
    reason.
    """
    counted = {"prompt_tokens": 1, "completion_tokens": len(pieces)} if usage is None else usage
    whole_calls = [
        {
            "index": n,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for n, call in enumerate(calls)
    ]

    def answer(request: Received) -> Answer:
        if not request.body.get("stream"):
            message = {"role": "assistant", "content": "".join(pieces), "tool_calls": whole_calls}
            choice = {"index": 0, "message": message, "finish_reason": finish_reason}
            parts: list[bytes | float] = [
                delay_s * len(pieces),
                _json(_chunk([choice], usage=counted)),
            ]
            return Answer(parts=parts, headers=_JSON, ending=ending)
        chunks = [_chunk([{"index": 0, "delta": {"content": piece}}]) for piece in pieces]
        if calls:
            chunks.append(_chunk([{"index": 0, "delta": {"tool_calls": whole_calls}}]))
        if ending == "close":
            chunks.append(_chunk([{"index": 0, "delta": {}, "finish_reason": finish_reason}]))
            if request.body.get("stream_options"):
                chunks.append(_chunk([], usage=counted))
        return events(*chunks, delay_s=delay_s, done=ending == "close", ending=ending)

    return answer


def events(
    *payloads: Mapping[str, Any] | str,
    delay_s: float = 0.0,
    done: bool = True,
    ending: Ending = "close",
) -> Answer:
    """A stream of exactly these events, strings as they stand, then ``[DONE]`` if ``done``."""
    lines = [p if isinstance(p, str) else json.dumps(p, ensure_ascii=False) for p in payloads]
    parts: list[bytes | float] = []
    for line in [*lines, *(["[DONE]"] if done else [])]:
        parts += [delay_s, f"data: {line}\n\n".encode()]
    return Answer(parts=parts, headers={"content-type": "text/event-stream"}, ending=ending)


def error(
    status: int,
    message: str = "stub error",
    *,
    headers: Mapping[str, str] | None = None,
    **fields: object,
) -> Answer:
    """An error in OpenAI's shape; ``fields``, such as ``code``, go beside the message."""
    body = _json({"error": {"message": message, **fields}})
    return Answer(parts=[body], status=status, headers={**_JSON, **(headers or {})})


def raw(
    *parts: bytes | float,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    ending: Ending = "close",
) -> Answer:
    """Exactly these bytes, with pauses in seconds between them."""
    return Answer(parts=parts, status=status, headers=headers or {}, ending=ending)


def hang() -> Answer:
    """No answer, not even a status, until the client leaves."""
    return Answer(head=False, ending="hang")


def disconnect() -> Answer:
    """The connection is reset without an answer."""
    return Answer(head=False, ending="disconnect")


def echo(request: Received, *, delay_s: float = 0.0) -> Answer:
    """The default: the same reply to the same request, in the schema that it asks for."""
    said = [
        _said(mapping(message).get("content")) for message in items(request.body.get("messages"))
    ]
    asked = mapping(mapping(request.body.get("response_format")).get("json_schema"))
    schema = mapping(asked.get("schema"))
    plain = f"echo: {said[-1] if said else ''}"
    reply = json.dumps(minimal(schema), ensure_ascii=False) if schema else plain
    pieces = [piece + " " for piece in reply.split(" ")]
    pieces[-1] = pieces[-1].removesuffix(" ")
    limit = request.body.get("max_tokens") or len(pieces)
    kept = pieces[:limit]
    usage = {"prompt_tokens": len(" ".join(said).split()) + len(said)}
    usage["completion_tokens"] = len(kept)
    reason = "stop" if len(kept) == len(pieces) else "length"
    script = cast("Callable[[Received], Answer]", text(*kept, usage=usage, finish_reason=reason))
    answer = script(request)
    return Answer(parts=[delay_s, *answer.parts], headers=answer.headers)


def _chunk(
    choices: Sequence[Mapping[str, Any]], *, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    chunk: dict[str, Any] = {"id": "chatcmpl-stub", "model": "stub", "choices": choices}
    return chunk if usage is None else {**chunk, "usage": usage}


def _json(payload: object) -> bytes:
    return json.dumps(payload, ensure_ascii=False).encode()


def _said(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
