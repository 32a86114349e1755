"""One run being executed: its log, what the log held before, and what calls need from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from accord.clock import NANOSECONDS
from accord.errors import AccordError, FlowChangedError
from accord.flow.stake import Stake
from accord.log.codec import ValueCodec
from accord.log.log import Log
from accord.observe.earlier import Expectations
from accord.observe.guesses import Guesses
from accord.observe.remaining import Remaining
from accord.reuse.results import Mode, ResultCache
from accord.reuse.site import Site
from accord.schedule.budget import Allowance
from accord.schedule.schedulers import Schedulers

if TYPE_CHECKING:
    from accord.flow.replay import Replay
    from accord.flow.scope import Scope


POST_S = 0.2
"""How often to look for messages from outside, while code waits for messages."""


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
    schedulers: Schedulers
    seed: int
    began_s: float
    result_cache: ResultCache = field(default_factory=ResultCache)
    """What equal calls have given."""
    cache_mode: Mode | None = None
    """How it is used, where neither the call nor its agent says so."""
    repeat_unknown: bool = False
    listener: Listener | None = None
    branches: int = 0
    """Branches of joins at work: with none, nobody would share a commit."""
    leaked_threads: int = 0
    earlier: Callable[[], Log | None] = lambda: None
    """The last run of the flow that finished: what may come again."""
    speculates: bool = True
    """Guesses are followed, where that pays."""
    stakes: dict[str, list[Stake]] = field(default_factory=dict[str, list[Stake]])
    """What is at stake on open guesses, by the name of the call."""
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    """How guesses of each call have gone, in this run and in others of the flow."""
    expectations: Expectations | None = None
    """Who is called next, if prompts are to be read ahead."""
    remaining: Remaining = field(default_factory=Remaining)
    """How far it is from each place to the end of the run, as far as that is known."""
    askers: dict[int, Scope] = field(default_factory=dict[int, "Scope"])
    """Who waits for the answer to a message, by its number."""
    _allowances: dict[str, Allowance] = field(default_factory=dict[str, Allowance])
    _hearing: int = 0
    _looks: bool = False
    """A next look for messages from outside is set; one is enough, however often code waits."""
    spare_values: ValueCodec | None = None
    """In a fork: decodes what the run forked from holds."""
    posted: Callable[[], object] = lambda: None
    """Brings up to date what waits for messages; called when one has come from outside."""
    fatal: AccordError | None = None
    """A fault that the flow must not swallow: whatever it does next raises it again."""

    def allowance(self, agent: str) -> Allowance:
        """What agents named ``agent`` use in this run."""
        found = self._allowances.get(agent)
        if found is None:
            found = self._allowances[agent] = Allowance(agent, self.log)
        return found

    def site(self, name: str) -> Site:
        """How guesses of a call of that name have gone; at first, as up to the last run."""
        if name not in self.sites:
            earlier = self.earlier()
            last = None if earlier is None else earlier.fold(Guesses).last.get(name)
            site = self.sites[name] = Site() if last is None else Site(*last.record)
            if last is not None and last.right is not None:
                worked_s = last.worked_ns / NANOSECONDS if last.followed else None
                site.score(right=last.right, worked_s=worked_s)
        return self.sites[name]

    @contextmanager
    def awaiting(self, message: int, scope: Scope) -> Generator[None]:
        """Code at ``scope`` waits for the answer to a message: who answers works for it."""
        self.askers[message] = scope
        if scope.priority:
            self.schedulers.lift()
        try:
            yield
        finally:
            del self.askers[message]

    @contextmanager
    def hearing(self) -> Generator[None]:
        """Look for messages from outside of the process while code waits for messages."""
        self._hearing += 1
        if self._hearing == 1 and self.log.has_post and not self._looks:
            self._hear()
        try:
            yield
        finally:
            self._hearing -= 1

    def take_post(self) -> None:
        """Take in what has been sent to the run from outside."""
        if self.log.take_post():
            self.posted()

    def _hear(self) -> None:
        self._looks = self._hearing > 0 and not self.log.failed
        if self._looks:
            self.take_post()
            asyncio.get_running_loop().call_later(POST_S, self._hear)

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
