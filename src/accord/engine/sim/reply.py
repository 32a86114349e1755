"""What a simulated engine says: text of a given length, or JSON that a schema allows.

The same request gets the same reply from the same seed; one that is asked again gets another, as
from a model that samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from accord.engine.shapes import items

if TYPE_CHECKING:
    from accord.engine.base import Reply, Request

Replies = Callable[["Request", Random], "str | int | Reply"]
"""The reply to a request: its text, how many tokens of text, or all of it."""

DEFAULT_TOKENS = 256
SHORTEST = 0.4
"""Of what a request allows, the least that a reply takes by default."""

_WORDS = (
    b"the plan of this part says what each of them will need and why it is here so that all who "
    b"read on can see how one thing led to the next and what is still open at the end of it all "
).split()


def default_reply(request: Request, random: Random) -> str | int:
    """JSON if a schema asks for it, else text of 40% to all of ``max_tokens``."""
    if request.schema:
        return msgspec.json.encode(minimal(request.schema)).decode()
    most = request.max_tokens or DEFAULT_TOKENS
    return max(1, round(most * random.uniform(SHORTEST, 1.0)))


def words(size: int, random: Random) -> str:
    """A text of ``size`` bytes, that begins like no other."""
    text = b"%08x " % random.getrandbits(32)
    text += b" ".join(_WORDS[random.getrandbits(5)] for _ in range(min(64, size // 4)))
    repeats = -(-size // len(text))
    return (text * repeats)[:size].decode()


def minimal(schema: Mapping[str, Any]) -> Any:
    """A small value that the JSON schema allows: required properties only, arrays of one item.

    Arrays have one item where they may, so that a flow that fans out over one does something.
    """
    return _minimal(schema, schema, 0)


_DEEPEST = 12


def _minimal(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if "$ref" in schema:
        schema = _resolve(str(schema["$ref"]), root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _minimal(schema[key][-1 if depth > _DEEPEST else 0], root, depth + 1)
    kind: Any = schema.get("type", "object" if "properties" in schema else "string")
    match next(iter(items(kind)), kind):
        case "object":
            properties = schema.get("properties", {})
            required = schema.get("required", ())
            return {name: _minimal(properties.get(name, {}), root, depth + 1) for name in required}
        case "array":
            least = schema.get("minItems", 0)
            count = least if depth > _DEEPEST else min(max(least, 1), schema.get("maxItems", 1))
            return [_minimal(schema.get("items", {}), root, depth + 1) for _ in range(count)]
        case "integer" | "number":
            above = schema.get("exclusiveMinimum")
            return schema.get("minimum", 0 if above is None else above + 1)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", None)]


def _resolve(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found[step] if step else found
    return found
