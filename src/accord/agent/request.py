"""One logical model request: the only owner of retries.

A transient failure (429, 5xx, no connection, a stream cut short) is tried again after an
exponential, jittered pause, or after what the engine asked for; the pause holds for all agents
in front of that engine. A refusal (400, 401, 404) is final at once. Every billed attempt is
recorded.

What was answered before need not be asked (:mod:`accord.agent.reused`).

What is recorded is the request as it was made. Its priority, and what had to give so that it stays
within its agent's budget, are put in when it is sent: they change no key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from accord.agent.retry import Retry
from accord.agent.reused import reusable_request, reused
from accord.clock import NANOSECONDS
from accord.engine.base import (
    Capabilities,
    Engine,
    Prices,
    Reply,
    Request,
    TextDelta,
    ToolCall,
    Usage,
    answering,
    identity_of,
)
from accord.engine.prefix import rendered
from accord.engine.prices import prices_of
from accord.engine.size import size_of_calls, size_of_messages, size_of_tools
from accord.engine.usage import possible
from accord.errors import (
    EngineError,
    EngineProtocolError,
    EngineTimeoutError,
    TransientEngineError,
)
from accord.flow.call import Measured, call
from accord.flow.execution import Sent, Token
from accord.flow.failure import record_error
from accord.flow.scope import CallScope, Tap, current_scope
from accord.log.events import AttemptFailed, Rung, Spent
from accord.observe.remaining import Way
from accord.reuse.results import Mode
from accord.schedule.budget import Allowance, Fit, Wanted
from accord.schedule.line import Ask
from accord.schedule.scheduler import Scheduler
from accord.tokens.count import estimate

PIECE_CHARACTERS = 16
"""A reply that is known already is told in such pieces."""
CHEAPER = 0.5
"""What a token of the cheaper model counts, where the prices of both are not known."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms an agent asks: see :class:`accord.Agent`."""

    engine: Engine | None = None
    retry: Retry = field(default_factory=Retry)
    coordination: bool = False
    budget: int | None = None
    cheaper: str | None = None
    cache: Mode | None = None


async def ask(request: Request, terms: Terms, usable: Callable[[Reply], bool]) -> Reply:
    """Make the request through the scheduler of its engine, recorded as one call.

    Replies that are ``usable`` may serve equal requests, too.
    """
    budget = current_scope("a request").budget

    async def body(scope: CallScope) -> Measured:
        asking = _Asking(request, scope, terms)
        most = _prompt_size(request) + (request.max_tokens or 0)
        who = f"a request of {request.agent!r}"

        async def make() -> Measured:
            with nullcontext() if budget is None else budget.reserved(most, who):
                return await asking.run()

        engine = await asking.start()
        result = reusable_request(request, scope, engine, terms.cache, usable)
        if result is None:
            return await make()
        measured = await reused(result, scope, make, until_s=asking.patient_until_s())
        if measured.saved is not None:
            await asking.tell(measured.value)
        return measured

    reply: Reply = await call(
        "request", request.agent, [request], body, keep_input=True, coordination=terms.coordination
    )
    if budget is not None:
        usage = _usage(request, reply)
        budget.settle(usage.prompt + usage.completion)
    return reply


def wanted_by(request: Request, terms: Terms, engine: Capabilities) -> Wanted:
    """What a request takes of its agent's budget."""
    return Wanted(
        prompt=_prompt_size(request),
        max_tokens=request.max_tokens or 0,
        cuts=request.schema is None,  # half of a JSON is none
        weight=_weight(terms.cheaper, engine.prices),
    )


def _weight(cheaper: str | None, own: Prices | None) -> float | None:
    """What a token of the cheaper model counts."""
    other = None if cheaper is None else prices_of(cheaper)
    if own is None or other is None or not own.prompt or not other.prompt:
        return None if cheaper is None else CHEAPER
    return other.prompt / own.prompt


