"""The OpenAI chat protocol as pure functions: a request as a body, chunks as a reply.

Nothing here does I/O. Promises: only ``role``, ``content``, ``tool_calls`` and ``tool_call_id`` of
a message reach the wire; a streamed and a whole answer fold to the same reply; whatever an engine
claims about tokens, the usage that comes out keeps ``cached + cache_write <= prompt`` and
``reasoning <= completion``; a number that is missing is not zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from accord.engine.base import Reply, Timings, ToolCall, Usage
from accord.errors import EngineProtocolError, RejectedError

if TYPE_CHECKING:
    from accord.engine.base import Message, Request, ToolSpec

# The log keeps signed 64-bit integers, and no engine counts further than a double can.
_MAX_COUNT = 2**53


def body(request: Request, model: str | None, stream: bool) -> dict[str, Any]:  # noqa: FBT001
    """The body of ``POST /chat/completions``. ``request.extra`` is merged last and wins."""
    known: dict[str, Any] = {
        "model": request.model or model or None,
        "messages": [_message(message) for message in request.messages],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "tools": [_tool(tool) for tool in sorted(request.tools, key=lambda tool: tool.name)]
        or None,
        "response_format": _response_format(request.schema),
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
    }
    return {key: value for key, value in known.items() if value is not None} | request.extra


def encode(payload: object) -> bytes:
    """JSON in real UTF-8. Lone surrogates, which UTF-8 cannot hold, become U+FFFD.

    Raises RejectedError for a value that JSON cannot hold.
    """
    try:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the request cannot be written as JSON: {error}; check extra, schema and tools"
        raise RejectedError(message) from error
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """``value`` if it is a JSON array, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


class ReplyFold:
    """Folds the chunks of one answer into a :class:`Reply`.

    A whole answer is one chunk whose choice has a ``message`` in place of a ``delta``. Usage and
    timings count on any chunk, with choices or without; the last one wins. Only the first choice is
    read.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls = _ToolCallFold()
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._model = ""
        self._id = ""
        self._answered = False

    @property
    def finished(self) -> bool:
        """Whether a finish reason has come: what follows can only be usage."""
        return self._finish_reason is not None

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Take in one chunk; return the text that it adds."""
        self._usage = mapping(chunk.get("usage")) or self._usage
        self._timings = mapping(chunk.get("timings")) or self._timings
        self._metrics = mapping(chunk.get("metrics")) or self._metrics
        self._model = _text(chunk.get("model")) or self._model
        self._id = _text(chunk.get("id")) or self._id
        return "".join([self._choice(mapping(choice)) for choice in items(chunk.get("choices"))])

    def reply(self) -> Reply:
        """The reply so far. Raises EngineProtocolError if there was no choice at all."""
        if not self._answered:
            message = "the engine's answer had no choices; check that the URL is a chat endpoint"
            raise EngineProtocolError(message)
        calls = self._calls.calls()
        return Reply(
            text="".join(self._text),
            tool_calls=calls,
            finish_reason=self._finish_reason or ("tool_calls" if calls else "stop"),
            usage=normalise_usage(self._usage, timings=self._timings),
            timings=_timings(self._timings, self._metrics),
            model=self._model,
            id=self._id,
        )

    def _choice(self, choice: Mapping[str, Any]) -> str:
        if choice.get("index") not in (0, None):
            return ""
        self._answered = True
        whole = mapping(choice.get("message"))
        delta = whole or mapping(choice.get("delta"))
        self._finish_reason = _text(choice.get("finish_reason")) or self._finish_reason
        for call in items(delta.get("tool_calls")):
            self._calls.add(mapping(call), whole=bool(whole))
        # A refusal is what the model says; reasoning_content is not.
        text = _content(delta.get("content")) + _text(delta.get("refusal"))
        if text:
            self._text.append(text)
        return text


