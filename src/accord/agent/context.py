"""The prompt: from an agent's declaration and its inputs to messages.

Instructions first, since they are the same on every call and make the longest stable prefix;
the input last. Nothing volatile (time, ids, class paths) reaches a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from accord.engine.base import Message
from accord.errors import UnserializableError


def _plain(value: Any) -> Any:
    """Pydantic models inside of other values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(type(value).__qualname__)


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def opening(
    instructions: str, form: str, inputs: Sequence[Any], named: Mapping[str, Any]
) -> list[Message]:
    """The messages of an agent's first request. ``form`` says what its reply must look like."""
    system = "\n".join(part for part in (instructions, form) if part)
    parts = [render(value) for value in inputs]
    parts += [f"{name}:\n{render(value)}" for name, value in named.items()]
    messages = [Message(role="system", content=system, origin="instructions")] if system else []
    messages.append(Message(role="user", content="\n\n".join(parts), origin="task"))
    return messages


def render(value: Any) -> str:
    """A value as a model reads it: text as it stands, anything else as compact UTF-8 JSON."""
    if isinstance(value, str):
        return value
    if hasattr(value, "model_dump_json"):
        return value.model_dump_json()
    try:
        return _encode(value).decode()
    except (TypeError, UnicodeEncodeError) as error:
        msg = f"a {type(value).__qualname__} cannot be written into a prompt ({error})"
        raise UnserializableError(msg) from error
