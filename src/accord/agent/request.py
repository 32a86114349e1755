"""One logical model request: the only owner of retries.

A transient failure (429, 5xx, no connection, a stream cut short) is tried again after an
exponential, jittered pause, or after what the engine asked for; the pause holds for all agents
in front of that engine. A refusal (400, 401, 404) is final at once. Every billed attempt is
recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from accord.engine.base import Engine, Reply, Request, TextDelta, ToolCall, Usage
from accord.engine.size import size_of_calls, size_of_messages, size_of_tools
from accord.errors import EngineError, EngineProtocolError, TransientEngineError, UsageError
from accord.flow.call import Measured, call
from accord.flow.execution import Sent, Token
from accord.flow.failure import record_error
from accord.flow.scope import CallScope, Tap, current_scope
from accord.log.events import AttemptFailed, Spent
from accord.schedule.gate import Gate
from accord.tokens.count import estimate


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how patiently to try again. Pauses are in seconds.

    ``attempts`` bounds a call over all processes that make it; a resumed run that had failed
    starts anew.

    Before attempt n + 1 the pause is ``base_s`` * 2**(n - 1), at most ``cap_s``, of which up to
    half is random. An engine's own ``retry-after`` wins, and gives up if above ``patience_s``.
    """

    attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 30.0
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base_s < 0 or self.cap_s < 0 or self.patience_s < 0:
            msg = f"Retry needs at least one attempt and no negative time, not {self}"
            raise UsageError(msg)

    def pause_s(self, error: TransientEngineError, attempt: int, random: Random) -> float | None:
        """How long to wait after ``attempt`` (1 is the first) failed; None to give up."""
        if attempt >= self.attempts:
            return None
        asked_s = error.retry_after_s
        if asked_s is not None:
            return asked_s if asked_s <= self.patience_s else None
        return self.backoff_s(attempt, random)

    def backoff_s(self, attempt: int, random: Random) -> float | None:
        """The pause after ``attempt`` where nobody asked for another; None to give up."""
        if attempt >= self.attempts:
            return None
        pause_s = min(self.cap_s, self.base_s * 2 ** (attempt - 1))
        return pause_s * (0.5 + random.random() / 2)


async def ask(
    request: Request, *, engine: Engine | None, retry: Retry, coordination: bool
) -> Reply:
    """Make the request through the run's gate, recorded as one call."""
    budget = current_scope("a request").budget

    async def body(scope: CallScope) -> Measured:
        asking = _Asking(request, scope, scope.execution.gates.of(engine), retry)
        if budget is None:
            return await asking.run()
        most = _prompt_size(request) + (request.max_tokens or 0)
        with budget.reserved(most, f"a request of {request.agent!r}"):
            return await asking.run()

    reply: Reply = await call(
        "request", request.agent, [request], body, keep_input=True, coordination=coordination
    )
    if budget is not None:
        usage = reply.usage or _estimated(request, reply.text, reply.tool_calls)
        budget.settle(usage.prompt + usage.completion)
    return reply


class _Asking:
    """The attempts of one request."""

    def __init__(self, request: Request, scope: CallScope, gate: Gate, retry: Retry) -> None:
        self._request = request
        self._scope = scope
        self._gate = gate
        self._retry = retry
        self._log = scope.execution.log
        self._text: list[str] = []
        self._sent_at = 0
        self._first_at: int | None = None
        scope.partial = self._partial

    async def run(self) -> Measured:
        await self._gate.start()  # loading a model is no queueing
        asked_at = self._log.now()
        attempt = self._scope.attempts
        while True:
            attempt += 1
            try:
                return self._measured(await self._attempt(), asked_at)
            except EngineError as error:
                pause_s = self._pause_s(error, attempt)
                if pause_s is not None or self._text or isinstance(error, TransientEngineError):
                    self._attempt_failed(attempt, error, pause_s or 0.0)
                if pause_s is None:
                    raise
                self._gate.cool_down(pause_s)

    def _pause_s(self, error: EngineError, attempt: int) -> float | None:
        if not isinstance(error, TransientEngineError):
            return None
        random = Random(f"{self._scope.execution.seed}/{self._scope.path}/{attempt}")
        return self._retry.pause_s(error, attempt, random)

    async def _attempt(self) -> Reply:
        self._text, self._first_at = [], None
        scope, agent = self._scope, self._request.agent
        listener, tap = scope.execution.listener, self._tap()
        async with self._gate.place(scope.priority):
            self._sent_at = self._log.now()
            if tap is not None:
                tap.begin(max(scope.take_causes()))
            if listener is not None:
                await listener(Sent(scope.path, agent))
            replies = self._gate.engine.generate(self._request)
            try:
                async for piece in replies:
                    if isinstance(piece, Reply):
                        return piece
                    self._take(piece)
                    if tap is not None:
                        tap.take(piece.text)
                    if listener is not None:
                        await listener(Token(scope.path, agent, piece.text))
            finally:
                close = getattr(replies, "aclose", None)
                if close is not None:
                    await close()
        raise EngineProtocolError(
            f"engine {self._gate.engine.name} ended without a Reply; its generate() must yield "
            "one, last"
        )

    def _tap(self) -> Tap | None:
        """Of the code that called the agent: what an agent's own helpers write is not for it."""
        agent = self._scope.outer
        caller = None if agent is None else agent.outer
        return None if caller is None else caller.tap

    def _take(self, piece: TextDelta) -> None:
        if self._first_at is None:
            self._first_at = self._log.now()
        self._text.append(piece.text)

    def _measured(self, reply: Reply, asked_at: int) -> Measured:
        ended_at = self._log.now()
        usage = reply.usage or _estimated(self._request, reply.text, reply.tool_calls)
        spent = Spent(
            queued_ns=self._sent_at - asked_at,
            first_token_ns=None if self._first_at is None else self._first_at - self._sent_at,
            total_ns=ended_at - self._sent_at,
        )
        return Measured(reply, usage, reply.timings, spent, self._cost(usage))

    def _attempt_failed(self, attempt: int, error: EngineError, pause_s: float) -> None:
        usage, cost = self._partial()
        failed = AttemptFailed(
            call=self._scope.start,
            attempt=attempt,
            error=record_error(error, self._log.values),
            retry_in_s=pause_s,
            usage=usage,
            cost=cost,
        )
        self._text = []
        self._scope.saw_end(self._log.append(self._scope.path, self._scope.take_causes(), failed))

    def _partial(self) -> tuple[Usage | None, float | None]:
        """What the running attempt has cost: an engine bills what it had begun to send."""
        if not self._text:
            return None, None
        usage = _estimated(self._request, "".join(self._text), ())
        return usage, self._cost(usage)

    def _cost(self, usage: Usage) -> float | None:
        prices = self._gate.capabilities.prices
        return None if prices is None else prices.cost(usage)


def _prompt_size(request: Request) -> int:
    return size_of_messages(request.messages) + size_of_tools(request.tools)


def _estimated(request: Request, text: str, tool_calls: tuple[ToolCall, ...]) -> Usage:
    completion = estimate(text) + size_of_calls(tool_calls)
    return Usage(prompt=_prompt_size(request), completion=completion, estimated=True)
