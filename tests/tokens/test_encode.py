"""Values in a prompt: nothing lost, nothing added, and no more tokens than JSON needs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from accord.errors import UnserializableError, UsageError
from accord.tokens.count import estimate
from accord.tokens.encode import decode, encode, estimate_json, from_wire, plain, to_wire
from accord.tokens.table import compact, read, write

LIKE_SOMETHING_ELSE = (
    *("", " a", "a ", "a\n", "\n", "\t", "a\tb", "a\r\nb", "\x00", "x\x85", "\u2028", "a\u2028b"),
    *("1", "-0", "1e5", "1.50", "true", "null", "NaN", "-Infinity", "007", "²", "١"),
    *("a|b", "a,b", "a: b", "a:", ":", "a/b", "-", "- a", "-\n a", "[1]", "[1]:", "{a", "a[2]: b"),
    *('"', '""', '"""', '"a', 'a"', 'a\n"', 'a"""\nb', '"a\nb', "a\\nb", "日本語", "🌟", "é b"),
)
TEXTS = st.sampled_from(LIKE_SOMETHING_ELSE) | st.text(max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
KEYS = ["a", "b c", "d/e", "", "1"]


def _records(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    record = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, items))
    return st.lists(record, max_size=3)


VALUES = st.recursive(
    SCALARS,
    lambda items: (
        st.lists(items, max_size=4) | st.dictionaries(TEXTS, items, max_size=4) | _records(items)
    ),
    max_leaves=10,
)
CONTAINERS = VALUES.filter(lambda value: isinstance(value, dict | list) and bool(value))


def _same(one: Any, other: Any) -> bool:
    """Equal in classes and in the order of members, too."""
    return repr(one) == repr(other)


@given(VALUES)
def test_what_was_encoded_comes_back(value: Any) -> None:
    assert isinstance(value, str) or _same(decode(encode(value)), value)


@given(CONTAINERS)
def test_each_form_comes_back_wherever_it_is_chosen(value: Any) -> None:
    fewest_lines, most_lines = (lambda text: text.count("\n")), (lambda text: -text.count("\n"))
    for count in (fewest_lines, most_lines, len, lambda text: -len(text)):
        lines = write(value, count)
        assert _same(read(lines), value)
        assert _same(decode(lines), value)


@given(
    VALUES.filter(lambda value: not isinstance(value, str)),
    st.sampled_from([estimate, estimate_json, len]),
)
def test_never_larger_than_compact_json(value: Any, count: Callable[[str], int]) -> None:
    assert count(encode(value, count)) <= count(compact(value))


@given(TEXTS)
def test_a_text_is_its_own_encoding(text: str) -> None:
    assert encode(text) == text


@given(VALUES)
def test_equal_values_give_equal_texts(value: Any) -> None:
    assert encode(value) == encode(json.loads(json.dumps(value)))


@pytest.mark.parametrize("value", [{"r": "日本語テキスト🌟"}, [{"描述": "工具"}, {"描述": "🌟"}]])
def test_no_character_is_escaped(value: Any) -> None:
    """TOK-11: an escape costs two to six times the tokens."""
    assert "\\u" not in encode(value)
    assert "\\u" not in compact(value)
    assert len(compact({"r": "日本語テキスト🌟"})) == len('{"r":""}') + 8


def test_only_what_the_value_holds_is_written() -> None:
    """TOK-15: no class, module, id or metadata of a message reaches the prompt."""
    findings = [Finding(claim="Noise is low", confidence=0.9), Finding(claim="No", confidence=0.5)]
    assert encode(findings) == "[2]: claim|confidence\nNoise is low|0.9\nNo|0.5"


def test_a_lone_surrogate_reaches_an_engine_escaped() -> None:
    for value in ({"a": "\ud800"}, ["x\n\udfff"], {"\ud800": 1}):
        assert encode(value).encode()
        assert decode(encode(value)) == value


def test_records_are_written_as_a_table() -> None:
    findings = [
        {"claim": "Noise stays under 45 dB(A)", "source": "data sheets", "confidence": 0.65},
        {"claim": "Owners are content, mostly", "source": "a survey", "confidence": 0.8},
        {"claim": "No unit costs\nmore", "confidence": None},
    ]
    assert encode({"topic": "Heat pumps", "findings": findings, "open": []}) == (
        "topic: Heat pumps\n"
        "findings[3]: claim|source|confidence\n"
        "Noise stays under 45 dB(A)|data sheets|0.65\n"
        "Owners are content, mostly|a survey|0.8\n"
        '"""No unit costs\nmore"""||null\n'
        "open: []"
    )


