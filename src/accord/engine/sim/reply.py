"""What a simulated engine says: text of a given length, or JSON that a schema allows.

The same request gets the same reply from the same seed; one that is asked again gets another, as
from a model that samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from accord.engine.shapes import items, mapping

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


_FORMATS = {
    "date-time": "2030-01-01T00:00:00Z",
    "date": "2030-01-01",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "0",
    "email": "a@example.org",
    "uri": "https://example.org",
}


def _minimal(schema: object, root: Mapping[str, Any], depth: int) -> Any:
    allowed = mapping(schema)
    if not allowed or depth > 2 * _DEEPEST:
        return None  # anything will do, or nothing would
    if "$ref" in allowed:
        return _minimal(_resolve(str(allowed["$ref"]), root), root, depth + 1)
    for key in ("const", "default"):
        if key in allowed:
            return allowed[key]
    if items(allowed.get("enum")):
        return allowed["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if choices := items(allowed.get(key)):
            return _minimal(choices[-1 if depth > _DEEPEST else 0], root, depth + 1)
    return _of_kind(allowed, root, depth)


def _of_kind(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind: Any = schema.get("type", "object" if "properties" in schema else "string")
    match next(iter(items(kind)), kind):
        case "object":
            properties = mapping(schema.get("properties"))
            required = items(schema.get("required"))
            return {name: _minimal(properties.get(name), root, depth + 1) for name in required}
        case "array":
            return _array(schema, root, depth)
        case "integer" | "number" as number:
            return _number(schema, whole=number == "integer")
        case "boolean":
            return False
        case "null":
            return None
        case _:
            given = _FORMATS.get(str(schema.get("format")))
            text = "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", None)]
            return text if given is None else given


def _array(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[Any]:
    first = [_minimal(each, root, depth + 1) for each in items(schema.get("prefixItems"))]
    if first or schema.get("items") is False:
        return first
    least = schema.get("minItems", 0)
    count = least if depth > _DEEPEST else min(max(least, 1), schema.get("maxItems", 1))
    return [_minimal(schema.get("items"), root, depth + 1) for _ in range(count)]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """0, or the nearest to it that the bounds allow."""
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = 1 if whole else 2**-10
    low = above + step if above is not None and (least is None or above >= least) else least
    high = below - step if below is not None and (most is None or below <= most) else most
    number = 0 if low is None or low <= 0 else low
    return number if high is None or number <= high else high


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference stands for; None, which allows anything, if it leads nowhere."""
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            found = mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found
