"""How a structured value is written into a prompt: faithfully, and in the fewest tokens.

:func:`encode` writes a value in the smallest of the forms it knows, and :func:`decode` is its exact
inverse on JSON values. The forms are compact JSON and lines with tables
(:mod:`accord.tokens.table`); neither escapes a character that UTF-8 can hold, neither carries a
class's name or an id that the value does not have, and a model reads both untold. Equal values
give equal texts; members keep their order.

A text is its own encoding: no quotes, nothing escaped. So who expects a text takes it as it came,
and :func:`decode` is for everything else.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgspec

from accord.errors import UnserializableError, UsageError
from accord.tokens.count import estimate
from accord.tokens.table import compact, is_container, read, write

_JOINTS = re.compile(r'[]}{[",:]{3,5}')
_GAPS = re.compile(r" (?=[0-9])|\n (?= )")
_TOO_DEEP = "the value is nested too deep or contains itself; a prompt holds finite data"

Message = TypeVar("Message")


def estimate_json(text: str) -> int:
    """:func:`estimate`, mended where values in JSON and in lines differ from prose.

    A run of JSON's signs is one token, not two; a space before a digit, and an indent of more than
    one space, are tokens of their own. Without it JSON looks a quarter larger than it is, and one
    value in five comes out larger than its JSON would have been.
    """
    return estimate(text) - len(_JOINTS.findall(text)) + len(_GAPS.findall(text))


def encode(value: Any, count: Callable[[str], int] = estimate_json) -> str:
    """``value`` as a model reads it; never more tokens by ``count`` than its compact JSON.

    Raises :class:`accord.errors.UnserializableError` like :func:`plain`.
    """
    found = plain(value)
    if isinstance(found, str):
        return found
    try:
        written = compact(found)
        return min(written, write(found, count), key=count) if is_container(found) else written
    except RecursionError:
        raise UnserializableError(_TOO_DEEP) from None


def decode(text: str) -> Any:
    """The plain value that :func:`encode` wrote, unless it was a text, which is its own encoding.

    Raises :class:`accord.errors.UsageError` for a text that is none of the forms.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass  # no JSON; and what is written in lines never is
    try:
        return read(text)
    except ValueError as error:
        msg = f"this is not what encode writes ({error}); a text that was encoded is its own value"
        raise UsageError(msg) from error


def plain(value: Any) -> Any:
    """``value`` in JSON's types: None, bool, int, float, str, list, and dict with str keys.

    Takes apart Pydantic models, dataclasses, msgspec Structs, named tuples and Protobuf messages
    (as objects of their fields), enums (as their values), dates, decimals, UUIDs and paths (as
    texts), bytes (as base64) and collections, at any depth. Raises
    :class:`accord.errors.UnserializableError`, with the path, for anything else.
    """
    try:
        return _plain(value, "value")
    except RecursionError:
        raise UnserializableError(_TOO_DEEP) from None


def to_wire(message: Any) -> bytes:
    """A Protobuf message in Protobuf's binary form; equal messages give equal bytes.

    Raises :class:`accord.errors.UnserializableError` for anything else, and for a message that
    lacks a required field.
    """
    if not is_protobuf(message):
        raise _unserializable(message, "the message", "only Protobuf messages have a wire form")
    try:
        return message.SerializeToString(deterministic=True)
    except _protobuf("message").Error as error:
        raise _unserializable(message, "the message", error) from error


def from_wire(kind: type[Message], data: bytes) -> Message:
    """The message of Protobuf class ``kind`` that :func:`to_wire` wrote.

    Raises :class:`accord.errors.UsageError` if ``data`` is not one.
    """
    if not is_protobuf(kind):
        msg = f"{kind.__qualname__} is no class of Protobuf messages"
        raise UsageError(msg)
    try:
        return cast("Any", kind).FromString(data)
    except _protobuf("message").Error as error:
        msg = f"these {len(data)} bytes are no {kind.__qualname__} ({error})"
        raise UsageError(msg) from error


def _plain(value: Any, where: str) -> Any:
    match value:
        case Enum():
            return _plain(value.value, where)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return _object(cast("Mapping[Any, Any]", value), where)
        case set() | frozenset():
            items = [_plain(item, f"an item of {where}") for item in cast("set[Any]", value)]
            return sorted(items, key=compact)  # hash order differs between processes
        case _ if (fields := _fields(value)) is not None:
            return {name: _plain(item, f"{where}.{name}") for name, item in fields.items()}
        case list() | tuple():
            items = enumerate(cast("list[Any]", value))
            return [_plain(item, f"{where}[{index}]") for index, item in items]
        case _:
            return _leaf(value, where)


def _object(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = _plain(key, f"a key of {where}")
        if isinstance(name, dict | list):
            raise _unserializable(key, f"a key of {where}", "a key is a text or a number")
        name = name if isinstance(name, str) else compact(name)
        if name in found:
            msg = f"{where} has two keys that are written {name!r} in a prompt; rename one"
            raise UnserializableError(msg)
        found[name] = _plain(item, f"{where}[{key!r}]")
    return found


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of an instance whose class says what they are, else None."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, msgspec.Struct):
        return _struct_fields(value)
    if issubclass(kind, tuple):
        return value._asdict() if hasattr(value, "_asdict") else None
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    return None


def _struct_fields(value: msgspec.Struct) -> dict[str, Any]:
    """Under the names, with the tag and without the defaults, as msgspec would write them."""
    config = value.__struct_config__
    found: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field else {}
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        if item is msgspec.UNSET or (config.omit_defaults and _is_default(item, field)):
            continue
        found[field.encode_name] = item
    return found


def _is_default(item: Any, field: msgspec.structs.FieldInfo) -> bool:
    make = field.default_factory
    default = field.default if make is msgspec.NODEFAULT else make()
    return type(item) is type(default) and item == default  # 0 equals False


def _leaf(value: Any, where: str) -> Any:
    """What a library turns into plain data as a whole."""
    try:
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        if is_protobuf(value):
            to_dict = _protobuf("json_format").MessageToDict
            return to_dict(value, preserving_proto_field_name=True)
        return str(value) if isinstance(value, PurePath) else msgspec.to_builtins(value)
    except Exception as error:  # each library has its own
        raise _unserializable(value, where, error) from error


def is_protobuf(value: Any) -> bool:
    """Whether this is a Protobuf message, or a class of them."""
    return hasattr(value, "DESCRIPTOR") and hasattr(value, "SerializeToString")


def _protobuf(module: str) -> Any:
    return importlib.import_module(f"google.protobuf.{module}")


def _unserializable(value: Any, where: str, why: object) -> UnserializableError:
    kind = type(value).__qualname__
    return UnserializableError(f"{where} is a {kind}, which has no plain form ({why})")
