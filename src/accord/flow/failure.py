"""Exceptions to and from the log, and which recorded failures an exception carries."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, cast

from accord.errors import UnserializableError
from accord.log.codec import ValueCodec, printable
from accord.log.events import ErrorRecord
from accord.log.failure import put_together, take_apart, text_of
from accord.log.log import Log


def record_error(error: BaseException, values: ValueCodec) -> ErrorRecord:
    """``error`` as plain data, as far as the log can hold it."""

    def fits(value: object) -> bool:
        try:
            values.digest(value)
        except UnserializableError:
            return False
        return True

    name, args, attributes = take_apart(error, fits)
    message = printable(text_of(error))
    return ErrorRecord(type=name, message=message, state=values.encode([args, attributes]))


def rebuild_error(record: ErrorRecord, values: ValueCodec) -> Exception:
    """The exception again, of its own class if that can be made from what was recorded."""
    state: Any = values.decode(record.state) or [[], {}]
    return put_together(record.type, record.message, *state)


_MARK = "__accord_ends__"


def mark(error: BaseException, log: Log, *ends: int) -> None:
    """``error`` came out of calls or joins of this run that ended with the events ``ends``."""
    with suppress(Exception):  # a class that takes no attributes
        setattr(error, _MARK, (log, ends))


def failures_in_flight(log: Log) -> tuple[int, ...]:
    """The recorded failures that the running code, in an ``except`` or ``finally``, deals with."""
    error = sys.exc_info()[1]
    return () if error is None else ends_in(error, log)


def ends_in(error: BaseException, log: Log) -> tuple[int, ...]:
    """The marks on ``error``, on what it was raised from, and on what it groups.

    Not on its context: an error that came up while another was handled is another's failure.
    """
    found: set[int] = set()
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        of, ends = getattr(each, _MARK, (None, ()))
        if of is log:
            found.update(ends)
        waiting.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("list[BaseException]", list(each.exceptions))
    return tuple(sorted(found))
