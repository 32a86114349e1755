"""Every engine keeps the promises of ``accord.engine.base.Engine``."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from accord.engine.base import Engine, Reply, Request, TextDelta
from accord.engine.client import ClientEngine
from accord.engine.local import LocalEngine
from accord.engine.openai import OpenAIEngine
from accord.errors import EngineUnavailableError
from accord.testing.conformance import ENGINE_CHECKS, check_engine, check_name
from accord.testing.conformance.engines import EngineCheck, MakeEngine
from accord.testing.scripted import ScriptedEngine
from accord.testing.stub import StubServer


def scripted() -> Engine:
    return ScriptedEngine("well, hello there", pieces=3)


class Client:
    """As much of an SDK's client as the engine touches."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **_: Any) -> AsyncIterator[dict[str, Any]]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        for word in ("hel", "lo"):
            yield {"choices": [{"index": 0, "delta": {"content": word}}]}
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}


def of_a_client() -> Engine:
    return ClientEngine(Client(), model="m")


@pytest.fixture(params=["streamed", "whole"])
def over_http(request: pytest.FixtureRequest) -> Iterator[MakeEngine]:
    with StubServer() as stub:
        yield lambda: OpenAIEngine(stub.url, stream=request.param == "streamed")


@pytest.mark.parametrize("make", [scripted, of_a_client], ids=["scripted", "client"])
@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=check_name)
def test_engine(check: EngineCheck, make: MakeEngine) -> None:
    check(make)


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=check_name)
def test_engine_over_http(check: EngineCheck, over_http: MakeEngine) -> None:
    check(over_http)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None,
    reason='xllamacpp is not installed: pip install "accord[local]"',
)
def test_local_engine() -> None:
    try:
        check_engine(lambda: LocalEngine(window=512))
    except EngineUnavailableError as error:
        pytest.skip(str(error))


class Repeating(ScriptedEngine):
    """Ends twice."""

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        yield Reply(text="")
        yield Reply(text="")


class Summing(ScriptedEngine):
    """Replies with another text than it sent."""

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        yield TextDelta("hel")
        yield Reply(text="hello")


class Spent(ScriptedEngine):
    """Is over once it is closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        if self.closed:
            raise EngineUnavailableError("it is closed")
        yield Reply(text="")


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (Repeating, "that are no text"),
        (Summing, "the text of the reply"),
        (Spent, "it is closed"),
    ],
)
def test_the_suite_finds_a_broken_promise(engine: MakeEngine, says: str) -> None:
    with pytest.raises((AssertionError, EngineUnavailableError), match=says):
        check_engine(engine)
