"""Prefetch: while an agent waits to be called, the engine reads what is known of its prompt.

Who is called next is known from the last run of the flow, or from the edges of a graph. What is
known of its prompt is what it shares and what it reads of those who have finished, up to the first
who has not. It is sent as the shortest request there is, in capacity that nobody else wants: the
first who asks for it gets it. It changes no prompt, no place and no key; what it used is accounted
apart.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from accord.agent.context import Composer
from accord.comm.space import order_of
from accord.engine.base import Engine, Reply, Request, Usage, answering
from accord.engine.prefix import REPLY, rendered
from accord.engine.size import size_of_messages
from accord.errors import EngineError
from accord.flow.execution import Execution
from accord.flow.load import Flow
from accord.flow.scope import Scope, current_scope
from accord.log.events import CallEnded, CallStarted, PrefetchEnded, PrefetchStarted, Written
from accord.observe.earlier import Following, following
from accord.schedule.line import Ask
from accord.schedule.scheduler import Scheduler
from accord.sync.gather import Group

if TYPE_CHECKING:
    from accord.agent.agent import Agent

T = TypeVar("T")


def prefetched(flow: Flow, execution: Execution) -> Flow:
    """``flow``, the flow of a run, with prompts read ahead beside it."""
    execution.agents.update(agents_in(flow))

    async def beside(*inputs: Any) -> Any:
        return await _with_prefetch(flow(*inputs), execution)

    return beside


async def _with_prefetch(flow: Coroutine[Any, Any, T], execution: Execution) -> T:
    failure: BaseException | None = None
    result: Any = None
    async with Group() as group:
        prefetch = group.start(Prefetch(execution).run(), copy_context())
        try:
            result = await flow
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # raised as it is, outside of the group
            failure = error
        finally:
            prefetch.cancel()
    if failure is not None:
        raise failure
    return result


class Prefetch:
    """Follows the log of a run, and reads ahead what comes next."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._log = execution.log
        self._scope: Scope = current_scope("prefetch")
        self._position = 0
        self._running: set[str] = set()
        """The places of calls that have begun and not ended."""
        self._begun: set[str] = set()
        self._given_up: set[str] = set()

    async def run(self) -> None:
        """Read ahead until cancelled."""
        earlier = self._execution.earlier()
        if earlier is not None:
            for place, after in following(earlier.envelopes).items():
                self._execution.coming.setdefault(place, []).extend(after)
        while True:
            await self._log.changed(self._position)
            if self._take_in():
                for each in self._expected():
                    await self._read_ahead(each)

    def _take_in(self) -> bool:
        """Whether anything happened that tells more."""
        news = False
        while self._position < len(self._log.envelopes):
            envelope = self._log.envelopes[self._position]
            self._position += 1
            if isinstance(envelope.event, CallStarted):
                self._running.add(envelope.scope)
                self._begun.add(envelope.scope)
            elif isinstance(envelope.event, CallEnded):
                self._running.discard(envelope.scope)
            elif not isinstance(envelope.event, Written):
                continue
            news = True
        return news

    def _expected(self) -> list[Following]:
        """Calls that follow on one that is at work, and have not begun."""
        coming = self._execution.coming
        found = {
            each.place: each
            for place in sorted(self._running)
            for each in coming.get(place, ())
            if each.place not in self._begun and each.agent not in self._given_up
        }
        return list(found.values())

    async def _read_ahead(self, coming: Following) -> None:
        agent: Agent[Any] | None = self._execution.agents.get(coming.agent)
        if agent is None:
            return
        scheduler = self._execution.schedulers.of(agent.engine)
        capabilities = await scheduler.start()
        request = self._beginning(agent, coming)
        try:
            if capabilities.prefix_cache:
                await self._in_spare_time(request, scheduler)
        except EngineError as error:
            self._given_up.add(agent.name)
            warnings.warn(
                f"the prompt of {agent.name!r} is not read ahead any more in this run ({error})",
                stacklevel=2,
            )

    def _beginning(self, agent: Agent[Any], coming: Following) -> Request:
        """The shortest request that begins as the next one of ``agent`` will."""
        unfinished = [place for place in coming.before if not self._has_ended(place)]
        composer = Composer(
            agent.name,
            agent.role,
            agent.spec,
            (),
            scope=self._scope,
            position=len(self._log.envelopes),
            until=min(map(order_of, unfinished), default=None),
        )
        capabilities = self._execution.schedulers.of(agent.engine).capabilities
        messages = composer.compose([], None, capabilities).messages
        request = agent.request([each for each in messages if each.kept])
        tools = request.tools if capabilities.tools else ()
        return replace(request, tools=tools, max_tokens=1, schema=None, stop=())

    def _has_ended(self, place: str) -> bool:
        return place in self._begun and place not in self._running

    async def _in_spare_time(self, request: Request, scheduler: Scheduler) -> None:
        """Make the request, unless somebody else wants the place, or the engine has it all."""
        prompt = rendered(request).removesuffix(REPLY)
        tokens = size_of_messages(request.messages)
        ask = Ask(run=self._log.run, agent=request.agent, prompt=prompt, prefill=tokens)
        reading = _Reading(scheduler.engine, request)
        async with scheduler.spare_place(ask, reading.recall) as place:
            if place is None:
                return
            started = PrefetchStarted(agent=request.agent, tokens=tokens)
            start = self._log.append("", (), started)
            try:
                await reading.run()
            finally:
                usage, prices = reading.usage, scheduler.capabilities.prices
                cost = None if usage is None or prices is None else prices.cost(usage)
                ended = PrefetchEnded(
                    prefetch=start, usage=usage, cost=cost, recalled=reading.recalled
                )
                self._log.append("", (start,), ended)


class _Reading:
    """One request for its prompt's sake, until somebody else wants its place."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self.usage: Usage | None = None
        self.recalled = False
        self._engine = engine
        self._request = request
        self._task: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None

    def recall(self) -> None:
        self.recalled = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        async with Group() as group:
            self._task = group.start(self._read(), copy_context())
        if self._failure is not None:
            raise self._failure

    async def _read(self) -> None:
        try:
            async with answering(self._engine, self._request) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        self.usage = piece.usage
        except EngineError as error:
            self._failure = error


def agents_in(function: object) -> dict[str, Agent[Any]]:
    """The agents that the module of ``function`` names, and those that it closes over."""
    from accord.agent.agent import Agent

    cells = getattr(function, "__closure__", None) or ()
    known = dict(getattr(function, "__globals__", {}))
    values = [*known.values(), *(cell.cell_contents for cell in cells if _is_filled(cell))]
    return {each.name: each for each in values if isinstance(each, Agent)}


def agents_named_by(function: object) -> tuple[Agent[Any], ...]:
    """The agents that the code of ``function`` names; itself, if it is one."""
    from accord.agent.agent import Agent

    if isinstance(function, Agent):
        return (cast("Agent[Any]", function),)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    known = getattr(function, "__globals__", {})
    return tuple(known[name] for name in names if isinstance(known.get(name), Agent))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where there is nothing yet
    except ValueError:
        return False
    return True
