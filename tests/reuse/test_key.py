"""What makes a result another: everything that it depends on, and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accord.engine.base import Message, Request, ToolCall, ToolSpec
from accord.reuse.key import IRRELEVANT, request_key, tagged, tool_key

CALL = ToolCall("id", "look", '{"at": 1}')
SPEC = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}})
MESSAGES = (
    Message("system", "Be brief."),
    Message("user", "q"),
    Message("assistant", "well", tool_calls=(CALL,)),
    Message("tool", "found", tool_call_id="id"),
)
REQUEST = Request(
    messages=MESSAGES,
    agent="a",
    model="m",
    max_tokens=5,
    temperature=0.5,
    seed=1,
    stop=("x",),
    tools=(SPEC,),
    schema={"type": "object", "required": ["x"]},
    extra={"num_ctx": 8, "deep": {"list": [1, {"x": None}]}},
    priority=3,
)


def with_message(index: int, **changes: Any) -> tuple[Message, ...]:
    messages = list(MESSAGES)
    messages[index] = replace(messages[index], **changes)
    return tuple(messages)


OTHERS: dict[str, list[Any]] = {
    "messages": [
        MESSAGES[1:],
        MESSAGES[::-1],
        (*MESSAGES, Message("user", "more")),
        with_message(0, role="user"),
        with_message(1, content="Q"),
        with_message(1, content=""),
        with_message(2, tool_calls=()),
        with_message(2, tool_calls=(CALL, CALL)),
        with_message(2, tool_calls=(replace(CALL, id="other"),)),
        with_message(2, tool_calls=(replace(CALL, name="find"),)),
        with_message(2, tool_calls=(replace(CALL, arguments='{"at":1}'),)),
        with_message(3, tool_call_id="other"),
        with_message(3, tool_call_id=None),
        with_message(3, content="found\ud800"),
    ],
    "model": [None, "", "M"],
    "max_tokens": [None, 0, 6],
    "temperature": [None, 0.0, 0, 1, 1.0, 0.5000001, float("nan")],
    "seed": [None, 0, 2, True, 1.0],
    "stop": [(), ("y",), ("x", "y"), ("xy",)],
    "tools": [
        (),
        (SPEC, SPEC),
        (replace(SPEC, name="find"),),
        (replace(SPEC, description=""),),
        (replace(SPEC, parameters={**SPEC.parameters, "properties": {"at": {}}}),),
    ],
    "schema": [None, {}, {"type": "object"}, {"type": "object", "required": ["y"]}],
    "extra": [
        {},
        {"num_ctx": 8},
        {"num_ctx": 9, "deep": {"list": [1, {"x": None}]}},
        {"num_ctx": "8", "deep": {"list": [1, {"x": None}]}},
        {"num_ctx": 8.0, "deep": {"list": [1, {"x": None}]}},
        {"num_ctx": 8, "deep": {"list": [True, {"x": None}]}},
        {"num_ctx": 8, "deep": {"list": [1.0, {"x": None}]}},
        {"num_ctx": 8, "deep": {"list": ["1", {"x": None}]}},
        {"num_ctx": 8, "deep": {"list": [1, {"x": float("nan")}]}},
        {"num_ctx": 8, "deep": {"list": [1, {"x": False}]}},
        {"num_ctx": 8, "deep": {"list": [{"x": None}, 1]}},
        {"num_ctx": 8, "deep": {"list": [1, {"y": None}]}},
    ],
}


def key_of(request: Request, tenant: str = "t", engine: str = "e", model: str = "m") -> bytes:
    key = request_key(request, tenant, engine, model)
    assert key is not None
    return key


def test_whatever_field_of_a_request_differs_its_key_does() -> None:
    """CAC-2: a field added to Request, and not here, is a failure here."""
    assert OTHERS.keys() == set(Request.__struct_fields__) - set(IRRELEVANT)
    changed = [replace(REQUEST, **{name: each}) for name, given in OTHERS.items() for each in given]
    keys = [key_of(each) for each in (REQUEST, *changed)]
    for (one, mine), (other, yours) in combinations(enumerate(keys), 2):
        assert mine != yours, (one, other)


def test_who_asks_and_how_urgently_is_no_difference() -> None:
    assert key_of(replace(REQUEST, agent="b", priority=-1)) == key_of(REQUEST)


def test_every_field_of_a_message_that_reaches_the_wire_is_part_of_it() -> None:
    """The others are for the ledger and for the history."""
    assert set(Message.__struct_fields__) - {"origin", "kept"} == {
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
    }
    told = with_message(1, origin="board", kept=False)
    assert key_of(replace(REQUEST, messages=told)) == key_of(REQUEST)


def test_parts_of_one_role_are_one_message_as_on_the_wire() -> None:
    parts = Request(messages=(Message("user", "a"), Message("user", "b")))
    whole = Request(messages=(Message("user", "a\n\nb"),))
    assert key_of(parts) == key_of(whole)


def test_tenant_engine_and_model_are_part_of_it_and_do_not_run_together() -> None:
    """CAC-7."""
    ways = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"), ("a", "", "bc")]
    assert len({key_of(REQUEST, *way) for way in ways}) == len(ways)


def test_equal_requests_have_equal_keys_however_they_were_made() -> None:
    body = msgspec.msgpack.encode(REQUEST)
    assert key_of(msgspec.msgpack.decode(body, type=Request)) == key_of(REQUEST)
    assert key_of(replace(REQUEST, stop=["x"])) == key_of(REQUEST)


@pytest.mark.parametrize("strange", [object(), {1, 2}, asyncio.sleep])
def test_what_is_no_plain_data_has_no_key(strange: Any) -> None:
    assert request_key(replace(REQUEST, extra={"x": [strange]}), "", "", "") is None


def test_what_contains_itself_has_no_key() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert request_key(replace(REQUEST, extra={"x": endless}), "", "", "") is None


# ---------------------------------------------------------------------- what is written can be read

words = st.sampled_from(["", "a", "1", "n", "s1:a", "l2:", "ToolCall", ";", "\ud800", "日"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2) | st.integers(),
    st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, 1.0]),
    words,
    st.binary(max_size=3),
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words, inner, max_size=3)
        | st.builds(ToolCall, words, words, words)
    ),
    max_leaves=12,
)


@given(values)
def test_what_is_written_can_be_read_so_no_two_values_are_written_alike(value: Any) -> None:
    written = tagged(value)
    found, end = read(written, 0)
    assert end == len(written)
    assert repr(found) == repr(value)


@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_values_have_the_same_key_just_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (tagged(one) == tagged(other)) == (repr(one) == repr(other))


def read(written: bytes, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where it ends."""
    kind, at = written[at : at + 1], at + 1
    match kind:
        case b"n":
            return None, at
        case b"b":
            return written[at : at + 1] == b"1", at + 1
        case b"i" | b"f":
            end = written.index(b";", at)
            text = written[at:end].decode()
            return (int(text) if kind == b"i" else float.fromhex(text)), end + 1
        case b"o":
            name, at = read(written, at)
            fields, at = read(written, at)
            assert name == "ToolCall"
            return ToolCall(**fields), at
        case _:
            end = written.index(b":", at)
            return read_sized(written, kind, int(written[at:end]), end + 1)


