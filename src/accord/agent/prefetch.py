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
from collections.abc import Coroutine, Iterable
from contextvars import copy_context
from types import FunctionType
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from accord.agent.agent import Agent
from accord.agent.context import Composer
from accord.comm.space import order_of
from accord.engine.base import Engine, Prices, Reply, Request, Usage, answering
from accord.engine.prefix import REPLY, rendered
from accord.engine.size import size_of_messages
from accord.errors import EngineError
from accord.flow.execution import Execution
from accord.flow.load import Flow
from accord.flow.scope import Scope, current_scope
from accord.log.events import CallEnded, CallStarted, PrefetchEnded, PrefetchStarted, Written
from accord.observe.earlier import Expected, calls_of_agents
from accord.reuse.code import closed_over, inmost, is_beside, used_by
from accord.schedule.line import Ask
from accord.schedule.scheduler import Scheduler
from accord.sync.gather import Group

T = TypeVar("T")


def prefetched(flow: Flow, execution: Execution) -> Flow:
    """``flow``, the flow of a run, with prompts read ahead beside it."""

    async def beside(*inputs: Any) -> Any:
        prefetch = Prefetch(execution, agents_used_by(flow))
        return await _with(prefetch, flow(*inputs))

    return beside


async def _with(prefetch: Prefetch, flow: Coroutine[Any, Any, T]) -> T:
    failure: BaseException | None = None
    result: Any = None
    async with Group() as group:
        task = group.start(prefetch.run(), copy_context())
        try:
            result = await flow
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # raised as it is, outside of the group
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure
    return result


class Prefetch:
    """Follows the log of a run, and reads ahead what comes next."""

    def __init__(self, execution: Execution, agents: Iterable[Agent[Any]]) -> None:
        assert execution.expectations is not None
        self._execution = execution
        self._log = execution.log
        self._expectations = execution.expectations
        self._expectations.agents.update({each.name: each for each in agents})
        self._scope: Scope = current_scope("prefetch")
        self._position = 0
        self._running: set[str] = set()
        """The places of calls that have begun and not ended."""
        self._begun: set[str] = set()
        self._given_up: set[str] = set()

    async def run(self) -> None:
        """Read ahead until cancelled."""
        earlier = self._execution.earlier()
        for each in () if earlier is None else calls_of_agents(earlier.envelopes):
            self._expectations.add(each)
        while True:
            await self._log.changed(self._position)
            if self._take_in():
                for each in self._coming():
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

    def _coming(self) -> list[Expected]:
        """Calls that follow on one that is at work, and have not begun."""
        after = self._expectations.after
        found = {
            each.place: each
            for place in sorted(self._running)
            for each in after.get(place, ())
            if each.place not in self._begun and each.agent not in self._given_up
        }
        return list(found.values())

    async def _read_ahead(self, coming: Expected) -> None:
        agent: Agent[Any] | None = self._expectations.agents.get(coming.agent)
        if agent is None:
            return
        scheduler = self._execution.schedulers.of(agent.engine)
        try:
            if agent.engine is None:
                await scheduler.start()  # one that an agent brings along may not be needed
            if scheduler.capabilities.prefix_cache:
                await self._in_spare_time(self._beginning(agent, coming), scheduler)
        except Exception as error:  # noqa: BLE001  # whatever is wrong, the run does not need it
            self._given_up.add(agent.name)
            warnings.warn(
                f"the prompt of {agent.name!r} is not read ahead any more in this run ({error!r})",
                stacklevel=2,
            )

    def _beginning(self, agent: Agent[Any], coming: Expected) -> Request:
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
        async with scheduler.spare_place(ask, reading.preempt) as place:
            if place is None:
                return
            started = PrefetchStarted(agent=request.agent, tokens=tokens)
            start = self._log.append("", (), started)
            try:
                async with asyncio.timeout_at(place.leads_until_s):
                    await reading.run()
            finally:
                self._log.append("", (start,), reading.ended(start, scheduler.capabilities.prices))


class _Reading:
    """One request for its prompt's sake, until somebody else wants its place."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._usage: Usage | None = None
        self._preempted = False
        self._task: asyncio.Task[None] | None = None
        self._failure: EngineError | None = None

    def preempt(self) -> None:
        self._preempted = True
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        async with Group() as group:
            self._task = group.start(self._read(), copy_context())
        if self._failure is not None:
            raise self._failure

    def ended(self, start: int, prices: Prices | None) -> PrefetchEnded:
        usage = self._usage
        cost = None if usage is None or prices is None else prices.cost(usage)
        return PrefetchEnded(prefetch=start, usage=usage, cost=cost, preempted=self._preempted)

    async def _read(self) -> None:
        try:
            async with answering(self._engine, self._request) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        self._usage = piece.usage
        except EngineError as error:
            self._failure = error


def agents_used_by(function: object) -> list[Agent[Any]]:
    """The agents that the code of ``function`` names, or that of functions beside it that it uses.

    Itself, if it is one; and those that it closes over.
    """
    found: list[Agent[Any]] = []
    waiting, seen = [inmost(function)], set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Agent):
            found.append(cast("Agent[Any]", one))
        elif isinstance(one, FunctionType) and id(one) not in seen:
            seen.add(id(one))
            waiting += [v for _, v in used_by(one) if isinstance(v, Agent) or is_beside(v, one)]
            waiting += [v for v in closed_over(one) if isinstance(v, Agent | FunctionType)]
    return found
