"""One run being executed: its log, its recorded calls, and what they need from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from accord.errors import AccordError
from accord.log.fold import Calls
from accord.log.log import Log
from accord.schedule.gate import Gates


class Sent(msgspec.Struct, frozen=True, tag=True):
    """A request went to the engine. Passing news for live views; not recorded."""

    scope: str
    agent: str


class Token(msgspec.Struct, frozen=True, tag=True):
    """A piece of a reply came. Passing news for live views; the whole reply is recorded."""

    scope: str
    agent: str
    text: str


Listener = Callable[[Sent | Token], Awaitable[None]]


@dataclass
class Execution:
    """What the calls of one run share. Made by the runtime, one per process that works on it."""

    log: Log
    recorded: Calls
    """The calls that the log held when this process took over."""
    gates: Gates
    seed: int
    repeat_unknown: bool = False
    listener: Listener | None = None
    leaked_threads: int = 0
    fatal: AccordError | None = None
    """A fault that the flow must not swallow: raised again when it returns."""
