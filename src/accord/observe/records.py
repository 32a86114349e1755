"""The records in a file of JSON: where each stands, who wrote it and when, and what it says.

A file is a value a line, an array, or one value over many lines. What is broken (no UTF-8, no JSON,
no object or text where one is expected) is a :class:`BrokenError` that names its place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from accord.engine.shapes import items, mapping, string

KNOWN = (
    'Known are: {"history": [{content, role, name?}]} (Who&When); {"messages": [...], response?, '
    "usage?, model?} a line (OpenAI chat); {run, agent, time?, messages or content} a line or in "
    "an array."
)
LONGEST_LINE = 64 << 20
"""Bytes; a longer line is no message."""
_TEXTS = ("text", "input_text", "output_text")


class BrokenError(Exception):
    """``where`` in the file something is broken (empty for all of it), and ``what`` is wrong."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


def values_in(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each value stands, and the value: a line each, or all of a file that is one."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise BrokenError("", f"the file is empty. {KNOWN}")
    number, text = first
    try:
        value = _parse(text, number)
    except BrokenError:
        yield from _expanded("", _document(number, text, lines))
        return
    second = next(lines, None)
    if second is None:
        yield from _expanded("" if number == 1 else f"line {number}", value)
        return
    yield f"line {number}", value
    for at, line in (second, *lines):
        yield f"line {at}", _parse(line, at)


def _expanded(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list):
        yield where, value
    elif not value:
        raise BrokenError(where, f"the array is empty. {KNOWN}")
    else:
        listed = enumerate(cast("list[Any]", value), 1)
        yield from ((f"item {number}", item) for number, item in listed)


def _document(number: int, text: str, more: Iterable[tuple[int, str]]) -> Any:
    """A value over many lines; else what is wrong with it, or with the first of many values."""
    lines, size = [*[""] * (number - 1), text], len(text)
    for at, line in more:
        lines += [*[""] * (at - len(lines) - 1), line]
        size += len(line)
        if size > LONGEST_LINE:
            break
    try:
        return _parse("\n".join(lines), 1)
    except BrokenError as error:
        second = next(filter(None, lines[number:]), "")
        try:
            stands_alone = isinstance(json.loads(second), dict)
        except (ValueError, RecursionError):
            stands_alone = False
        if stands_alone:
            _parse(text, number)  # raises what is wrong with that line
        raise error from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(data) > LONGEST_LINE:
                    most = f"more than {LONGEST_LINE >> 20} MiB in one line"
                    raise BrokenError(f"line {number}", f"{most}; split the log into lines")
                if text := _decoded(data, number).strip():
                    yield number, text
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokenError("", f"it cannot be read ({reason}); name a file of messages") from error


def _decoded(data: bytes, number: int) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at position {error.start}"
        advice = "convert the file first, for instance with iconv -t UTF-8"
        raise BrokenError(f"line {number}", f"not UTF-8 text ({found}); {advice}") from error


def _parse(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = number + error.lineno - 1
        what = f"not JSON ({error.msg}, column {error.colno}: {_cut(text[error.pos :])})"
        advice = KNOWN if at == 1 else "Mend or remove it"
        raise BrokenError(f"line {at}", f"{what}. {advice}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise BrokenError(f"line {number}", f"JSON that cannot be read: {reason}") from error


def _cut(text: str) -> str:
    return repr(text[:20] + "…" if len(text) > 20 else text) if text else "the end"


def writer_of(record: Mapping[str, Any], where: str) -> str:
    """Who wrote a message: by agent or name, else by role, of which ``(thought)`` is no part."""
    named = record.get("agent") or record.get("name")
    if named:
        return name_of(named, where)
    return name_of(record.get("role"), where).partition(" (")[0]


def name_of(value: Any, where: str) -> str:
    """``value`` as a name, on one line."""
    if not isinstance(value, str) or not value.strip():
        raise BrokenError(where, f"who wrote it is {kind_of(value)}; a name was expected")
    return " ".join(value.split())


def moment_of(time: Any) -> float | None:
    """``time`` in seconds, if it is one: a number, or as ISO 8601 writes it."""
    try:
        if isinstance(time, int | float):
            return float(time)
        return datetime.fromisoformat(string(time)).timestamp()
    except (ValueError, OverflowError):
        return None


def text_of(message: Any, where: str, not_counted: Counter[str]) -> str:
    """All texts of a message, and the calls in it as a model reads them.

    Parts that are no text are added to ``not_counted``, by kind.
    """
    record = mapping(message)
    texts = _parts(record.get("content"), where, not_counted)
    for call in items(record.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        arguments = function.get("arguments", "")
        told = arguments if isinstance(arguments, str) else json.dumps(arguments)
        texts.append(f"{string(function.get('name'))}({told})")
    return "\n".join(texts)


def _parts(content: Any, where: str, not_counted: Counter[str]) -> list[str]:
    match content:
        case None:
            return []
        case str():
            return [content]
        case list():
            parts = cast("list[Any]", content)
            found = [_part(part, where, not_counted) for part in parts]
            return [text for text in found if text is not None]
        case _:
            expected = "a text, a list of parts or null was expected"
            raise BrokenError(where, f"content is {kind_of(content)}; {expected}")


def _part(part: Any, where: str, not_counted: Counter[str]) -> str | None:
    if isinstance(part, str):
        return part
    kind, text = object_of(part, where).get("type"), mapping(part).get("text")
    if kind in _TEXTS and isinstance(text, str):
        return text
    not_counted[string(kind) or "part without a type"] += 1
    return None


def object_of(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` as an object."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise BrokenError(where, f"{kind_of(value)} stands where a message was expected")


def described(value: Any) -> str:
    """What a value is that holds no message."""
    keys = list(mapping(value))
    if not keys:
        return kind_of(value)
    shown = ", ".join(key[:30] for key in keys[:8])
    return f"an object with {shown}{', …' if len(keys) > 8 else ''}"


def kind_of(value: Any) -> str:
    """What a value is that is not what was expected."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value.strip() else "an empty text"
        case list():
            return "an array"
        case _:
            return "an object"
