"""About how many tokens requests take: the one estimate that budgets and bills stand on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from accord.engine.base import Message, ToolCall, ToolSpec
from accord.tokens.count import estimate


def size_of_messages(messages: Sequence[Message]) -> int:
    """The tokens of ``messages``, what a chat template puts around them aside."""
    return sum(
        estimate(message.content) + size_of_calls(message.tool_calls) for message in messages
    )


def size_of_calls(tool_calls: Sequence[ToolCall]) -> int:
    """The tokens in which a model asks for tools."""
    return sum(estimate(call.name + call.arguments) for call in tool_calls)


def size_of_tools(tools: Sequence[ToolSpec], schema: object = None) -> int:
    """The tokens of tools' descriptions, and of the schema of a reply."""
    parts: list[object] = [*tools, *([schema] if schema else [])]
    return sum(estimate(msgspec.json.encode(part).decode()) for part in parts)
