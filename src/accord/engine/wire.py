"""The OpenAI chat protocol as pure functions: a request as a body, chunks as a reply.

Nothing here does I/O. Promises: only ``role``, ``content``, ``tool_calls`` and ``tool_call_id`` of
a message reach the wire; a streamed and a whole answer fold to the same reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accord.engine.base import Reply, joined
from accord.engine.shapes import items, mapping, string
from accord.engine.tool_calls import ToolCallFold
from accord.engine.usage import normalise_timings, normalise_usage
from accord.errors import EngineProtocolError, RejectedError

if TYPE_CHECKING:
    from accord.engine.base import Message, Priority, Request, ToolSpec


def body(
    request: Request,
    model: str | None,
    stream: bool,  # noqa: FBT001
    priority: Priority | None = None,
) -> dict[str, Any]:
    """The body of ``POST /chat/completions``. ``request.extra`` is merged last and wins.

    ``priority`` says how the server takes one.

    Messages come last, so that what stays the same from turn to turn is one prefix.
    """
    known: dict[str, Any] = {
        "model": request.model or model or None,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "tools": [_tool(tool) for tool in sorted(request.tools, key=lambda tool: tool.name)]
        or None,
        "response_format": _response_format(request.schema),
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
        **_urgency(request.priority, priority),
    }
    options = {key: value for key, value in known.items() if value is not None}
    messages = [_message(message) for message in joined(request.messages)]
    return {**options, "messages": messages, **request.extra}


def _urgency(urgency: int, how: Priority | None) -> dict[str, Any]:
    """One scale, larger is more urgent, in the words of each server; none for what has none."""
    if not urgency or how is None:
        return {}
    match how:
        case "lower_first":
            return {"priority": -urgency}
        case "higher_first":
            return {"priority": urgency}
        case "service_tier":
            return {"service_tier": "priority" if urgency > 0 else "flex"}


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


class ReplyFold:
    """Folds the chunks of one answer into a :class:`Reply`.

    A whole answer is one chunk whose choice has a ``message`` in place of a ``delta``. Usage and
    timings count on any chunk, with choices or without; the last one wins. Only the first choice is
    read. ``where`` names the sender in errors.
    """

    def __init__(self, where: str = "the engine") -> None:
        self._where = where
        self._text: list[str] = []
        self._calls = ToolCallFold()
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
        self._model = string(chunk.get("model")) or self._model
        self._id = string(chunk.get("id")) or self._id
        return "".join([self._choice(mapping(choice)) for choice in items(chunk.get("choices"))])

    def reply(self) -> Reply:
        """The reply so far. Raises EngineProtocolError if there was no choice at all."""
        if not self._answered:
            message = (
                f"{self._where} answered without choices; check that the base URL is a chat API's"
            )
            raise EngineProtocolError(message)
        calls = self._calls.calls()
        return Reply(
            text="".join(self._text),
            tool_calls=calls,
            finish_reason=self._finish_reason or ("tool_calls" if calls else "stop"),
            usage=normalise_usage(self._usage, timings=self._timings),
            timings=normalise_timings(self._timings, self._metrics),
            model=self._model,
            id=self._id,
        )

    def _choice(self, choice: Mapping[str, Any]) -> str:
        if choice.get("index") not in (0, None):
            return ""
        self._answered = True
        whole = mapping(choice.get("message"))
        delta = whole or mapping(choice.get("delta"))
        self._finish_reason = string(choice.get("finish_reason")) or self._finish_reason
        for call in items(delta.get("tool_calls")):
            self._calls.add(mapping(call), whole=bool(whole))
        # A refusal is what the model says; reasoning_content is not.
        text = _content(delta.get("content")) + string(delta.get("refusal"))
        if text:
            self._text.append(text)
        return text


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
    return "".join([string(mapping(part).get("text")) for part in items(content)])
