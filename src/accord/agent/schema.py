"""Declared output types: their JSON schema, their short form for the prompt, their parsing.

Pydantic models speak for themselves; everything else (dataclass, ``msgspec.Struct``,
``TypedDict``, ``list[...]``, ``Literal``, numbers) goes through msgspec. ``str`` is plain text.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec

from accord.errors import UsageError


class InvalidReplyError(ValueError):
    """The reply is not of the declared type; the message says where and why."""


class OutputType:
    """What an agent's reply must be.

    Raises :class:`accord.errors.UsageError` for a type that has no JSON schema.
    """

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        self.is_text = declared is str
        self.name: str = getattr(declared, "__name__", None) or str(declared)
        self._pydantic: Any = None
        self.schema = None if self.is_text else _closed(self._json_schema())

    def instruction(self) -> str:
        """One line that tells a model what to write; empty for plain text."""
        return (
            "" if self.schema is None else f"Reply with JSON: {_sketch(self.schema, self.schema)}"
        )

    def parse(self, text: str) -> Any:
        """The reply as the declared type; raises :class:`InvalidReplyError`."""
        if self.is_text:
            return text
        plain = _without_fence(text.strip())
        try:
            if self._pydantic is not None:
                return self._pydantic.validate_json(plain)
            return msgspec.json.decode(plain.encode("utf-8", "replace"), type=self.declared)
        except RecursionError as error:
            raise InvalidReplyError("it is nested too deep") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidReplyError(str(error)) from error

    def _json_schema(self) -> dict[str, Any]:
        try:
            return msgspec.json.schema(self.declared)
        except (TypeError, RuntimeError) as error:
            # Not a type of msgspec's; Pydantic's, if it has one, is in use already.
            if "pydantic" not in sys.modules:
                raise _no_schema(self.declared, error) from error
        import pydantic

        try:
            self._pydantic = pydantic.TypeAdapter(self.declared)
            return self._pydantic.json_schema()
        except (pydantic.errors.PydanticUserError, TypeError) as error:
            raise _no_schema(self.declared, error) from error


def _no_schema(declared: Any, error: Exception) -> UsageError:
    return UsageError(
        f"output={declared!r} has no JSON schema ({error}); use a dataclass, a msgspec.Struct, a "
        "TypedDict, a Pydantic model, or plain types"
    )


def _without_fence(text: str) -> str:
    """What stands between ``` and ```, if that is all there is."""
    if not (text.startswith("```") and text.endswith("```")):
        return text
    return text[3:-3].partition("\n")[2].strip()


def _closed(schema: Any) -> Any:
    """``schema`` with objects that take no other properties: engines' strict modes ask for it."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    node = {key: _closed(item) for key, item in cast("dict[str, Any]", schema).items()}
    if node.get("type") == "object" and "properties" in node:
        node.setdefault("additionalProperties", False)
    return node


def _sketch(node: dict[str, Any], root: dict[str, Any]) -> str:
    """A schema in as few tokens as carry it: ``{"title": string, "points": [string]}``."""
    if (ref := node.get("$ref")) is not None:
        return _sketch(_resolve(ref, root), {**root, "$defs": _without(root, ref)})
    if "enum" in node:
        return "|".join(msgspec.json.encode(choice).decode() for choice in node["enum"])
    if (options := node.get("anyOf") or node.get("oneOf")) is not None:
        return "|".join(_sketch(option, root) for option in options)
    if "properties" in node:
        fields = (f'"{name}": {_sketch(item, root)}' for name, item in node["properties"].items())
        return "{" + ", ".join(fields) + "}"
    if node.get("type") == "array":
        return f"[{_sketch(node['items'], root)}]" if "items" in node else "[any]"
    return str(node.get("type", "any"))


def _resolve(ref: str, root: dict[str, Any]) -> dict[str, Any]:
    name = ref.rpartition("/")[2]
    return root.get("$defs", {}).get(name) or {"type": name}


def _without(root: dict[str, Any], ref: str) -> dict[str, Any]:
    """The definitions less ``ref``: a type that contains itself is named, not unrolled."""
    name = ref.rpartition("/")[2]
    return {key: item for key, item in root.get("$defs", {}).items() if key != name}