def read_sized(written: bytes, kind: bytes, size: int, at: int) -> tuple[Any, int]:
    if kind in b"sy":
        raw = written[at : at + size]
        return (raw.decode("utf-8", "surrogatepass") if kind == b"s" else raw), at + size
    found: list[Any] = []
    for _ in range(size if kind == b"l" else 2 * size):
        value, at = read(written, at)
        found.append(value)
    return (found if kind == b"l" else dict(zip(found[::2], found[1::2], strict=True))), at


# -------------------------------------------------------------------------------------------- tools


def load(document: str, tenant: str = "") -> str:
    return document + tenant


class HandlerA:
    @staticmethod
    def handle(text: str) -> str:
        return text


class HandlerB:
    @staticmethod
    def handle(text: str) -> str:
        return text

    def bound(self, text: str) -> str:
        return text


def test_the_arguments_of_a_tool_do_not_run_together() -> None:
    """CAC-7."""
    one = tool_key(load, {"document": "doc1", "tenant": "acme"}, "")
    other = tool_key(load, {"document": "doc1str:orgstr:acme", "tenant": ""}, "")
    assert None is not one != other


def test_functions_of_one_name_and_one_code_are_two() -> None:
    """CAC-5."""
    assert tool_key(HandlerA.handle, {}, "") != tool_key(HandlerB.handle, {}, "")


def test_what_is_called_for_another_tenant_is_another_call() -> None:
    assert tool_key(load, {}, "a") != tool_key(load, {}, "b")


def test_what_is_more_than_its_code_has_no_key() -> None:
    for each in (HandlerB().bound, cache(load), print, HandlerA):
        assert tool_key(each, {}, "") is None

    def closure_over(value: object) -> object:
        return lambda: value

    assert tool_key(closure_over(HandlerA()), {}, "") is None
    keys = [tool_key(closure_over(each), {}, "") for each in (1, 2, "1", 1)]
    assert len(set(keys)) == 3
    assert None not in keys


