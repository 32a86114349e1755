"""What comes back equals what went in, class and order included; what does not fit is named."""

import asyncio
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from pydantic import BaseModel

from accord.clock import WallClock
from accord.errors import LogCorruptError, UnknownTypeError, UnserializableError
from accord.log.blobs import Blobs
from accord.log.codec import ValueCodec, decode_envelope, printable
from accord.log.events import RunFinished, Value
from accord.log.log import Log, read_log
from accord.log.store.sqlite import SqliteStore
from accord.testing.conformance.kit import ELSEWHERE, Now
from tests.log.values import Alias, Colour, Extra, Model, Plain, alike, values


def encode(value: object) -> tuple[bytes, dict[str, bytes]]:
    """The JSON of ``value`` and the blobs that it refers to."""
    blobs = Blobs({}.__getitem__)
    return bytes(ValueCodec(blobs).encode(value)), blobs.pending


def decode(data: bytes, stored: dict[str, bytes]) -> Any:
    """As another process would, which has nothing but what was stored."""
    return ValueCodec(Blobs(stored.__getitem__)).decode(Value(data))


def there_and_back(value: object) -> Any:
    return decode(*encode(value))


@given(values)
@example(float("nan"))
@example([-0.0, 0.0, 0, False])
@example({"$blob": "not one", "$type": {"$": 1}})
@example({0: "int", "0": "text", (0,): "tuple"})
@example(("\ud83d\ude00", "😀", {"\udfff": {"\ud800"}}))
@example(["a\0b", "a\u2028b\u2029c", "日本語🌟", "a\ud800b"])
@example([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**5000])
@example(tuple(range(200)))
@example([[n] * n for n in range(200)])
@example(["x" * 5 * 1024, "é" * 5 * 1024, "\ud800" * 5 * 1024])
@example({n: {"text": "x" * n} for n in range(200)})
@example(frozenset(str(n) * n for n in range(200)))
@example(Plain(any=(0, False), more=[Plain(any=Colour.RED)]))
@example(Alias(Name="by alias"))
@example(Extra.model_validate({"$odd": 1, "b": [2]}))
def test_a_value_comes_back_as_it_was(value: object):
    """CKP-6, among others: lone surrogates are kept."""
    back = there_and_back(value)
    assert alike(back, value), f"{value!r} came back as {back!r}"


@given(values)
def test_the_digest_of_a_value_is_taken_from_what_is_stored(value: object):
    blobs = Blobs({}.__getitem__)
    codec = ValueCodec(blobs)
    hashed = codec.digest(value)
    assert blobs.pending == {}
    assert hashed == bytes(codec.encode(value))


@given(values)
def test_only_large_pieces_are_blobs_and_each_is_stored_once(value: object):
    data, stored = encode(value)
    assert len(data) < 1024
    blobs = Blobs(stored.__getitem__)
    codec = ValueCodec(blobs)
    codec.encode(value)
    blobs.pending = {}
    codec.encode(value)
    assert blobs.pending == {}


def test_text_is_written_as_utf_8_not_as_escapes():
    data, _ = encode("日本語テキスト🌟")
    assert data == '"日本語テキスト🌟"'.encode()


class Derived(Model):
    more: int = 0


def test_a_nested_model_keeps_its_own_class():
    back = there_and_back(Model(any=1, nested=Derived(any=2, more=3)))
    assert type(back.nested) is Derived
    assert back.nested.more == 3


SETS = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.log.test_codec import encode
words = [str(number) for number in range(100)]
data, blobs = encode([set(words), frozenset(words), {(word, number): {word}
    for number, word in enumerate(words)}, {frozenset({word, "x"}) for word in words}])
