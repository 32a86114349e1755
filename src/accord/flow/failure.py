"""Exceptions to and from the log."""

from __future__ import annotations

from typing import Any

from accord.errors import UnserializableError
from accord.log.codec import ValueCodec, printable
from accord.log.events import ErrorRecord
from accord.log.failure import put_together, take_apart, text_of


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
