"""Classes of recorded values: taken apart into plain fields, and put together again by name."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec

from accord.errors import UnknownTypeError
from accord.tokens.encode import from_wire, is_protobuf, to_wire

_LEAVES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime:datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "datetime:date": (date, date.isoformat, date.fromisoformat),
    "datetime:time": (time, time.isoformat, time.fromisoformat),
    "datetime:timedelta": (
        timedelta,
        lambda d: f"{d.days} {d.seconds} {d.microseconds}",
        lambda s: timedelta(*map(int, s.split())),
    ),
    "decimal:Decimal": (Decimal, str, Decimal),
    "uuid:UUID": (UUID, str, UUID),
    "pathlib:Path": (type(Path()), str, Path),
}
_LEAF_NAMES = {kind: name for name, (kind, _, _) in _LEAVES.items()}


def type_name(kind: type) -> str:
    """``module:QualName``.

    A script's ``__main__`` goes by its file's name, so that another process which loads the
    same file finds the class.
    """
    module = kind.__module__
    if module == "__main__":
        module = _main_stem() or module
    return f"{module}:{kind.__qualname__}"


def pack_instance(value: object) -> tuple[str, Any] | None:
    """Name and plain fields of an instance that can be put together again, else None."""
    kind = cast("type[Any]", type(value))
    leaf = _LEAF_NAMES.get(kind)
    if leaf is not None:
        return leaf, _LEAVES[leaf][1](value)
    if "<" in kind.__qualname__ or "[" in kind.__qualname__:
        return None  # made inside a function, or a generic one's concrete form: no name finds it
    if isinstance(value, Enum):
        return type_name(kind), value.value
    fields = _fields(kind)
    if fields is not None:
        if _is_container(kind):
            return None  # it would lose what it contains
        plain = {name: getattr(value, name) for name in fields if hasattr(value, name)}
        return type_name(kind), _without_defaults(kind, plain)
    if _is_pydantic(kind):
        return type_name(kind), _pydantic_fields(value)
    if is_protobuf(kind):
        return type_name(kind), to_wire(value)
    return None


def unpack_instance(name: str, plain: Any) -> Any:
    """The instance that :func:`pack_instance` took apart.

    Raises :class:`accord.errors.UnknownTypeError`, with the plain value, if the class is gone
    or has changed so that the value does not fit.
    """
    if name in _LEAVES:
        return _LEAVES[name][2](plain)
    kind: Any = find_type(name, plain)
    try:
        if issubclass(kind, Enum):
            return kind(plain)
        fields = _fields(kind)
        if fields is not None:
            return _fill(kind, fields, plain)
        if _is_pydantic(kind):
            return _fill_pydantic(kind, plain)
        if is_protobuf(kind):
            return from_wire(kind, plain)
    except Exception as error:  # Protobuf's DecodeError is a class of its own
        raise UnknownTypeError(name, plain, f"it has changed: {error}") from error
    raise UnknownTypeError(name, plain, "it is no longer a class that holds data")


def find_type(name: str, plain: object) -> type:
    """The class called ``module:QualName``."""
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = _module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing a module runs it, and that may raise anything
        raise UnknownTypeError(name, plain, str(error)) from error
    if not isinstance(found, type):
        raise UnknownTypeError(name, plain, "it is not a class")
    return found


def _module(name: str) -> object:
    if name in sys.modules:
        return sys.modules[name]
    if name == _main_stem():
        return sys.modules["__main__"]
    return importlib.import_module(name)


def _main_stem() -> str | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if file else None


def _fields(kind: type[object]) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if issubclass(kind, tuple):
        return getattr(cast("Any", kind), "_fields", None)
    return None


def _is_container(kind: type[Any]) -> bool:
    return issubclass(kind, list | dict | set | str | bytes)


def _without_defaults(kind: type, plain: dict[str, Any]) -> dict[str, Any]:
    """A struct that leaves defaults out of its JSON leaves them out of the log, too."""
    if not (issubclass(kind, msgspec.Struct) and kind.__struct_config__.omit_defaults):
        return plain
    # Defaults belong to the last fields; the first ones may have none.
    pairs = zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False)
    defaults = dict(pairs)
    return {
        name: item
        for name, item in plain.items()
        # 0 equals False, and is another value.
        if type(item) is not type(default := defaults.get(name, msgspec.UNSET)) or item != default
    }


def _fill(kind: type, fields: tuple[str, ...], plain: dict[str, Any]) -> Any:
    known = {name: plain[name] for name in fields if name in plain}
    # A dataclass is filled field by field: __init__ and __post_init__ ran when it was made.
    if dataclasses.is_dataclass(kind) and len(known) == len(fields):
        instance: Any = kind.__new__(kind)
        for name, item in known.items():
            object.__setattr__(instance, name, item)
        return instance
    # Others, and a class that has gained a field since, fill in their defaults.
    return cast("Any", kind)(**known)


def _pydantic_fields(model: Any) -> dict[str, Any]:
    # Not model_dump: it takes nested models apart and forgets their classes.
    names: dict[str, Any] = cast("Any", type(model)).model_fields
    return {name: getattr(model, name) for name in names} | (model.model_extra or {})


def _fill_pydantic(kind: Any, plain: dict[str, Any]) -> Any:
    # Not model_validate: it knows fields by their aliases, and validated when it was made.
    for name, field in kind.model_fields.items():
        if field.is_required() and name not in plain:
            msg = f"field {name!r} is required now"
            raise ValueError(msg)
    return kind.model_construct(**plain)


def _is_pydantic(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")