print(data.hex(), sorted(blobs.items()))
"""


def test_a_set_has_the_same_bytes_in_every_process():
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", SETS, root], env={"PYTHONHASHSEED": seed}, text=True
        )
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


# -- what does not fit -------------------------------------------------------------------------


@dataclass
class Chapter:
    title: str
    handle: Any = None


class Book(NamedTuple):
    sections: list[Chapter]


class Shelf(BaseModel):
    books: dict[str, Any]


class OnlyPickle:
    def __reduce__(self):
        raise AssertionError("pickled")


LOCK = Lock()
BAD = Chapter("bad", LOCK)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, " is a lock"),
        (BAD, ".handle is a lock"),
        ({"sections": [Chapter("a"), Chapter("b"), BAD]}, "['sections'][2].handle is a lock"),
        (Shelf(books={"x": Book([BAD])}), ".books['x'][0][0].handle is a lock"),
        ((1, {2: [3, LOCK]}), "[1][2][1] is a lock"),
        ({"a": {LOCK: 1}}, "['a'].keys() is a lock"),
        ({"a": "\ud800", "b": [LOCK]}, "['b'][0] is a lock"),
        ([OnlyPickle()], "[0] is a OnlyPickle"),
        ([OrderedDict(a=1)], "[0] is a OrderedDict"),
        ([print], "[0] is a builtin_function_or_method"),
        ([Chapter], "[0] is a type"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_path(value: object, path: str):
    codec = ValueCodec(Blobs({}.__getitem__))
    with pytest.raises(UnserializableError) as caught:
        codec.encode(value, "output")
    assert str(caught.value).startswith(f"output{path}, which the log cannot hold")


def test_a_class_that_no_name_finds_is_refused_at_the_write():
    @dataclass
    class Local:
        x: int

    with pytest.raises(UnserializableError, match=r"value\[0\] is a .*Local"):
        encode([Local(1)])


def test_a_value_that_contains_itself_is_refused():
    circle: dict[str, Any] = {"name": "circle"}
    circle["self"] = [circle]
    with pytest.raises(UnserializableError, match="contains itself"):
        encode(circle)


# -- classes that have gone or changed ---------------------------------------------------------

SHAPE = "from dataclasses import dataclass\nfrom pydantic import BaseModel\nfrom enum import Enum\n"
DATACLASS = SHAPE + "@dataclass\nclass X:\n    a: int\n"
MODEL = SHAPE + "class X(BaseModel):\n    a: int\n"


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch):
    """Makes the module ``shapes`` from source, or makes it anew."""

    def make(source: str) -> Any:
        module = ModuleType("shapes")
        monkeypatch.setitem(sys.modules, "shapes", module)
        exec(source, module.__dict__)
        return module

    return make


def test_a_class_that_has_gone_is_named_and_its_value_kept(define, monkeypatch):
    """CKP-8."""
    stored = encode([define(DATACLASS).X(a=7)])
    monkeypatch.delitem(sys.modules, "shapes")
    with pytest.raises(UnknownTypeError, match="shapes:X") as caught:
        decode(*stored)
    assert caught.value.type_name == "shapes:X"
    assert caught.value.payload == {"a": 7}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DATACLASS, SHAPE),
        (DATACLASS, SHAPE + "X = 3\n"),
        (DATACLASS, SHAPE + "class X:\n    a = 1\n"),
        (DATACLASS, DATACLASS + "    b: int\n"),
        (MODEL, MODEL + "    b: int\n"),
    ],
    ids=["gone", "no class", "no data", "needs more", "model needs more"],
)
def test_a_class_that_the_value_no_longer_fits_keeps_the_value(define, before: str, after: str):
    stored = encode(define(before).X(a=7))
    define(after)
    with pytest.raises(UnknownTypeError) as caught:
        decode(*stored)
    assert (caught.value.type_name, caught.value.payload) == ("shapes:X", {"a": 7})


def test_an_enum_that_lost_a_member_keeps_the_value(define):
    source = SHAPE + "class X(Enum):\n    OLD = 'o'\n"
    stored = encode(define(source).X.OLD)
    define(source.replace("OLD = 'o'", "NEW = 'n'"))
    with pytest.raises(UnknownTypeError) as caught:
        decode(*stored)
    assert caught.value.payload == "o"


def test_a_module_that_cannot_be_imported_keeps_the_value(define, monkeypatch, tmp_path: Path):
    """CKP-8."""
    stored = encode(define(DATACLASS).X(a=7))
    monkeypatch.delitem(sys.modules, "shapes")
    (tmp_path / "shapes.py").write_text("this is no Python")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownTypeError) as caught:
        decode(*stored)
    assert caught.value.payload == {"a": 7}


@pytest.mark.parametrize("source", [DATACLASS, MODEL], ids=["dataclass", "model"])
def test_a_class_that_gained_or_lost_a_field_takes_what_fits(define, source: str):
    stored = encode(define(source).X(a=7))
    grown = define(source + "    b: int = 5\n")
    assert decode(*stored) == grown.X(a=7, b=5)
    stored = encode(grown.X(a=1, b=2))
    shrunk = define(source)
    assert decode(*stored) == shrunk.X(a=1)


def test_what_a_newer_version_wrote_is_not_guessed_at():
    with pytest.raises(LogCorruptError, match="newer Accord"):
        decode(b'{"$future": 1}', {})


@pytest.mark.parametrize("data", [b"", b"{}", b"[0, 1]", b'[0,0,"",[],{"is":"Nothing"}]', b"\xff"])
def test_what_is_no_envelope_is_said_to_be_corrupt(data: bytes):
    with pytest.raises(LogCorruptError, match="accord doctor"):
        decode_envelope(data)


def test_a_name_with_lone_surrogates_can_be_printed():
    assert printable("a\ud800b é") == "a\\ud800b é"


# -- bytes per step ----------------------------------------------------------------------------


def words(step: int, size: int) -> str:
    """``size`` characters, different at each step."""
    return (f"{step:06d} " * size)[:size]


MESSAGES = {
    "text": lambda step: words(step, 1024),
    "dict": lambda step: {"role": "user", "content": words(step, 1000)},
    "many fields": lambda step: {f"field {n}": words(step, 40) for n in range(20)},
    "dataclass": lambda step: Chapter(title=words(step, 1000)),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_500_steps_that_append_1_kb_to_a_list_take_under_3_mb(tmp_path: Path, message):
    """CKP-1."""
    path = tmp_path / "log.sqlite3"
    store = SqliteStore(path, now_s=Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)

    async def main():
        log = Log(store, "run", clock=WallClock(), lease=lease)
        state: list[Any] = []
        for step in range(500):
            state.append(message(step))
            log.append("", (), RunFinished(output=log.values.encode({"messages": state})))
            await log.barrier()
        log.close()

    asyncio.run(main())
    store.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3_000_000
    log = read_log(store, "run", WallClock())
    for step in (0, 8, 31, 32, 33, 250, 499):
        event = log.envelopes[step].event
        assert isinstance(event, RunFinished)
        wanted = {"messages": [message(each) for each in range(step + 1)]}
        assert log.values.decode(event.output) == wanted
    store.close()


def test_4_mb_of_bytes_are_stored(tmp_path: Path):
    large = bytes(range(256)) * 16_384
    store = SqliteStore(tmp_path / "log.sqlite3", now_s=Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)

    async def main():
        log = Log(store, "run", clock=WallClock(), lease=lease)
        log.append("", (), RunFinished(output=log.values.encode({"file": large})))
        log.close()

    asyncio.run(main())
    log = read_log(store, "run", WallClock())
    event = log.envelopes[0].event
    assert isinstance(event, RunFinished)
    assert len(bytes(event.output)) < 100
    assert log.values.decode(event.output) == {"file": large}
    store.close()


def test_a_protobuf_message_is_kept_in_its_wire_form() -> None:
    from google.protobuf.struct_pb2 import Struct

    message = Struct()
    message.update({"名": "値🌟", "numbers": [1, 2]})
    codec = ValueCodec(Blobs({}.__getitem__))
    assert codec.decode(codec.encode([message])) == [message]
    assert b'"$bytes"' in bytes(codec.encode(message))
    with pytest.raises(UnknownTypeError, match="it has changed"):
        codec.decode(Value(b'{"$type":"google.protobuf.struct_pb2:Struct","value":5}'))
