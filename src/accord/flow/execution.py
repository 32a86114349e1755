"""One run being executed: its log, what the log held before, and what calls need from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from accord.errors import AccordError, FlowChangedError
from accord.log.log import Log
from accord.schedule.gate import Gates

if TYPE_CHECKING:
    from accord.flow.replay import Replay


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
    replay: Replay
    gates: Gates
    seed: int
    began_s: float
    repeat_unknown: bool = False
    listener: Listener | None = None
    branches: int = 0
    """Branches of joins at work: with none, nobody would share a commit."""
    leaked_threads: int = 0
    fatal: AccordError | None = None
    """A fault that the flow must not swallow: whatever it does next raises it again."""

    async def barrier(self) -> None:
        """Wait until what was appended is safe; branches of one turn share a transaction."""
        await self.log.barrier(alone=self.branches == 0)

    def flow_changed(self, path: str, recorded: str, now: str) -> FlowChangedError:
        """The error that shows both sides; it also stands when the flow swallows it."""
        same = " (their inputs differ further on)" if recorded == now else ""
        error = FlowChangedError(
            f"the flow has changed since run {self.log.run} was recorded; at {path}\n"
            f"  recorded: {recorded}\n"
            f"  now:      {now}{same}\n"
            "Restore the flow (its code, its agents, its input), or start a new run; what depends "
            "on time, chance or the order in which branches finish belongs in a step",
            recorded=recorded,
            now=now,
        )
        self.fatal = self.fatal or error
        return error