def test_objects_within_records_share_their_table() -> None:
    said = [{"from": f"worker {i}", "content": {"page": i, "ok": True}} for i in range(3)]
    assert encode(said) == (
        "[3]: from|content/page|content/ok\nworker 0|0|true\nworker 1|1|true\nworker 2|2|true"
    )


def test_what_is_no_table_is_written_in_deeper_lines() -> None:
    value = [{"plan": {"title": "A long way", "steps": ["one\ntwo"]}}, {"note": 'say "a\nb" now'}]
    assert write(value, lambda text: -text.count("\n")) == (
        '[2]:\n-\n plan:\n  title: A long way\n  steps[1]:\n  """one\ntwo"""\n'
        '-\n note: """say "a\nb" now"""'
    )


@pytest.mark.parametrize(
    "text", ["Dear all", "a: b\nc", "[2]: a\n1", "[1]:\n1\n2", "{", 'a: """b', "a:\n"]
)
def test_what_encode_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not what encode writes"):
        decode(text)


# ---------------------------------------------------------------------------------------- plain


class Mood(StrEnum):
    GOOD = "good"


class Level(Enum):
    HIGH = 3


class Finding(pydantic.BaseModel):
    claim: str
    confidence: float


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    deep: bool


class Task(msgspec.Struct, tag="task", rename="camel", omit_defaults=True):
    due_on: date
    notes: list[str] = []
    retries: int = 0


@dataclasses.dataclass
class Box:
    content: Any


def _message_class() -> Any:
    """A Protobuf class as `protoc` would make it of `message Note { string text; int32 n; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="note.proto", package="notes", syntax="proto3")
    note = file.message_type.add(name="Note")
    note.field.add(name="the_text", number=1, type=9, label=1)
    note.field.add(name="pages", number=2, type=5, label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("notes.Note"))


Note = _message_class()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Finding(claim="a", confidence=1), {"claim": "a", "confidence": 1.0}),
        (Box(Box(Mood.GOOD)), {"content": {"content": "good"}}),
        (Task(date(2026, 1, 2)), {"type": "task", "dueOn": "2026-01-02"}),
        (
            Task(date(2026, 1, 2), ["n"], 1),
            {"type": "task", "dueOn": "2026-01-02", "notes": ["n"], "retries": 1},
        ),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Options(deep=True), {"deep": True}),
        (
            {Level.HIGH: 1, 2: 2, None: 3, date(2026, 1, 2): 4},
            {"3": 1, "2": 2, "null": 3, "2026-01-02": 4},
        ),
        ((Decimal("1.50"), timedelta(hours=1), b"\xff"), ["1.50", "PT3600S", "/w=="]),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([PurePosixPath("a/b"), 10**30, {"b", "a"}], ["a/b", 10**30, ["a", "b"]]),
        (
            Box([Note(the_text="日本", pages=[1, 2])]),
            {"content": [{"the_text": "日本", "pages": [1, 2]}]},
        ),
    ],
)
def test_typed_messages_become_plain_data(value: Any, expected: Any) -> None:
    found = plain(value)
    assert _same(found, expected)
    assert _same(plain(found), expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "^value is a object, "),
        (Box({"k": [1, Point(1, object())]}), r"^value\.content\['k'\]\[1\]\.y is a object, "),  # pyright: ignore[reportArgumentType]
        ([{1: 1, "1": 2}], r"^value\[0\] has two keys that are written '1'"),
        ({(1, 2): 1}, "^a key of value "),
        (Finding, "^value is a ModelMetaclass, "),
    ],
)
def test_what_has_no_plain_form_is_named_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(UnserializableError, match=message):
        encode(value)


def test_what_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnserializableError, match="contains itself"):
        encode(endless)


# ---------------------------------------------------------------------------------------- wire


def test_a_message_comes_back_from_the_wire() -> None:
    note = Note(the_text="日本", pages=[3, 1])
    assert from_wire(Note, to_wire(note)) == note


def test_only_messages_have_a_wire_form() -> None:
    with pytest.raises(UnserializableError, match="the message is a dict"):
        to_wire({"a": 1})
    with pytest.raises(UsageError, match="dict is no class of Protobuf"):
        from_wire(dict, b"")
    with pytest.raises(UsageError, match="2 bytes are no Note"):
        from_wire(Note, b"\x0a\xff")
