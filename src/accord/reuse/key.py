"""What a result is kept under: a hash of all that it depends on.

Each value is written with its type and its length, so that no two that differ are written alike:
not ``1`` and ``True`` and ``"1"``, not ``("a", "bc")`` and ``("ab", "c")``.
"""

from __future__ import annotations

from hashlib import blake2b
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, cast

import msgspec

from accord.engine.base import Request, joined

KEY_BYTES = 20
IRRELEVANT = ("agent", "priority")
"""The fields of a request that change no reply: who asks, and how urgently."""


def request_key(request: Request, tenant: str, engine: str, model: str) -> bytes | None:
    """The key of a request: as it is sent, to which engine and model, for which tenant.

    Neighbouring messages of one role are one message, as on the wire. None if it cannot be told
    from others, for it holds what is no plain data.
    """
    fields: dict[str, Any] = {
        name: getattr(request, name)
        for name in request.__struct_fields__
        if name not in (*IRRELEVANT, "messages")
    }
    messages = [
        (each.role, each.content, each.tool_calls, each.tool_call_id)
        for each in joined(request.messages)
    ]
    return _key("request", tenant, engine, model, messages, fields)


def tool_key(function: object, arguments: dict[str, Any], tenant: str) -> bytes | None:
    """The key of a call of a plain function: where it is defined, its code, and its arguments.

    Its code is that of the functions of its module that it uses, too, with the plain data there.
    What it imports is taken to stay as it is. None for what is more than its code, such as a method
    or a closure.
    """
    if not isinstance(function, FunctionType) or function.__closure__ is not None:
        return None
    return _key("tool", tenant, _parts(function, set()), arguments)


def _key(*parts: Any) -> bytes | None:
    try:
        return blake2b(tagged(parts), digest_size=KEY_BYTES).digest()
    except (TypeError, RecursionError):
        return None


def _parts(function: FunctionType, seen: set[str]) -> tuple[Any, ...]:
    """Where a function is defined, its code, and what it uses of its module."""
    where = function.__module__, function.__qualname__
    if function.__qualname__ in seen:
        return where
    seen.add(function.__qualname__)
    defaults = _told(function.__defaults__), _told(function.__kwdefaults__)
    around = function.__globals__
    used: list[Any] = []
    for name in sorted(_names(function.__code__) & around.keys()):
        value = _inmost(around[name])
        is_near = isinstance(value, FunctionType) and value.__module__ == function.__module__
        used.append((name, _parts(value, seen) if is_near else _told(value)))
    return where, _code(function.__code__), defaults, used


def _inmost(value: Any) -> Any:
    """What decorators have wrapped; other objects are not asked, for they may answer anything."""
    wraps = isinstance(value, FunctionType) or type(value).__module__ == "functools"
    return unwrap(value) if wraps else value


def _told(value: Any) -> bytes | str:
    """Plain data; of anything else, its type."""
    try:
        return tagged(value)
    except (TypeError, RecursionError):
        return type(value).__qualname__


def _names(code: CodeType) -> set[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_constant(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _constant(value: object) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):  # has another order in each process
        return sorted(map(repr, cast("frozenset[object]", value)))
    return repr(value)


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
            items = cast("dict[Any, Any]", value)
            pieces.append(b"d%d:" % len(items))
            for key, each in items.items():  # in their order, which a prompt or a schema shows
                _write(key, pieces)
                _write(each, pieces)
        case msgspec.Struct():
            pieces.append(b"o")
            _write(type(value).__name__, pieces)
            _write([getattr(value, name) for name in value.__struct_fields__], pieces)
        case _:
            raise TypeError(f"a {type(value).__name__} is no plain data")
