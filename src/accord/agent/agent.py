"""What an agent is: a name, instructions, and the type of its answer.

An :class:`Agent` is an immutable definition and an async callable. It holds no state, so one
may serve many runs at once; whatever happens in a call is in the log of its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import msgspec

from accord.agent.context import opening
from accord.agent.request import Retry, ask
from accord.agent.schema import InvalidReplyError, OutputType
from accord.agent.tool import InvalidArgumentsError, Tool
from accord.engine.base import Engine, Message, Reply, Request, ToolCall
from accord.errors import (
    FlowChangedError,
    LogError,
    OutputError,
    ToolError,
    UnknownOutcomeError,
    UsageError,
)
from accord.flow.call import call
from accord.flow.scope import CallScope
from accord.log.blobs import digest_of
from accord.sync.gather import gather

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 1024


@dataclass(frozen=True, init=False, slots=True)
class Agent(Generic[T]):
    """A role that answers: ``await Agent("writer", "Write one section.")(section)``.

    ``output``        the type of the answer; anything but ``str`` is asked for as JSON
    ``tools``         functions made with ``@tool`` that the agent may call
    ``max_tokens``    the longest reply; the engine's window must hold it beside the prompt
    ``timeout_s``     bounds a whole call of the agent, repairs and retries included
    ``repairs``       how often a wrong reply or tool call is sent back with the error
    ``tool_rounds``   how many replies in one call may ask for tools
    ``engine``        another engine than the run's
    ``coordination``  its tokens are overhead of working together: managers, selectors
    ``extra``         further fields of the request body, as the engine names them
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
    engine: Engine | None
    coordination: bool
    extra: Mapping[str, Any]
    reply_type: OutputType = field(repr=False, compare=False)
    _version: str = field(repr=False, compare=False)

    @overload
    def __init__(
        self: Agent[str],
        name: str,
        instructions: str = "",
        *,
        tools: Sequence[Tool[..., Any]] = (),
        model: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        timeout_s: float | None = None,
        retry: Retry | None = None,
        repairs: int = 2,
        tool_rounds: int = 8,
        engine: Engine | None = None,
        coordination: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        instructions: str = "",
        *,
        output: type[T],
        tools: Sequence[Tool[..., Any]] = (),
        model: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        timeout_s: float | None = None,
        retry: Retry | None = None,
        repairs: int = 2,
        tool_rounds: int = 8,
        engine: Engine | None = None,
        coordination: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        instructions: str = "",
        *,
        output: Any = str,
        tools: Sequence[Tool[..., Any]] = (),
        model: str | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        timeout_s: float | None = None,
        retry: Retry | None = None,
        repairs: int = 2,
        tool_rounds: int = 8,
        engine: Engine | None = None,
        coordination: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        _check(name, tools, max_tokens, repairs, tool_rounds)
        put = object.__setattr__
        put(self, "name", name)
        put(self, "instructions", instructions)
        put(self, "output", output)
        put(self, "tools", tuple(sorted(tools, key=lambda tool: tool.name)))
        put(self, "model", model)
        put(self, "max_tokens", max_tokens)
        put(self, "temperature", temperature)
        put(self, "seed", seed)
        put(self, "stop", tuple(stop))
        put(self, "timeout_s", timeout_s)
        put(self, "retry", retry or Retry())
        put(self, "repairs", repairs)
        put(self, "tool_rounds", tool_rounds)
        put(self, "engine", engine)
        put(self, "coordination", coordination)
        put(self, "extra", dict(extra or {}))
        put(self, "reply_type", OutputType(output))
        put(self, "_version", _version(self.instructions, self.request([])))

    async def __call__(self, *inputs: Any, **named: Any) -> T:
        """The agent's answer to ``inputs``: texts as they stand, anything else as JSON.

        Raises :class:`accord.errors.OutputError` if the answer never has the declared type,
        :class:`accord.errors.EngineError` if the engine fails for good.
        """

        async def body(_scope: CallScope) -> T:
            return await _Turn(self, inputs, named).run()

        result: T = await call(
            "agent",
            self.name,
            [*inputs, named] if named else [*inputs],
            body,
            version=self._version,
            coordination=self.coordination,
            timeout_s=self.timeout_s,
        )
        return result

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


class _Turn(Generic[T]):
    """One call of an agent: requests until there is an answer. The history only grows."""

    def __init__(self, agent: Agent[T], inputs: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._agent = agent
        self._type = agent.reply_type
        form = self._type.instruction()
        self._messages = opening(agent.instructions, form, inputs, named)
        self._corrections = 0

    async def run(self) -> T:
        rounds = 0
        while True:
            reply = await self._ask()
            if reply.tool_calls:
                rounds += 1
                if rounds > self._agent.tool_rounds:
                    raise self._too_many_rounds()
                await self._use_tools(reply)
                continue
            try:
                return self._type.parse(reply.text)
            except InvalidReplyError as error:
                self._send_back(reply, error)

    async def _ask(self) -> Reply:
        agent = self._agent
        request = agent.request(self._messages)
        return await ask(
            request, engine=agent.engine, retry=agent.retry, coordination=agent.coordination
        )

    def _send_back(self, reply: Reply, error: InvalidReplyError) -> None:
        """Show the model what is wrong with its reply; give up after ``repairs`` times."""
        agent = self._agent
        cut = reply.finish_reason == "length"
        why = f"it was cut off at {agent.max_tokens} tokens" if cut else str(error)
        if self._corrections >= agent.repairs:
            msg = (
                f"agent {agent.name!r} did not reply with {self._type.name} in "
                f"{agent.repairs + 1} attempts; the last one: {why}\n"
                f"schema: {msgspec.json.encode(self._type.schema).decode()}\n"
                f"reply: {reply.text}\n"
                + ("Raise max_tokens" if cut else "Simplify the type, or use a stronger model")
            )
            raise OutputError(msg, schema=self._type.schema, text=reply.text)
        self._corrections += 1
        ask = "Reply shorter." if cut else "Reply with the corrected JSON only."
        self._messages += [
            Message(role="assistant", content=reply.text, origin="history"),
            Message(role="user", content=f"Invalid: {why}. {ask}", origin="instructions"),
        ]

    async def _use_tools(self, reply: Reply) -> None:
        """Call what the reply asks for, at once, and answer each call exactly once."""
        answers = await gather(self._answer(asked) for asked in reply.tool_calls)
        asked = tuple(_with_valid_arguments(tool_call) for tool_call in reply.tool_calls)
        said = Message(role="assistant", content=reply.text, origin="history", tool_calls=asked)
        self._messages.append(said)
        self._messages += [
            Message(role="tool", content=answer, origin="tools", tool_call_id=tool_call.id)
            for tool_call, answer in zip(asked, answers, strict=True)
        ]

    async def _answer(self, asked: ToolCall) -> str:
        tools = {tool.name: tool for tool in self._agent.tools}
        tool = tools.get(asked.name)
        if tool is None:
            return self._correct(f"there is no tool {asked.name!r}; there are {sorted(tools)}")
        try:
            return await tool.answer(asked)
        except InvalidArgumentsError as error:
            return self._correct(f"invalid arguments {asked.arguments!r}: {error}")
        except (LogError, FlowChangedError, UnknownOutcomeError):
            raise
        except Exception as error:  # noqa: BLE001  # the model is told, and may try otherwise
            return f"error: {type(error).__name__}: {error}"

    def _correct(self, message: str) -> str:
        self._corrections += 1
        if self._corrections > self._agent.repairs:
            msg = f"agent {self._agent.name!r} could not call its tools: {message}"
            raise ToolError(msg)
        return f"error: {message}"

    def _too_many_rounds(self) -> ToolError:
        return ToolError(
            f"agent {self._agent.name!r} asked for tools in more than "
            f"{self._agent.tool_rounds} replies; raise tool_rounds, or say in its instructions "
            "when to stop"
        )


def _version(instructions: str, request: Request) -> str:
    """Changes with whatever the agent's definition sends to an engine."""
    try:
        return digest_of(msgspec.json.encode([instructions, request]))
    except TypeError as error:
        msg = f"agent {request.agent!r}: extra must be plain data, as it goes into a JSON body"
        raise UsageError(f"{msg} ({error})") from error


def _with_valid_arguments(asked: ToolCall) -> ToolCall:
    """Engines refuse a history whose arguments are no JSON object."""
    try:
        if isinstance(msgspec.json.decode(asked.arguments.encode("utf-8", "replace")), dict):
            return asked
    except msgspec.DecodeError:
        pass
    return ToolCall(id=asked.id, name=asked.name, arguments="{}")


def _check(
    name: Any, tools: Sequence[Any], max_tokens: int, repairs: int, tool_rounds: int
) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        msg = f"an agent needs a name of printable text, not {name!r}"
        raise UsageError(msg)
    if max_tokens < 1 or repairs < 0 or tool_rounds < 0:
        msg = f"agent {name!r}: max_tokens must be positive, repairs and tool_rounds not negative"
        raise UsageError(msg)
    for tool in tools:
        if not isinstance(tool, Tool):
            msg = f"agent {name!r}: {tool!r} is not a tool; put @tool on the function"
            raise UsageError(msg)
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        msg = f"agent {name!r}: two tools of one name in {sorted(names)}"
        raise UsageError(msg)
