"""The inputs of a flow from the command line: files, stdin and plain texts, in their order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from accord.errors import UsageError


class Given(NamedTuple):
    """One input as it was given. ``value`` is a path, ``-`` for stdin, or the text itself."""

    option: str
    value: str


def read_inputs(given: Sequence[Given]) -> list[str]:
    """The texts. Raises ``UsageError`` that names the file and what is wrong with it."""
    if sum(each == ("--input", "-") for each in given) > 1:
        raise UsageError("stdin can be one input only; give the others as files (--input FILE)")
    return [each.value if each.option == "--text" else _read(each.value) for each in given]


def value_of(text: str) -> Any:
    """What a value on the command line means: JSON, or else the text as it stands."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _read(path: str) -> str:
    where = "stdin" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        msg = f"the input {where} cannot be read ({reason}); check the path given to --input"
        raise UsageError(msg) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = (
            f"the input {where} is not UTF-8 text (byte 0x{data[error.start]:02x} at position "
            f"{error.start}); convert it first, for instance with iconv -t UTF-8"
        )
        raise UsageError(msg) from error
