"""Whatever LangGraph's serializer holds comes back, in pieces or whole; what it cannot is said."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from accord import run, step
from accord.errors import UnserializableError, UsageError
from accord.langgraph import AccordSaver
from accord.langgraph.thread import run_of, thread_of
from accord.testing.scripted import ScriptedEngine
from tests_langgraph.graphs import config, talk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def through(saver: AccordSaver, value: Any, thread: str = "1", **metadata: Any) -> Any:
    """``value`` as a channel's value and as a write, saved and read by another saver."""
    checkpoint = empty_checkpoint() | {
        "channel_values": {"x": value},
        "channel_versions": {"x": 1},
    }
    place = saver.put(config(thread), checkpoint, metadata, {"x": 1})  # pyright: ignore[reportArgumentType]
    saver.put_writes(place, [("x", value)], "task")
    found = AccordSaver(saver.store, serde=saver.serde).get_tuple(place)
    assert found is not None
    assert found.pending_writes == [("task", "x", found.checkpoint["channel_values"]["x"])]
    assert {key: found.metadata[key] for key in metadata} == metadata
    return found.checkpoint["channel_values"]["x"]


@dataclass
class Point:
    x: int


VALUES = [
    None,
    b"bytes" * 1000,
    "text" * 10_000,
    "\0 \u2028 漢字 🙂",
    [],
    {},
    [1.5] * 5000,
    list(range(2000)),
    [{"a": [None, True, "x" * 300, {"b": b"y" * 300}]}] * 100,
    {str(number): "v" * number for number in range(200)},
    {"*": "*" * 600, "#": "#" * 600, "=": "=" * 600, "list": [{"dict": 1}] * 300},
    ["*", "#", "=", "* " * 300, "#x" * 300] * 40,
    dict.fromkeys(range(100), "int keys" * 20),
    [HumanMessage("hello " * 100, id="1"), AIMessage("hi", id="2")] * 20,
    [Point(x=number) for number in range(50)],
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back(path: Path, value: Any) -> None:
    back = through(AccordSaver(path), value)
    assert back == value
    assert type(back) is type(value)


def test_lone_surrogates_are_kept_in_plain_data(path: Path) -> None:
    """CKP-6: in values, lists, dicts, metadata and names of threads."""
    text = "a\ud800b"
    saver = AccordSaver(path)
    assert through(saver, text) == text
    assert through(saver, [text, {"k": text}, "x" * 600]) == [text, {"k": text}, "x" * 600]
    assert through(saver, "x", topic=text) == "x"
    assert through(saver, "x", thread=text) == "x"
    assert thread_of(run_of(text)) == text
    assert run_of(text) != run_of("a\\ud800b")
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == {"1", text}


def test_a_class_that_is_gone_leaves_its_payload(path: Path, monkeypatch: Any) -> None:
    """CKP-8: never a silent None."""
    module = ModuleType("gone_module")
    exec("from dataclasses import dataclass\n@dataclass\nclass Gone:\n    x: int", vars(module))
    monkeypatch.setitem(sys.modules, "gone_module", module)
    saver = AccordSaver(path)
    value = module.Gone(x=1)
    assert through(saver, [value] * 3) == [value] * 3
    monkeypatch.delitem(sys.modules, "gone_module")
    found = saver.get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"]["x"] == [{"x": 1}] * 3


def test_what_cannot_be_saved_is_said_and_changes_nothing(path: Path) -> None:
    saver = AccordSaver(path)
    with pytest.raises(TypeError):
        through(saver, ["x" * 600, object()])
    with pytest.raises(UnserializableError, match="metadata"):
        through(saver, "x", thing=object())
    assert saver.get_tuple(config()) is None
    assert through(saver, ["x" * 600, 1]) == ["x" * 600, 1]
    assert saver.store.check() == []


class Rot(CipherProtocol):
    """Never encrypts one text to the same bytes."""

    def __init__(self) -> None:
        self.salt = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.salt = (self.salt + 1) % 255
        return "rot", bytes([self.salt]) + bytes(byte ^ 0xFF ^ self.salt for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        return bytes(byte ^ 0xFF ^ ciphertext[0] for byte in ciphertext[1:])


def test_an_encrypted_list_grows_by_its_items_and_shows_nothing(path: Path) -> None:
    with AccordSaver(path, serde=EncryptedSerializer(Rot(), JsonPlusSerializer())) as saver:
        graph = talk(200).compile(checkpointer=saver)
        graph.invoke({"messages": []}, config())
        assert len(graph.get_state(config()).values["messages"]) == 200
    assert path.stat().st_size < 1_500_000
    assert b"000100....." not in path.read_bytes()


@step
async def one() -> int:
    return 1


async def flow() -> int:
    return await one()


def test_a_run_of_accord_is_no_thread(path: Path) -> None:
    saver = AccordSaver(path)
    engine = ScriptedEngine(lambda _: "x")
    run(flow, log=str(path), run_id="thread:mine", engine=engine)
    with pytest.raises(UsageError, match="thread:mine"):
        saver.get_tuple(config("mine"))
    assert list(saver.list(None)) == []