class _Asking:
    """The attempts of one request."""

    def __init__(self, request: Request, scope: CallScope, terms: Terms) -> None:
        self._request = request
        self._scope = scope
        self._terms = terms
        self._scheduler: Scheduler = scope.execution.schedulers.of(terms.engine)
        self._log = scope.execution.log
        self._fit: Fit | None = None
        self._allowance: Allowance | None = None
        self._text: list[str] = []
        self._sent_at = 0
        self._is_sent = False
        self._first_at: int | None = None
        scope.partial = self._partial

    async def start(self) -> tuple[str, str]:
        """The engine's identity and model. Loading one is no queueing."""
        capabilities = await self._scheduler.start()
        return identity_of(self._scheduler.engine), capabilities.model

    def patient_until_s(self) -> float | None:
        """How long it may wait for an equal one, on the loop's clock: as long as for an engine."""
        ends = [self._deadline_s()]
        if (limit_s := self._terms.retry.first_token_s) is not None:
            ends.append(asyncio.get_running_loop().time() + limit_s)
        return min((each for each in ends if each is not None), default=None)

    async def tell(self, reply: Reply) -> None:
        """Give a reply that need not be asked for to who reads it while it is written."""
        audience = self._audience()
        await audience.begin()
        for start in range(0, len(reply.text), PIECE_CHARACTERS):
            await audience.hear(reply.text[start : start + PIECE_CHARACTERS])

    async def run(self) -> Measured:
        request, budget = self._request, self._terms.budget
        if budget is None:
            return await self._attempts()
        self._allowance = self._scope.execution.allowance(request.agent)
        wanted = wanted_by(request, self._terms, self._scheduler.capabilities)
        async with self._allowance.held(wanted, budget) as self._fit:
            return await self._attempts()

    async def _attempts(self) -> Measured:
        asked_at = self._log.now()
        attempt = self._scope.attempts
        while True:
            attempt += 1
            try:
                return self._measured(await self._attempt(), asked_at)
            except asyncio.CancelledError:
                if self._scope.hold is not None and not self._is_sent:
                    self._scope.hold.hurried()
                raise
            except EngineError as error:
                pause_s = self._pause_s(error, attempt)
                if pause_s is not None or self._text or isinstance(error, TransientEngineError):
                    self._attempt_failed(attempt, error, pause_s or 0.0)
                if pause_s is None:
                    raise
                self._scheduler.cool_down(pause_s)

    def _pause_s(self, error: EngineError, attempt: int) -> float | None:
        if not isinstance(error, TransientEngineError):
            return None
        random = Random(f"{self._scope.execution.seed}/{self._scope.path}/{attempt}")
        return self._terms.retry.pause_s(error, attempt, random)

    async def _attempt(self) -> Reply:
        self._text, self._first_at = [], None
        audience = self._audience()
        engine = self._scheduler.engine
        self._is_sent = False
        async with self._scheduler.place(self._asked()) as place:
            self._sent_at, self._is_sent = self._log.now(), True
            await audience.begin()
            request = self._sent_as(place.ticket.priority)
            async with answering(engine, request) as replies:
                try:
                    async with aclosing(self._begun_in_time(replies)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Reply):
                                usage = _usage(self._request, piece)
                                place.settle(usage.prompt, usage.completion)
                                return piece
                            place.warm()
                            self._take(piece)
                            await audience.hear(piece.text)
                finally:
                    if self._text and place.used is None:  # cut off: what had come is billed
                        usage = _usage(self._request, Reply(text="".join(self._text)))
                        place.settle(usage.prompt, usage.completion)
        raise EngineProtocolError(
            f"engine {engine.name} ended without a Reply; its generate() must yield one, last"
        )

    async def _begun_in_time(
        self, replies: AsyncIterator[TextDelta | Reply]
    ) -> AsyncGenerator[TextDelta | Reply]:
        """``replies``, if the first of them comes soon enough."""
        limit_s = self._terms.retry.first_token_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                piece = await anext(replies)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EngineTimeoutError(
                f"engine {self._scheduler.engine.name} had not begun to answer "
                f"{self._request.agent!r} after first_token_s={limit_s:g}",
                retry_after_s=0.0,
            ) from error
        except StopAsyncIteration:
            return
        yield piece
        async for piece in replies:
            yield piece

    def _asked(self) -> Ask:
        """What the scheduler is told of the request."""
        request, scope = self._request, self._scope
        execution, allowance, budget = scope.execution, self._allowance, self._terms.budget
        way = execution.remaining.of(scope.path, request.agent)
        if way is None:
            way = Way(scope.remaining_s, scope.remaining_s)
        return Ask(
            run=execution.log.run,
            agent=request.agent,
            prompt=rendered(request) if self._scheduler.reads_prompts else b"",
            prefill=_prompt_size(request),
            decode=(request.max_tokens or 0) if self._fit is None else self._fit.max_tokens,
            deadline_s=self._deadline_s(),
            remaining_s=way.left_s,
            through_s=way.whole_s,
            priority=lambda: scope.priority,
            runs=lambda: [each.execution.log.run for each in scope.who_asks()],
            used=lambda: allowance.share(budget) if allowance is not None and budget else 0.0,
        )

    def _deadline_s(self) -> float | None:
        """On the loop's clock; the run's stands still between processes."""
        deadline_ns = self._scope.deadline_ns
        if deadline_ns is None:
            return None
        left_s = (deadline_ns - self._log.now()) / NANOSECONDS
        return asyncio.get_running_loop().time() + left_s

    def _sent_as(self, priority: int) -> Request:
        """The request as it is sent."""
        request, fit = self._request, self._fit
        if priority:
            request = replace(request, priority=priority)
        if fit is not None and fit.rung:
            model = self._terms.cheaper if fit.rung == "cheaper" else request.model
            request = replace(request, max_tokens=fit.max_tokens, model=model)
        return request

    def _audience(self) -> _Audience:
        """What an agent's own helpers write is not for who taps the code that called it."""
        agent = self._scope.outer
        while agent is not None and not (isinstance(agent, CallScope) and agent.kind == "agent"):
            agent = agent.outer
        caller = None if agent is None else agent.outer
        return _Audience(self._scope, self._request.agent, None if caller is None else caller.tap)

    def _take(self, piece: TextDelta) -> None:
        if self._first_at is None:
            self._first_at = self._log.now()
        self._text.append(piece.text)

    def _measured(self, reply: Reply, asked_at: int) -> Measured:
        ended_at = self._log.now()
        usage = _usage(self._request, reply)
        spent = Spent(
            queued_ns=self._sent_at - asked_at,
            first_token_ns=None if self._first_at is None else self._first_at - self._sent_at,
            total_ns=ended_at - self._sent_at,
        )
        return Measured(reply, usage, reply.timings, spent, self._cost(usage), self._rung)

    def _attempt_failed(self, attempt: int, error: EngineError, pause_s: float) -> None:
        usage, cost, rung = self._partial()
        failed = AttemptFailed(
            call=self._scope.start,
            attempt=attempt,
            error=record_error(error, self._log.values),
            retry_in_s=pause_s,
            usage=usage,
            cost=cost,
            rung=rung,
        )
        self._text = []
        self._scope.saw_end(self._log.append(self._scope.path, self._scope.take_causes(), failed))

    def _partial(self) -> tuple[Usage | None, float | None, Rung]:
        """What the running attempt has cost: an engine bills what it had begun to send."""
        if not self._text:
            return None, None, ""
        usage = _estimated(self._request, "".join(self._text), ())
        return usage, self._cost(usage), self._rung

    @property
    def _rung(self) -> Rung:
        return "" if self._fit is None else self._fit.rung

    def _cost(self, usage: Usage) -> float | None:
        prices = self._prices()
        return None if prices is None else prices.cost(usage)

    def _prices(self) -> Prices | None:
        own = self._scheduler.capabilities.prices
        if own is None or self._rung != "cheaper":
            return own
        return prices_of(self._terms.cheaper or "") or own


