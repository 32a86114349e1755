"""Any value as one JSON document, for ``--json`` and for outputs that are no text.

Always valid JSON in UTF-8, whatever the value: what JSON lacks becomes the nearest thing that
it has (a set a list, NaN null, bytes base64, an unknown object its ``str``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, cast

import msgspec


def document(value: Any) -> bytes:
    """``value`` as indented JSON, with a newline at the end."""
    plain = simplify(value)
    try:
        return (json.dumps(plain, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a lone surrogate: only an escape can carry it
        return (json.dumps(plain, indent=2) + "\n").encode()


def simplify(value: Any) -> Any:
    """``value`` in terms of dict, list, str, int, float, bool and None."""
    match value:
        case None | bool() | str() if type(value) in (type(None), bool, str):
            return value
        case int() if type(value) is int:
            return value
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            pairs = cast("Mapping[Any, Any]", value)
            return {_key(key): simplify(item) for key, item in pairs.items()}
        case list():
            return [simplify(item) for item in cast("list[Any]", value)]
        case tuple() if type(cast("object", value)) is tuple:
            return [simplify(item) for item in cast("tuple[Any, ...]", value)]
        case AbstractSet():
            # A set has no order that would be the same the next time.
            return [simplify(item) for item in sorted(cast("AbstractSet[Any]", value), key=repr)]
        case _:
            return _object(value)


def _key(key: Any) -> str:
    plain = simplify(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _object(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return simplify(dump(mode="json"))
    named = getattr(value, "_asdict", None)
    if callable(named):
        return simplify(named())
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_inner)
    except (TypeError, ValueError):
        return str(value)
    return str(value) if type(plain) is type(value) else simplify(plain)


def _inner(value: Any) -> Any:
    """What msgspec does not know inside of what it knows."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
