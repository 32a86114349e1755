"""Exceptions as the log holds them."""

from __future__ import annotations

from accord.errors import UnserializableError
from accord.log.codec import ValueCodec, printable
from accord.log.events import NOTHING, ErrorRecord
from accord.log.types import make_error, type_name


def record_error(error: BaseException, values: ValueCodec) -> ErrorRecord:
    """``error`` as plain data; its arguments too, where the log can hold them."""
    try:
        args = values.encode(list(error.args)) if error.args else NOTHING
    except UnserializableError:
        args = NOTHING
    return ErrorRecord(type=type_name(type(error)), message=printable(str(error)), args=args)


def rebuild_error(record: ErrorRecord, values: ValueCodec) -> Exception:
    """The exception again, of its own class if that can be made from what was recorded."""
    return make_error(record.type, record.message, values.decode(record.args) or [])