class _Audience:
    """Who reads a reply while it is written: the run's listener, and code that taps it.

    The listener hears of what runs ahead once that is certain, or never.
    """

    def __init__(self, scope: CallScope, agent: str, tap: Tap | None) -> None:
        self._scope = scope
        self._agent = agent
        self._tap = tap
        self._listener = scope.execution.listener
        self._untold: list[Sent | Token] = []

    async def begin(self) -> None:
        if self._tap is not None:
            self._tap.begin(max(self._scope.take_causes()))
        await self._tell(Sent(self._scope.path, self._agent))

    async def hear(self, text: str) -> None:
        if self._tap is not None:
            self._tap.take(text)
        await self._tell(Token(self._scope.path, self._agent, text))

    async def _tell(self, news: Sent | Token) -> None:
        if self._listener is None:
            return
        self._untold.append(news)
        hold = self._scope.hold
        if hold is None or hold.is_certain:
            untold, self._untold = self._untold, []
            for each in untold:
                await self._listener(each)


def _prompt_size(request: Request) -> int:
    return size_of_messages(request.messages) + size_of_tools(request.tools)


def _usage(request: Request, reply: Reply) -> Usage:
    if reply.usage is None:
        return _estimated(request, reply.text, reply.tool_calls)
    return possible(reply.usage)


def _estimated(request: Request, text: str, tool_calls: tuple[ToolCall, ...]) -> Usage:
    completion = estimate(text) + size_of_calls(tool_calls)
    return Usage(prompt=_prompt_size(request), completion=completion, estimated=True)
