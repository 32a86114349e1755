"""What a function does, as far as that can be told without calling it.

Its code, and what that names of its module: functions and classes by their code in turn, data by
what it is. What is imported, and objects of imported classes, are taken to stay as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import unwrap
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, cast

from accord.reuse.tagged import tagged

VALUES = ("decimal", "fractions", "pathlib", "datetime", "uuid")
"""Modules whose objects are what they are written as."""
PLAIN = (type(None), bool, int, float, str, bytes)
CONTAINERS = (list, tuple, set, frozenset, dict)
_class_of: Callable[[object], type] = type


def inmost(value: Any) -> Any:
    """What ``functools`` has wrapped to keep its results; the rest stands for itself."""
    return unwrap(value) if type(value).__module__ == "functools" else value


def used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global names that its code uses, and functions within it, with what they stand for."""
    around = function.__globals__
    for name in sorted(_names(function.__code__) & around.keys()):
        yield name, inmost(around[name])


def closed_over(function: FunctionType) -> Iterator[Any]:
    """The values of the variables around it that it uses."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it has none yet
            yield cell.cell_contents


def is_beside(value: object, function: FunctionType) -> bool:
    """It is a function of the same module."""
    return isinstance(value, FunctionType) and value.__module__ == function.__module__


def _names(code: CodeType) -> set[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def parts_of(function: FunctionType, seen: set[int]) -> tuple[Any, ...]:
    """Where a function is defined, its code, and what it uses of its module."""
    where = function.__module__, function.__qualname__
    if id(function) in seen:
        return where
    seen.add(id(function))
    told = function.__defaults__, function.__kwdefaults__, vars(function)
    defaults = [_told(each, function, seen) for each in told]
    used = [(name, _told(value, function, seen)) for name, value in used_by(function)]
    around = [_told(inmost(value), function, seen) for value in closed_over(function)]
    return where, _code(function.__code__), defaults, used, around


def _told(value: Any, user: FunctionType, seen: set[int]) -> Any:
    """What stands for ``value``, which ``user`` uses; ``TypeError`` where nothing can."""
    match value:
        case ModuleType():
            return value.__name__
        case type():
            return _class(value, user, seen)
        case FunctionType() if is_beside(value, user):
            return parts_of(value, seen)
        case FunctionType() | BuiltinFunctionType():
            return value.__module__, value.__qualname__
        case list() | tuple() | set() | frozenset() | dict():
            return _container(value, user, seen)
        case None | bool() | int() | float() | str() | bytes() if type(value) in PLAIN:
            return value
        case _:
            return _object(value, user, seen)


def _container(value: Any, user: FunctionType, seen: set[int]) -> Any:
    kind = _class_of(value)
    if kind not in CONTAINERS or id(value) in seen:
        raise TypeError(f"a {kind.__name__} may hold anything")
    if kind is dict:
        pairs = cast("dict[Any, Any]", value).items()
        return [(_told(key, user, seen), _told(each, user, seen)) for key, each in pairs]
    inner = seen | {id(value)}
    told = [_told(each, user, inner) for each in value]
    in_order = sorted(map(tagged, told)) if kind in (set, frozenset) else told
    return kind.__name__, in_order


def _class(value: type, user: FunctionType, seen: set[int]) -> Any:
    """Of a class of the same module, and of those that it comes from there, the members."""
    where = value.__module__, value.__qualname__
    if value.__module__ != user.__module__ or id(value) in seen:
        return where
    seen.add(id(value))
    members = {n: each for n, each in vars(value).items() if callable(each) or n[:2] != "__"}
    told = [(name, _member(each, user, seen)) for name, each in members.items()]
    defaults = _told(getattr(value, "__struct_defaults__", None), user, seen)
    return where, told, defaults, [_class(base, user, seen) for base in value.__bases__]


def _object(value: Any, user: FunctionType, seen: set[int]) -> Any:
    """Objects that are no more than their fields, or what they are written as."""
    kind = _class_of(value)
    told = _class(kind, user, seen)
    if isinstance(value, re.Pattern):
        pattern = cast("re.Pattern[Any]", value)
        return told, pattern.pattern, pattern.flags
    if kind is partial:
        parts = [value.func, [*value.args], value.keywords]
        return told, [_told(each, user, seen) for each in parts]
    if isinstance(value, Enum):
        return told, value.name, _told(value.value, user, seen)
    if is_dataclass(value):
        return told, [_told(getattr(value, each.name), user, seen) for each in fields(value)]
    if kind.__module__ in VALUES:
        return told, repr(value)
    if kind.__module__ in (user.__module__, *sys.stdlib_module_names):
        raise TypeError(f"a {kind.__name__} is more than its code")
    return told  # of an imported class: a client, say


def _member(value: Any, user: FunctionType, seen: set[int]) -> Any:
    if isinstance(value, classmethod | staticmethod):
        return _member(cast("Any", value).__func__, user, seen)
    if isinstance(value, property):
        return [_member(each, user, seen) for each in (value.fget, value.fset) if each is not None]
    if isinstance(value, MemberDescriptorType | GetSetDescriptorType):
        return value.__name__
    return _told(inmost(value), user, seen)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_constant(each) for each in code.co_consts]
    return code.co_code, code.co_exceptiontable, code.co_flags, code.co_names, constants


def _constant(value: object) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):  # has another order in each process
        return sorted(map(repr, cast("frozenset[object]", value)))
    return repr(value)
