"""Plain data as bytes, each value with its type and its length.

So no two that differ are written alike: not ``1`` and ``True`` and ``"1"``, not ``("a", "bc")`` and
``("ab", "c")``. The order of a dict's items counts: a prompt or a schema shows it.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec


def tagged(value: Any) -> bytes:
    """``value`` with types and lengths; raises ``TypeError`` for what is no plain data."""
    pieces: list[bytes] = []
    _write(value, pieces)
    return b"".join(pieces)


def _write(value: Any, pieces: list[bytes]) -> None:
    match value:
        case None:
            pieces.append(b"n")
        case bool():
            pieces.append(b"b1" if value else b"b0")
        case int():
            pieces.append(b"i%d;" % value)
        case float():
            pieces.append(b"f%b;" % value.hex().encode())
        case str():
            text = value.encode("utf-8", "surrogatepass")
            pieces.append(b"s%d:%b" % (len(text), text))
        case bytes():
            pieces.append(b"y%d:%b" % (len(value), value))
        case list() | tuple():
            listed = cast("list[Any]", value)
            pieces.append(b"l%d:" % len(listed))
            for each in listed:
                _write(each, pieces)
        case dict():
            mapped = cast("dict[Any, Any]", value)
            pieces.append(b"d%d:" % len(mapped))
            for key, each in mapped.items():
                _write(key, pieces)
                _write(each, pieces)
        case msgspec.Struct():
            pieces.append(b"o")
            _write(type(value).__name__, pieces)
            _write({name: getattr(value, name) for name in value.__struct_fields__}, pieces)
        case _:
            raise TypeError(f"a {type(value).__name__} is no plain data")
