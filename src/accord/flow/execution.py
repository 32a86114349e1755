"""One run being executed: its log, its recorded calls, and what they need from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from accord.engine.base import Engine
from accord.errors import AccordError
from accord.log.fold import Calls
from accord.log.log import Log
from accord.schedule.gate import Gate


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
    gate: Gate
    seed: int
    repeat_unknown: bool = False
    listener: Listener | None = None
    leaked_threads: int = 0
    fatal: AccordError | None = None
    """A fault that the flow must not swallow: raised again when it returns."""
    gates: dict[int, Gate] = field(default_factory=dict[int, Gate])
    """Gates of engines that single agents brought along, by the engine's identity."""

    def gate_of(self, engine: Engine | None) -> Gate:
        """The gate in front of ``engine``, or of the run's own engine."""
        if engine is None or engine is self.gate.engine:
            return self.gate
        return self.gates.setdefault(id(engine), Gate(engine))
