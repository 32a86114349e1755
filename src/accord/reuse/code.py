"""What a function does, as far as that can be told without calling it.

Its code, and what that names of its module: functions and classes by their code in turn, data by
what it is. What is imported, and objects of imported classes, are taken to stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import unwrap
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

from accord.reuse.tagged import tagged

VALUES = ("re", "decimal", "fractions", "pathlib", "datetime", "uuid")
"""Modules whose objects are what they are written as."""
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
    defaults = function.__defaults__, function.__kwdefaults__
    used = [(name, _told(value, function, seen)) for name, value in used_by(function)]
    around = [_told(inmost(value), function, seen) for value in closed_over(function)]
    return where, _code(function.__code__), defaults, used, around


def _told(value: Any, user: FunctionType, seen: set[int]) -> Any:
    """What stands for ``value``, which ``user`` uses; ``TypeError`` where nothing can."""
    if is_beside(value, user):
        return parts_of(value, seen)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, type):
        return _class(value, user, seen)
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return value.__module__, value.__qualname__
    try:
        return tagged(_in_order(value))
    except TypeError:
        return _object(value, user, seen)


def _in_order(value: Any) -> Any:
    """A set as a list, for it has another order in each process."""
    is_set = isinstance(value, set | frozenset)
    return sorted(map(tagged, cast("set[object]", value))) if is_set else value


def _class(value: type, user: FunctionType, seen: set[int]) -> Any:
    where = value.__module__, value.__qualname__
    if value.__module__ != user.__module__ or id(value) in seen:
        return where
    seen.add(id(value))
    members = {n: each for n, each in vars(value).items() if callable(each) or n[:2] != "__"}
    return where, [(name, _member(each, user, seen)) for name, each in members.items()]


def _object(value: Any, user: FunctionType, seen: set[int]) -> Any:
    """Of classes of its own module, only those that are their fields; of imported ones, any."""
    kind = _class(_class_of(value), user, seen)
    if isinstance(value, partial):
        parts = cast("Any", value)
        return kind, [_told(e, user, seen) for e in (parts.func, [*parts.args], parts.keywords)]
    if isinstance(value, Enum):
        return kind, value.name, _told(value.value, user, seen)
    if is_dataclass(value):
        return kind, [_told(getattr(value, each.name), user, seen) for each in fields(value)]
    if type(value).__module__ == user.__module__:
        raise TypeError(f"a {type(value).__name__} is more than its code")
    return kind, repr(value) if type(value).__module__ in VALUES else ""


def _member(value: Any, user: FunctionType, seen: set[int]) -> Any:
    if isinstance(value, classmethod | staticmethod):
        return _member(cast("Any", value).__func__, user, seen)
    if isinstance(value, property):
        return [_member(each, user, seen) for each in (value.fget, value.fset) if each is not None]
    return _told(inmost(value), user, seen)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_constant(each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _constant(value: object) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):  # has another order in each process
        return sorted(map(repr, cast("frozenset[object]", value)))
    return repr(value)
