'''JSON values in lines: a member a line, records as a table, long texts as they stand.

What it promises is that :func:`read` gives back exactly what :func:`write` was given, and that
a model can read it untold::

    title: Heat pumps
    plan:
     sections[2]: name|words|owner/name
     Costs|400|Ada
     Noise|250|
    note: """He said "quiet",
    and meant it."""

A member of an object is ``name: value``, or its own lines one space deeper. A list is
``name[length]:`` and its items, one a line, or one space deeper behind a line ``-``. If they are
records, the names of their fields stand once behind the colon (of a field within a field: the path
to it), and a field that a record lacks is left empty. Texts stand bare where they cannot be taken
for something else, raw in three quotes if they have several lines, else as in JSON, as does the
rest.

The model for it was TOON. It escapes the lines of a text, has no table of records that lack a
field or have objects in them, and its Python library gives 0.0 back as 0.
'''

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeGuard, cast

_NAME = re.compile(r"[\w.-]+(?: [\w.-]+)*")
_HEAD = re.compile(r"(?:\[(?P<length>[0-9]+)\])?:(?P<end> |\n)")
_CELL = re.compile(r"[^|\r\n]*")
_LINE = re.compile(r"[^\r\n]*")
_SCALAR = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity"
)
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_json_at = json.JSONDecoder().raw_decode

Count = Callable[[str], int]
Container = dict[str, Any] | list[Any]
Record = dict[tuple[str, ...], Any]
"""A row of a table: its values by their paths."""


def compact(value: Any) -> str:
    """``value`` as JSON without spaces, in UTF-8's characters; lone surrogates are escaped."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):x}", _json(value))


def write(value: Container, count: Count) -> str:
    """``value``, which is not empty, in lines; parts whose JSON has no more tokens are JSON."""
    return _lines(value, count, "")


def read(text: str) -> Any:
    """What :func:`write` was given; raises ValueError for a text that is not its."""
    return _Reader(text).whole()


def is_container(value: Any) -> TypeGuard[Container]:
    """Whether ``value`` has members or items to be written in lines."""
    return isinstance(value, dict | list) and bool(cast("Container", value))


def _lines(value: Container, count: Count, indent: str) -> str:
    if isinstance(value, list):
        return _array("", value, count, indent)
    return "\n".join(_member(_name(key), item, count, indent) for key, item in value.items())


def _member(name: str, value: Any, count: Count, indent: str) -> str:
    inline = f"{indent}{name}: {_text(value, _LINE)}"
    if not is_container(value):
        return inline
    if isinstance(value, list):
        return min(inline, _array(name, value, count, indent), key=count)
    return min(inline, f"{indent}{name}:\n{_lines(value, count, indent + ' ')}", key=count)


def _array(name: str, items: list[Any], count: Count, indent: str) -> str:
    head = f"{indent}{name}[{len(items)}]:"
    records = _records(items)
    columns = _columns(records)
    if columns and all(_is_full(record, columns) for record in records):
        return _table(head, records, columns, indent)
    listed = "\n".join([head, *(_item(item, count, indent) for item in items)])
    return min(listed, _table(head, records, columns, indent), key=count) if columns else listed


def _is_full(record: Record, columns: list[tuple[str, ...]]) -> bool:
    """Whether a table suits it so well that nothing else need be tried."""
    return len(record) == len(columns) and not any(map(is_container, record.values()))


def _table(head: str, records: list[Record], columns: list[tuple[str, ...]], indent: str) -> str:
    names = "|".join("/".join(map(_name, path)) for path in columns)
    return "\n".join([f"{head} {names}", *(indent + _row(record, columns) for record in records)])


def _item(value: Any, count: Count, indent: str) -> str:
    inline = indent + _text(value, _LINE)
    if not is_container(value):
        return inline
    return min(inline, f"{indent}-\n{_lines(value, count, indent + ' ')}", key=count)


def _records(items: list[Any]) -> list[Record]:
    """The items as rows, if all are objects; objects inside give their members to the row."""
    if not all(is_container(item) and isinstance(item, dict) for item in items):
        return []
    records: list[Record] = [{(key,): value for key, value in item.items()} for item in items]
    while opened := _only_objects(records):
        records = [_opened(record, opened) for record in records]
    return records


def _only_objects(records: list[Record]) -> set[tuple[str, ...]]:
    """The paths at which there is an object in each record that has them."""
    cells = [cell for record in records for cell in record.items()]
    others = {path for path, value in cells if not (value and isinstance(value, dict))}
    return {path for path, _ in cells} - others


def _opened(record: Record, paths: set[tuple[str, ...]]) -> Record:
    opened: Record = {}
    for path, value in record.items():
        opened |= {(*path, key): v for key, v in value.items()} if path in paths else {path: value}
    return opened


def _columns(records: list[Record]) -> list[tuple[str, ...]]:
    """All paths, in an order that each record keeps; none if there is no such order."""
    longest_first = sorted(records, key=len, reverse=True)
    columns = list(dict.fromkeys(path for record in longest_first for path in record))
    places = {path: place for place, path in enumerate(columns)}
    kept = all(list(record) == sorted(record, key=places.__getitem__) for record in records)
    return columns if kept else []


def _row(record: Record, columns: list[tuple[str, ...]]) -> str:
    return "|".join(_text(record[path], _CELL) if path in record else "" for path in columns)


def _text(value: Any, bare: re.Pattern[str]) -> str:
    """``value`` within a line; a text may stand bare if ``bare`` matches all of it."""
    if not isinstance(value, str) or _UNSEEN.search(value):
        return compact(value)
    if bare.fullmatch(value) and _is_plain(value):
        return value
    if "\n" in value and '"""' not in value and not value.endswith('"'):
        return f'"""{value}"""'
    return compact(value)


