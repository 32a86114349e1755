"""Exceptions as recorded, and made again: what a flow handled must be handled alike.

The class, the arguments and the attributes come back; ``__init__`` is not asked if it takes
other arguments than it keeps. A class that cannot be found again (made inside a function, or
gone) is replaced by the nearest class above it that can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from accord.errors import RecordedError, UnknownTypeError
from accord.log.types import find_type, type_name


def text_of(error: BaseException) -> str:
    """``str(error)``, whatever the class makes of it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a broken __str__ must not hide the failure
        return f"<{type(error).__qualname__} without a message>"


def take_apart(
    error: BaseException, fits: Callable[[object], bool]
) -> tuple[str, list[Any], dict[str, Any]]:
    """Class name, arguments and attributes of ``error``, as far as each ``fits`` the log."""
    found = next(kind for kind in type(error).__mro__ if "<locals>" not in kind.__qualname__)
    args = _arguments(error)
    plain = list(args) if all(fits(value) for value in args) else [text_of(error)]
    attributes = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("__") and fits(value)
    }
    return type_name(found), plain, attributes


def _arguments(error: BaseException) -> Sequence[Any]:
    """OSError, JSONDecodeError and their like are made of more than ``args`` shows."""
    try:
        reduced: Any = error.__reduce__()
        return reduced[1]
    except Exception:  # noqa: BLE001  # a class of the user's; its plain arguments will do
        return error.args


def put_together(
    name: str, message: str, args: Sequence[Any], attributes: dict[str, Any]
) -> Exception:
    """The exception again; a :class:`accord.errors.RecordedError` if its class has gone."""
    try:
        kind: Any = find_type(name, message)
    except UnknownTypeError:
        kind = None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RecordedError(f"{name.removeprefix('builtins:')}: {message}")
    error = _made(kind, args, message) or _filled(kind, args, message)
    if error is None:
        return RecordedError(f"{name}: {message}")
    for attribute, value in attributes.items():
        try:
            setattr(error, attribute, value)
        except AttributeError:
            continue  # computed by the class
    return error


def _made(kind: type[Exception], args: Sequence[Any], message: str) -> Exception | None:
    try:
        error = kind(*args)
    except Exception:  # noqa: BLE001  # its __init__ takes something else
        return None
    return error if text_of(error) == message else None


def _filled(kind: type[Exception], args: Sequence[Any], message: str) -> Exception | None:
    try:
        error = cast("Any", kind).__new__(kind, *args)
    except Exception:  # noqa: BLE001  # its __new__ takes something else, too
        return None
    if text_of(error) != message:
        error.args = (message,)
    return error