def test_an_argument_that_is_no_plain_data_gives_no_key() -> None:
    assert tool_key(load, {"document": HandlerA()}, "") is None


PLAIN = """
from functools import cache, wraps
RATE = 2
PRICES = {"a": 1}
def shouted(function):
    @wraps(function)
    def inner(x): return function(x)
    return inner
def helper(x, more=1): return deeper(x) + more
@cache
def deeper(x): return deepest(x)
@shouted
def deepest(x): return helper(x) if x > 9 else x
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
ALLOWED = {1, 2}
NAMES = re.compile("^a+$")
@dataclass
class Settings:
    limit: int
SETTINGS = Settings(limit=3)
RATE_OF = partial(round, ndigits=1)
SHARE = Decimal("1.5")
class Level(Enum):
    LOW = 1
class Scale:
    def __init__(self, by): self.by = by
    def of(self, x): return self.by * x
plus = lambda x: x + 1
times = lambda x: x * 2
def made(by):
    def scaled(x): return by * x
    return scaled
SCALED = made(5)
def one(listed): return listed
TABLE = {"one": one, "settings": [Settings(limit=7)], "nested": {"a": {1, 2}}}
class Base:
    def go(self): return self.base
class Derived(Base):
    base = 1
LONG = re.compile('a' * 250 + 'b')
def uses(x):
    if x in TABLE: return TABLE[x](x), Derived().go(), LONG
    if x in ALLOWED and NAMES.match(str(x)): return Level.LOW, Scale(2).of(x)
    return SETTINGS.limit, RATE_OF(x), SHARE, plus(times(x)), SCALED(x)
def answer(x):
    if x is None: return uses(x)
    if x in {"a", "b", "c"}:
        return PRICES[x]
    return [helper(each) for each in range(x * RATE)]
"""


def key_in(text: str, folder: Path) -> bytes | None:
    """Of the function ``answer`` in a file with that text."""
    path = folder / "tools.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("tools", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tools", module)  # where dataclasses look
        exec(compile(text, str(path), "exec"), vars(module))
    answer: Callable[..., Any] = module.answer
    return tool_key(answer, {"x": 1}, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * RATE", "x + RATE"),
        ('"c"}:', '"d"}:'),
        ("RATE = 2", "RATE = 2.0"),
        ('{"a": 1}', '{"a": 2}'),
        ("+ more", "- more"),
        ("more=1", "more=2"),
        ("return deepest(x)", "return deepest(x + 1)"),
        ("x > 9", "x > 8"),
        ("ALLOWED = {1, 2}", "ALLOWED = {1, 3}"),
        ("^a+$", "^b+$"),
        ("limit=3", "limit=4"),
        ("partial(round, ndigits=1)", "partial(round, ndigits=2)"),
        ('"1.5"', '"1.6"'),
        ("LOW = 1", "LOW = 2"),
        ("self.by * x", "self.by + x"),
        ("times = lambda x: x * 2", "times = lambda x: x * 3"),
        ("made(5)", "made(6)"),
        ("return listed", "return 2 * listed"),
        ("Settings(limit=7)", "Settings(limit=8)"),
        ("return self.base", "return 2 * self.base"),
        ("'a' * 250", "'b' * 250"),
    ],
)
def test_a_tool_whose_code_was_mended_or_what_it_uses_is_another(
    old: str, new: str, tmp_path: Path
) -> None:
    assert old in PLAIN
    before = key_in(PLAIN, tmp_path)
    assert before is not None
    assert key_in(PLAIN.replace(old, new), tmp_path) != before
    assert key_in(PLAIN + "\ndef unused(): pass\n", tmp_path) == before


def test_keys_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Whatever order its sets have there."""
    program = (
        "import sys; from pathlib import Path; from tests.reuse.test_key import *\n"
        "print(key_in(PLAIN, Path(sys.argv[1])).hex(), key_of(REQUEST).hex())"
    )
    told = {
        subprocess.check_output(
            [sys.executable, "-c", program, str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
        )
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


@pytest.mark.parametrize(
    "held", ["collections.deque([1])", "types.SimpleNamespace(a=1)", "iter([1])", "Own()"]
)
def test_a_tool_that_uses_what_cannot_be_told_has_no_key(held: str, tmp_path: Path) -> None:
    program = (
        f"import collections, types\nclass Own: pass\nHELD = {held}\ndef answer(x): return HELD"
    )
    assert key_in(program, tmp_path) is None


def test_structs_of_one_name_and_other_fields_are_not_alike() -> None:
    one = msgspec.defstruct("A", [("a", int)])(1)
    other = msgspec.defstruct("A", [("b", int)])(1)
    assert tagged(one) != tagged(other)