def _is_plain(text: str) -> bool:
    """Whether ``text`` cannot be taken for anything but itself."""
    told = text == text.strip() and text[:1] not in '"{[' and text != "-"
    return told and not _SCALAR.fullmatch(text)


def _name(key: str) -> str:
    return key if _NAME.fullmatch(key) else compact(key)


class _Reader:
    """Goes through a text once; ``at`` is the place of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def whole(self) -> Any:
        value = self.lines("")
        if self.at < len(self.text):
            raise self.unexpected()
        return value

    def lines(self, indent: str) -> Any:
        head = _HEAD.match(self.text, self.at + len(indent))
        if head and head["length"]:
            self.skip(indent)
            return self.array(indent)
        return self.object(indent)

    def object(self, indent: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.at < len(self.text) and self.text.startswith(indent, self.at):
            self.skip(indent)
            name = self.name()
            found[name] = self.member(indent)
        return self.not_empty(found)

    def member(self, indent: str) -> Any:
        head = _HEAD.match(self.text, self.at)
        if head and head["length"]:
            return self.array(indent)
        if self.taken(":\n"):
            return self.lines(indent + " ")
        self.skip(": ")
        return self.rest_of_line()

    def array(self, indent: str) -> list[Any]:
        head = _HEAD.match(self.text, self.at)
        assert head
        self.at = head.end()
        columns = self.columns() if head["end"] == " " else []
        items: list[Any] = []
        for _ in range(int(head["length"])):
            self.skip(indent)
            items.append(self.row(columns) if columns else self.item(indent))
        return items

    def columns(self) -> list[list[str]]:
        paths = [self.path()]
        while self.taken("|"):
            paths.append(self.path())
        self.end_line()
        return paths

    def path(self) -> list[str]:
        names = [self.name()]
        while self.taken("/"):
            names.append(self.name())
        return names

    def row(self, columns: list[list[str]]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for place, (*above, name) in enumerate(columns):
            if place:
                self.skip("|")
            if self.text[self.at : self.at + 1] not in ("", "|", "\n"):
                inner = record
                for key in above:
                    inner = inner.setdefault(key, {})
                inner[name] = self.value(_CELL)
        self.end_line()
        return self.not_empty(record)

    def item(self, indent: str) -> Any:
        return self.lines(indent + " ") if self.taken("-\n") else self.rest_of_line()

    def rest_of_line(self) -> Any:
        value = self.value(_LINE)
        self.end_line()
        return value

    def value(self, bare: re.Pattern[str]) -> Any:
        if self.taken('"""'):
            return self.raw()
        if self.text[self.at : self.at + 1] in ('"', "{", "["):
            return self.json()
        found = self.take(bare)
        return json.loads(found) if _SCALAR.fullmatch(found) else found

    def raw(self) -> str:
        start, end = self.at, self.text.index('"""', self.at)
        self.at = end + 3
        return self.text[start:end]

    def json(self) -> Any:
        value, self.at = _json_at(self.text, self.at)
        return value

    def name(self) -> str:
        return self.json() if self.text.startswith('"', self.at) else self.take(_NAME)

    def not_empty(self, found: dict[str, Any]) -> dict[str, Any]:
        """Empty ones are written as JSON, so here the text has ended too early."""
        if not found:
            raise self.unexpected()
        return found

    def take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if not found or not found.group():
            raise self.unexpected()
        self.at = found.end()
        return found.group()

    def taken(self, what: str) -> bool:
        """Whether ``what`` comes next; if so, goes past it."""
        found = self.text.startswith(what, self.at)
        self.at += len(what) * found
        return found

    def skip(self, what: str) -> None:
        if not self.taken(what):
            raise self.unexpected()

    def end_line(self) -> None:
        if self.at < len(self.text):
            self.skip("\n")

    def unexpected(self) -> ValueError:
        line = self.text.count("\n", 0, self.at) + 1
        return ValueError(f"line {line} cannot be read: {self.text[self.at : self.at + 40]!r}")
