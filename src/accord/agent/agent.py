"""What an agent is: a name, instructions, and the type of its answer.

An :class:`Agent` is an immutable definition and an async callable. It holds no state, so one
may serve many runs at once; whatever happens in a call is in the log of its run.
"""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

import msgspec

from accord.agent.agent_call import AgentCall
from accord.agent.context import RECALL, ContextSpec
from accord.agent.ending import Ending
from accord.agent.reading import Visibility, declared
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
from accord.log.events import Reducer
from accord.reuse.results import Mode, checked
from accord.sync.gather import gather
from accord.tokens.summary import SUMMARY_TOKENS

if TYPE_CHECKING:
    from accord.comm.memory import Memory

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 1024


class AgentOptions(TypedDict, total=False):
    """What an :class:`Agent` takes beside its name, its instructions and its type of answer."""

    tools: Sequence[Tool[..., Any]]
    model: str | None
    max_tokens: int
    temperature: float | None
    seed: int | None
    stop: Sequence[str]
    timeout_s: float | None
    retry: Retry | None
    repairs: int
    tool_rounds: int
    result_tokens: int
    loop_limit: int
    engine: Engine | None
    coordination: bool
    extra: Mapping[str, Any] | None
    priority: int | None
    deadline_s: float | None
    budget: int | None
    cheaper: str | None
    shares: str | Iterable[str]
    reads: str | Iterable[str] | Mapping[str, Visibility]
    sees: Visibility | None
    writes: str | Iterable[str] | Mapping[str, Reducer]
    expected_calls: int | None
    summary_tokens: int
    summariser: Agent[str] | None
    memory: Memory | None
    memory_items: int
    ending: Ending | None
    guard: Callable[..., Any] | None
    cache: Mode | None
    speculate: bool


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
        _check(name, options)
        given: dict[str, Any] = {**_DEFAULTS, **options}
        given |= {each: tuple(given[each]) for each in ("tools", "stop")}
        given["tools"] = tuple(sorted(given["tools"], key=lambda tool: tool.name))
        given["retry"] = given["retry"] or _RETRY
        given["extra"] = dict(given["extra"] or {})
        given["spec"] = _spec(f"agent {name!r}", options)
        given["writes"] = destinations(options.get("writes", ()), f"agent {name!r}")
        put = object.__setattr__
        put(self, "name", name)
        put(self, "instructions", instructions)
        put(self, "output", output)
        put(self, "reply_type", OutputType(output))
        for each in _FIELDS:
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


_DEFAULTS: dict[str, Any] = {
    "tools": (),
    "model": None,
    "max_tokens": DEFAULT_MAX_TOKENS,
    "temperature": None,
    "seed": None,
    "stop": (),
    "timeout_s": None,
    "retry": None,
    "repairs": 2,
    "tool_rounds": 8,
    "result_tokens": 4000,
    "loop_limit": 3,
    "engine": None,
    "coordination": False,
    "extra": None,
    "priority": None,
    "deadline_s": None,
    "budget": None,
    "cheaper": None,
    "summariser": None,
    "memory": None,
    "ending": None,
    "guard": None,
    "cache": None,
    "speculate": False,
}
_FIELDS = (*_DEFAULTS, "spec", "writes")
_SEEN = ("shares", "reads", "sees", "expected_calls", "summary_tokens", "summariser", "memory")
_NOTHING_SEEN = ContextSpec()
_RETRY = Retry()


def _spec(who: str, options: AgentOptions) -> ContextSpec:
    """What the agent sees."""
    if options.keys().isdisjoint(_SEEN):
        return _NOTHING_SEEN  # one for all: agents come by the thousand
    reads, memory = options.get("reads", ()), options.get("memory")
    sees = options.get("sees") or ("diff" if reads else "nothing")
    declared("*", sees, who)
    if memory is not None and not hasattr(memory, "search"):
        raise UsageError(f"{who}: memory is an accord Memory, not {memory!r}")
    return ContextSpec(
        shares=declared(options.get("shares", ()), "full", who),
        reads=declared(reads, sees, who),
        sees=sees,
        expected_calls=options.get("expected_calls"),
        summary_tokens=options.get("summary_tokens", SUMMARY_TOKENS),
        writes_summaries=options.get("summariser") is not None,
        memory=memory.name if memory is not None else "",
        memory_items=options.get("memory_items", 5),
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


_POSITIVE = (
    "max_tokens",
    "budget",
    "result_tokens",
    "loop_limit",
    "expected_calls",
    "summary_tokens",
    "memory_items",
)
_NOT_NEGATIVE = ("repairs", "tool_rounds")


def _check(name: Any, options: AgentOptions) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"an agent needs a name of printable text, not {name!r}")
    who = f"agent {name!r}"
    given: dict[str, Any] = {**options}
    unknown = given.keys() - AgentOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(AgentOptions.__annotations__)
        raise UsageError(f"{who}: there is no option {min(unknown)!r}; there are {known}")
    for least, names in ((1, _POSITIVE), (0, _NOT_NEGATIVE)):
        for each in names:
            if given.get(each) is not None and given[each] < least:
                raise UsageError(f"{who}: {each} must be at least {least}, not {given[each]!r}")
    _check_terms(who, given)
    tools: Sequence[Any] = options.get("tools", ())
    for tool in tools:
        if not isinstance(tool, Tool):
            raise UsageError(f"{who}: {tool!r} is not a tool; put @tool on the function")
    names_of_tools = sorted(tool.name for tool in tools)
    if RECALL in names_of_tools:
        raise UsageError(f"{who}: {RECALL} is the tool that opens handles; name yours otherwise")
    if len(set(names_of_tools)) < len(names_of_tools):
        raise UsageError(f"{who}: two tools of one name in {names_of_tools}")


def _check_terms(who: str, given: Mapping[str, Any]) -> None:
    if given.get("cache") is not None:
        checked(given["cache"], who)
    if type(given.get("speculate", False)) is not bool:
        raise UsageError(f"{who}: speculate is True or False, not {given['speculate']!r}")
    if not (given.get("priority") is None or type(given["priority"]) is int):
        raise UsageError(f"{who}: priority is a whole number, not {given['priority']!r}")
    if given.get("deadline_s") is not None and not 0 < given["deadline_s"] < 1e9:
        raise UsageError(f"{who}: deadline_s is a time above 0, not {given['deadline_s']!r}")
    if given.get("budget") is not None and type(given["budget"]) is not int:
        raise UsageError(f"{who}: budget is a whole number of tokens, not {given['budget']!r}")
    if given.get("cheaper") and not given.get("budget"):
        raise UsageError(f"{who}: a cheaper model is for when a budget runs out: give a budget")
