"""Runs on virtual time, and what they did not have to ask for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from accord import Agent, Runtime
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.engine.base import Reply, Request, Usage
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine

T = TypeVar("T")

writer = Agent("writer", "Write.", seed=1)
plain = Agent("plain", "Write.")
"""Nothing of it is kept unless that is asked for."""


def counting() -> ScriptedEngine:
    """Answers with the number of the request, which takes a second."""
    numbers = iter(range(1, 10_000))
    return ScriptedEngine(lambda _: str(next(numbers)), decode_s=1)


def echo(request: Request) -> str:
    return request.messages[-1].content.upper()


def on_virtual(main: Callable[[Runtime], Coroutine[Any, Any, T]], engine: Any, **options: Any) -> T:
    """What ``main`` gives, with a runtime on virtual time."""

    async def inner() -> T:
        return await main(
            Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock(), **options)
        )

    return run_virtual(inner())


def result_of(flow: Any, engine: Any, *inputs: Any, **options: Any) -> Result[Any]:
    return on_virtual(lambda runtime: runtime.arun(flow, *inputs), engine, **options)


def saved(result: Result[Any], kind: str = "request") -> list[CallFinished]:
    """The ends of the calls that were not made."""
    calls = index_calls(result.log.envelopes).by_scope.values()
    ends = [call.ended for call in calls if call.started.kind == kind]
    return [end for end in ends if isinstance(end, CallFinished) and end.saved is not None]


def seconds(result: Result[Any]) -> float:
    return result.log.envelopes[-1].at / NANOSECONDS


def an_agent(**options: Any) -> Agent[Any]:
    return Agent("a", **options)


def writer_of(**options: Any) -> Agent[str]:
    return Agent("writer", "Write.", seed=1, **options)


def reply(**changes: Any) -> Reply:
    return Reply(**{"text": "told", "usage": Usage(prompt=5, completion=5), **changes})


class Folder:
    """What a tool looks at: an object, so what is in it is no part of a tool's key."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.looks = 0

    def list(self) -> list[str]:
        self.looks += 1
        return [*self.files]


class Kind:
    def __init__(self) -> None:
        self.calls = 0

    def of(self, step: int) -> str:
        self.calls += step
        return f"{self.calls}:"
