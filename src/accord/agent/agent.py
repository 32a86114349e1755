"""What an agent is: a name, instructions, and the type of its answer.

An :class:`Agent` is an immutable definition and an async callable. It holds no state, so one
may serve many runs at once; whatever happens in a call is in the log of its run.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from accord.agent.agent_call import AgentCall
from accord.agent.context import ContextSpec
from accord.agent.ending import Ending
from accord.agent.options import DEFAULTS, FIELDS, AgentOptions, check, spec_of
from accord.agent.request import Terms
from accord.agent.retry import Retry
from accord.agent.schema import OutputType
from accord.agent.tool import Tool
from accord.agent.writing import Destination, destinations
from accord.clock import NANOSECONDS
from accord.engine.base import Engine, Message, Request
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.scope import CallScope
from accord.flow.step import Step, step
from accord.log.blobs import digest_of
from accord.reuse.results import Mode
from accord.sync.gather import gather

if TYPE_CHECKING:
    from accord.comm.memory import Memory

T = TypeVar("T")

_RETRY = Retry()
"""One for all that name none: agents come by the thousand."""


@dataclass(frozen=True, init=False, slots=True)
class Agent(Generic[T]):
    """A role that answers: ``await Agent("writer", "Write one section.")(section)``.

    ``output``          the type of the answer; anything but ``str`` is asked for as JSON
    ``tools``           functions made with ``@tool`` that the agent may call
    ``max_tokens``      the longest reply; the engine's window must hold it beside the prompt
    ``timeout_s``       bounds a whole call of the agent, repairs and retries included
    ``repairs``         how often a wrong reply or tool call is sent back with the error
    ``tool_rounds``     how many replies in one call may ask for tools
    ``result_tokens``   the most of a tool's result that a prompt shows; the rest has a handle
    ``loop_limit``      how often in a row it may make the same calls with the same results
    ``speculate``       while a reply is being written, the pure tools that it will probably ask for
                        are called: those that it asked for here in the last run of the flow
    ``engine``          another engine than the run's
    ``coordination``    its tokens are overhead of working together: managers, selectors
    ``extra``           further fields of the request body, as the engine names them

    Its way to the engine, which changes no key, so a run may be resumed with others:

    ``priority``        of its requests, larger is more urgent; whoever it works for may be more
                        urgent, and then it is, too. 0 is none
    ``deadline_s``      from the beginning of a call: a request that is not sent by then is refused
    ``budget``          the most tokens that its requests may use in one run. Near the end replies
                        get shorter (JSON does not), then they come from the ``cheaper`` model,
                        then what is seen as ``diff`` is summarised; then they are
                        refused with :class:`accord.errors.BudgetExceededError`
    ``cheaper``         a model to fall back on; its tokens count by its price, half if unknown
    ``cache``           ``on``, ``off``, ``read``, ``write``: equal requests, equal calls of pure
                        tools, are answered as before. If nobody says (call, agent, run), requests
                        with a seed or of temperature 0 are, and nothing else

    ``model``, ``temperature``, ``seed`` and ``stop`` go to the engine as they are; ``retry`` is a
    :class:`accord.Retry`.

    What it sees of others, and they of it:

    ``shares``          keys of the board that it shares with others (a brief): they come first
    ``reads``           keys (``*`` for many) of the board, or ``@name`` for messages sent there;
                        a dict says how much of each it sees
    ``sees``            how much of the others; and whether it remembers its own earlier calls in
                        the run: see :data:`accord.agent.reading.Visibility`. ``diff`` if it reads
                        anything, else ``nothing``
    ``writes``          where its answer is put: a key, a dict of key to reducer, or ``@name``
    ``expected_calls``  how often it will be called in a run, if known: tells when to summarise
    ``summary_tokens``  the most that a summary may take
    ``summariser``      an agent that writes summaries; without one, sentences are extracted
    ``memory``          a :class:`accord.comm.memory.Memory`, of which it is shown the
                        ``memory_items`` items that go best with what it is asked
    ``ending``          who may end the conversation, and how
    ``guard``           ``guard(*inputs)``, a step beside the first request: if it raises, so does
                        the call, and no tool with effects has run
    """

    name: str
    instructions: str
    output: Any
    tools: tuple[Tool[..., Any], ...]
    model: str | None
    max_tokens: int
    temperature: float | None
    seed: int | None
    stop: tuple[str, ...]
    timeout_s: float | None
    retry: Retry
    repairs: int
    tool_rounds: int
    result_tokens: int
    loop_limit: int
    engine: Engine | None
    coordination: bool
    extra: Mapping[str, Any]
    priority: int | None
    deadline_s: float | None
    budget: int | None
    cheaper: str | None
    spec: ContextSpec
    """What it sees."""
    writes: tuple[Destination, ...]
    summariser: Agent[str] | None
    memory: Memory | None
    ending: Ending | None
    guard: Callable[..., Any] | None
    cache: Mode | None
    speculate: bool
    reply_type: OutputType = field(repr=False, compare=False)
    _version: str = field(repr=False, compare=False)

    @overload
    def __init__(
        self: Agent[str],
        name: str,
        instructions: str = "",
        **options: Unpack[AgentOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        instructions: str = "",
        *,
        output: type[T],
        **options: Unpack[AgentOptions],
    ) -> None: ...

    def __init__(
        self,
        name: str,
        instructions: str = "",
        *,
        output: Any = str,
        **options: Unpack[AgentOptions],
    ) -> None:
        check(name, options)
        given: dict[str, Any] = {**DEFAULTS, **options}
        given |= {each: tuple(given[each]) for each in ("tools", "stop")}
        given["tools"] = tuple(sorted(given["tools"], key=lambda tool: tool.name))
        given["retry"] = given["retry"] or _RETRY
        given["extra"] = dict(given["extra"] or {})
        given["spec"] = spec_of(f"agent {name!r}", options)
        given["writes"] = destinations(options.get("writes", ()), f"agent {name!r}")
        put = object.__setattr__
        put(self, "name", name)
        put(self, "instructions", instructions)
        put(self, "output", output)
        put(self, "reply_type", OutputType(output))
        for each in FIELDS:
            put(self, each, given[each])
        if volatile := _volatile(instructions):
            warnings.warn(
                f"the instructions of agent {name!r} tell the time ({volatile[0][:60]!r}). At the "
                "head of a prompt that makes engines read all of it on each call, so it is sent "
                "last; better give the time with the input, where it is needed",
                stacklevel=2,
            )
        put(self, "_version", _version(self))

    async def __call__(self, *inputs: Any, **named: Any) -> T:
        """The agent's answer to ``inputs``: texts as they stand, anything else encoded.

        Raises :class:`accord.errors.OutputError` if the answer never has the declared type,
        :class:`accord.errors.EngineError` if the engine fails for good.
        """

        async def body(scope: CallScope) -> T:
            if (expectations := scope.execution.expectations) is not None:
                expectations.agents[self.name] = self
            if self.priority is not None:
                scope.priority = self.priority
            if self.deadline_s is not None:
                began = scope.execution.log.envelopes[scope.start].at
                scope.due_by(began + round(self.deadline_s * NANOSECONDS))
            answer = await self._answer(scope, inputs, named)
            if self.writes:
                await scope.certain()
            for destination in self.writes:
                await destination.put(answer)
            return answer

        result: T = await call(
            "agent",
            self.name,
            [*inputs],
            body,
            named=named,
            version=self._version,
            coordination=self.coordination,
            timeout_s=self.timeout_s,
        )
        return result

    async def _answer(self, scope: CallScope, inputs: Sequence[Any], named: Mapping[str, Any]) -> T:
        if self.guard is None:
            return await AgentCall(self, scope, inputs, named).run()
        clear = asyncio.Event()
        guarded = AgentCall(self, scope, inputs, named, clear)
        _, answer = await gather(self._guard(clear, inputs, named), guarded.run())
        return answer

    async def _guard(
        self, clear: asyncio.Event, inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        assert self.guard is not None
        guard: Callable[..., Any] = self.guard
        if not isinstance(guard, Step):
            guard = step(pure=True)(guard)
        await guard(*inputs, **named)
        clear.set()

    @property
    def has_effects(self) -> bool:
        """Making a call of it twice may do harm: tools with effects, an answer that it writes."""
        return bool(self.writes) or any(tool.delegates or not tool.pure for tool in self.tools)

    @property
    def terms(self) -> Terms:
        """On what terms its requests are made."""
        return Terms(
            engine=self.engine,
            retry=self.retry,
            coordination=self.coordination,
            budget=self.budget,
            cheaper=self.cheaper,
            cache=self.cache,
        )

    @property
    def role(self) -> list[Message]:
        """The layer of its prompts that is its own."""
        volatile = _volatile(self.instructions)
        lines = [line for line in self.instructions.splitlines() if line not in volatile]
        instructions = "\n".join(lines) if volatile else self.instructions
        ending = self.ending.instruction(self.name) if self.ending else ""
        stable = "\n".join(filter(None, (instructions, self.reply_type.instruction(), ending)))
        return [Message(role="system", content=stable, origin="instructions")] if stable else []

    @property
    def passing(self) -> list[Message]:
        """What of its instructions tells the time, and so comes last."""
        last = "\n".join(_volatile(self.instructions))
        return (
            [Message(role="user", content=last, origin="instructions", kept=False)] if last else []
        )

    @property
    def not_streamed(self) -> str:
        """Why its reply is not its answer until it is whole; empty if it is, piece by piece."""
        if not self.reply_type.is_text:
            return f"its answer is a {self.reply_type.name}, which is read from the whole reply"
        if self.tools:
            return "it has tools, and a reply may ask for them"
        return "its guard may yet stop it" if self.guard is not None else ""

    def as_tool(self, description: str = "", *, name: str = "") -> Tool[..., Any]:
        """The agent as a tool of another: ``task`` is what it is asked.

        Asked the same again within a call of that agent, it answers the same and is not called.
        """
        agent = self

        async def ask(task: str) -> Any:
            return await agent(task)

        ask.__doc__ = description or self.instructions
        return Tool(ask, name=name or self.name, pure=True, delegates=True)

    def request(self, messages: Sequence[Message]) -> Request:
        """The request that this agent makes of ``messages``."""
        return Request(
            messages=tuple(messages),
            agent=self.name,
            model=self.model,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop=self.stop,
            tools=tuple(tool.spec for tool in self.tools),
            schema=self.reply_type.schema,
            extra=dict(self.extra),
        )


_CLOCK = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b\d{1,2}:\d\d:\d\d\b")


def _volatile(instructions: str) -> list[str]:
    """The lines that tell the time."""
    return [line for line in instructions.splitlines() if _CLOCK.search(line)]


def _version(agent: Agent[Any]) -> str:
    """Changes with whatever the agent's definition sends to an engine, or to others."""
    try:
        seen = [agent.spec] if agent.spec.looks else []
        told = [agent.writes] if agent.writes else []
        ahead = ["speculate"] if agent.speculate else []  # its calls have other places
        parts = [agent.instructions, agent.request([]), *seen, *told, *ahead]
        return digest_of(msgspec.json.encode(parts))
    except TypeError as error:
        msg = f"agent {agent.name!r}: extra must be plain data, as it goes into a JSON body"
        raise UsageError(f"{msg} ({error})") from error