def normalise_usage(
    usage: Mapping[str, Any], *, timings: Mapping[str, Any] | None = None
) -> Usage | None:
    """One record from any vendor's usage; None unless prompt and completion are both known.

    OpenAI's ``prompt_tokens`` and ``input_tokens`` include cached tokens. Anthropic's
    ``input_tokens`` excludes ``cache_read_input_tokens`` and ``cache_creation_input_tokens``; it is
    told apart by these names. ``timings`` is llama.cpp's, for servers whose usage lacks the
    details.
    """
    prompt_details = mapping(
        usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    )
    completion_details = mapping(
        usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    )
    cached = _first(
        prompt_details.get("cached_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        (timings or {}).get("cache_n"),
    )
    written = _first(
        prompt_details.get("cache_write_tokens"), usage.get("cache_creation_input_tokens")
    )
    reasoning = _first(completion_details.get("reasoning_tokens"))
    prompt = _prompt(usage, cached or 0, written or 0)
    completion = _first(usage.get("completion_tokens"), usage.get("output_tokens"))
    total = _first(usage.get("total_tokens"))
    if completion is None and prompt is not None and total is not None:
        completion = max(total - prompt, 0)
    if prompt is None or completion is None:
        return None
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning  # xAI and Gemini count reasoning beside the completion
    cached = min(cached or 0, prompt)
    return Usage(
        prompt=prompt,
        completion=completion,
        cached=cached,
        cache_write=min(written or 0, prompt - cached),
        reasoning=min(reasoning or 0, completion),
    )


def _prompt(usage: Mapping[str, Any], cached: int, written: int) -> int | None:
    prompt = _first(usage.get("prompt_tokens"))
    if prompt is not None:
        return prompt
    prompt = _first(usage.get("input_tokens"))
    anthropic = "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    if prompt is None or not anthropic or "input_tokens_details" in usage:
        return prompt
    return prompt + cached + written


def _first(*values: object) -> int | None:
    """The first value that is a count: a whole, finite number that is not negative."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if 0 <= value <= _MAX_COUNT and value == int(value):
            return int(value)
    return None


def _timings(timings: Mapping[str, Any], metrics: Mapping[str, Any]) -> Timings | None:
    """llama.cpp's ``timings``, or the ``metrics`` of vLLM's ``--enable-per-request-metrics``.

    vLLM measures time to first token from when the request was scheduled, so it is the prefill.
    """
    found = Timings(
        queue_s=_seconds(metrics.get("queue_time_ms")),
        prefill_s=_seconds(timings.get("prompt_ms", metrics.get("time_to_first_token_ms"))),
        decode_s=_seconds(timings.get("predicted_ms", metrics.get("generation_time_ms"))),
    )
    return None if found == Timings() else found


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    seconds = milliseconds / 1000 if -1e15 < milliseconds < 1e15 else -1.0
    return seconds if seconds >= 0 else None


@dataclass
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def complete(self) -> bool:
        return _is_json("".join(self.arguments))


class _ToolCallFold:
    """Puts tool calls together from their pieces.

    By the protocol each call has its own ``index`` and its id comes once. Engines send parallel
    calls all at index 0, repeat the id on each piece, or send no ids; so a new call also starts
    when the id changes, and when a name comes after arguments that are complete JSON or for another
    tool.
    """

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        self._at: dict[int, _PartialCall] = {}

    def add(self, piece: Mapping[str, Any], *, whole: bool) -> None:
        function = mapping(piece.get("function"))
        id_, name = _text(piece.get("id")), _text(function.get("name"))
        call = self._find(piece.get("index"), id_, name, whole=whole)
        call.id = call.id or id_
        if name != call.name:
            call.name += name
        arguments = function.get("arguments")
        # Some engines send the arguments as an object in place of its JSON text.
        text = arguments if isinstance(arguments, str) else _object_text(arguments)
        if text:
            call.arguments.append(text)

    def calls(self) -> tuple[ToolCall, ...]:
        taken = {call.id for call in self._calls}
        free = (id_ for n in range(2 * len(self._calls)) if (id_ := f"call_{n}") not in taken)
        # A model that calls a tool without arguments may write none at all.
        return tuple(
            ToolCall(call.id or next(free), call.name, "".join(call.arguments).strip() or "{}")
            for call in self._calls
        )

    def _find(self, index: object, id_: str, name: str, *, whole: bool) -> _PartialCall:
        if not isinstance(index, int):
            index = next(reversed(self._at), 0)
        call = self._at.get(index)
        if call is None and id_ and not name:
            call = next((known for known in self._calls if known.id == id_), None)
        if call is None or whole or self._is_new(call, id_, name):
            call = _PartialCall()
            self._calls.append(call)
        self._at[index] = call
        return call

    def _is_new(self, call: _PartialCall, id_: str, name: str) -> bool:
        if id_ and call.id:
            return id_ != call.id
        other = bool(call.arguments) and name != call.name
        return bool(name) and bool(call.name) and (other or call.complete())


def _message(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _response_format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    named = {"name": "output", "schema": schema, "strict": is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


_SCHEMAS_BY_NAME = ("properties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "prefixItems")
_NOT_STRICT = (
    "allOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "dependentSchemas",
)


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI's strict mode takes it: objects closed, all of their properties required."""
    if any(key in schema for key in _NOT_STRICT):
        return False
    if schema.get("type") == "object" or "properties" in schema:
        required = set(items(schema.get("required")))
        closed = schema.get("additionalProperties") is False
        if not closed or set(mapping(schema.get("properties"))) != required:
            return False
    below = [value for key in _SCHEMAS_BY_NAME for value in mapping(schema.get(key)).values()]
    below += [value for key in _SCHEMA_LISTS for value in items(schema.get(key))]
    below.append(schema.get("items"))
    return all(is_strict(mapping(value)) for value in below if value is not None)


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join([_text(mapping(part).get("text")) for part in items(content)])


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
