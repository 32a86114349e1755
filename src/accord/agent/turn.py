"""One call of an agent: requests until there is an answer. Within it, the prompt only grows.

Each tool call that a reply asks for is answered exactly once. Rounds, corrections and repetitions
are bounded. Results too large for a prompt stay in the log, and the prompt names their handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from accord.agent import recall
from accord.agent.context import Composer, Outlook, asked, summary_message
from accord.agent.reading import Item, recalled
from accord.agent.request import ask
from accord.agent.rounds import Rounds
from accord.agent.schema import InvalidReplyError
from accord.agent.session import VIEW
from accord.agent.tool import InvalidArgumentsError
from accord.agent.window import Room
from accord.comm.space import order_of
from accord.engine.base import Capabilities, Message, Reply, Request, ToolCall
from accord.errors import (
    EngineError,
    FlowChangedError,
    LogError,
    OutputError,
    ToolError,
    UnknownOutcomeError,
)
from accord.flow.call import call
from accord.flow.note import note
from accord.flow.scope import CallScope, Scope, current_scope
from accord.log.events import Looked
from accord.sync.gather import gather
from accord.tokens.count import estimate
from accord.tokens.extract import shortened
from accord.tokens.summary import HEAD, pays

if TYPE_CHECKING:
    from accord.agent.agent import Agent

T = TypeVar("T")

_EMPTY = Message(role="user", content="", origin="task")


class _Answer(NamedTuple):
    """What a tool call gets; ``path`` is the place of the call, empty if it was not made."""

    text: str
    path: str = ""


class Turn(Generic[T]):
    """A call of ``agent`` with these inputs, in ``scope``.

    Tools with effects wait until ``clear`` is set.
    """

    def __init__(
        self,
        agent: Agent[T],
        scope: CallScope,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        clear: asyncio.Event | None = None,
    ) -> None:
        self._agent = agent
        self._scope = scope
        self._asked = asked(inputs, named)
        self._clear = clear
        self._engine = Capabilities()
        self._rounds = Rounds([])
        self._tools = {tool.name: tool for tool in agent.tools}
        self._opened = False
        """Handles stand in the prompt, so ``recall`` is offered."""
        self._corrections = 0
        self._known: dict[tuple[str, str], _Answer] = {}
        """What calls of pure tools have answered."""
        self._steps: list[object] = []

    async def run(self) -> T:
        """The agent's answer."""
        agent = self._agent
        self._engine = await self._scope.execution.gates.of(agent.engine).start()
        found: list[Item] = []
        if agent.memory is not None:
            log = self._scope.execution.log
            question = "\n".join(message.content for message in self._asked)
            found = await recalled(agent.memory, question, agent.sight.recalls, log)
        outlook = self._look(found)
        if agent.summariser is not None and outlook.covered:
            outlook = await self._in_its_words(outlook, agent.summariser)
        self._rounds, self._opened = Rounds(outlook.messages), outlook.opened
        tool_rounds = 0
        while True:
            reply = await self._ask()
            if reply.tool_calls:
                tool_rounds += 1
                if tool_rounds > agent.tool_rounds:
                    raise self._too_many_rounds()
                await self._use_tools(reply)
                continue
            try:
                return agent.reply_type.parse(reply.text)
            except InvalidReplyError as error:
                self._send_back(reply, error)

    def _look(self, found: Sequence[Item]) -> Outlook:
        """What the prompt begins with. What it shows of others' writing is recorded."""
        agent = self._agent
        if not agent.sight.looks:
            return Outlook(messages=[*agent.role, *(self._asked or [_EMPTY]), *agent.passing])
        most = Room(self._engine, self._request([])).most
        outlook = Outlook(messages=[])

        def decide(scope: Scope, position: int) -> Looked:
            nonlocal outlook
            sight = agent.sight
            composer = Composer(
                agent.name, agent.role, sight, found, scope=scope, position=position
            )
            outlook = composer.compose(self._asked, most, self._engine)
            return Looked(what=VIEW, by=agent.name, views=outlook.views, took=agent.sight.mailboxes)

        note(VIEW, decide)
        messages = outlook.messages
        if messages[-1:] and messages[-1].role == "user":
            return replace(outlook, messages=[*messages, *agent.passing])
        return replace(outlook, messages=[*messages, _EMPTY, *agent.passing])

    async def _in_its_words(self, outlook: Outlook, summariser: Agent[str]) -> Outlook:
        """The outlook with a summary that an agent wrote; as it is, if that agent fails."""
        covered = outlook.covered
        most = min(self._agent.sight.summary_tokens, sum(i.tokens for i in covered) // 20)
        try:
            told = await summariser(
                "\n\n".join(f"{item.handle} {item.shown}" for item in covered),
                at_most=f"{most} tokens; keep handles such as {covered[0].handle}",
            )
        except (EngineError, OutputError):
            return outlook  # it is in the log; what was extracted serves as well
        handles = f"{covered[0].handle}-{covered[-1].handle}"
        text = f"{handles}: {shortened(told, most - estimate(handles) - 1)}"
        messages = [
            summary_message(text) if HEAD in message.content else message
            for message in outlook.messages
        ]
        return replace(outlook, messages=messages)

    async def _ask(self) -> Reply:
        agent = self._agent
        room = Room(self._engine, self._request([]))
        self._fold_rounds(room.most)
        messages = self._rounds.messages
        await room.check(messages)
        return await ask(
            self._request(messages),
            engine=agent.engine,
            retry=agent.retry,
            coordination=agent.coordination,
        )

    def _request(self, messages: Sequence[Message]) -> Request:
        request = self._agent.request(messages)
        if not self._opened:
            return request
        tools = sorted((*request.tools, recall.SPEC), key=lambda spec: spec.name)
        return msgspec.structs.replace(request, tools=tuple(tools))

    def _fold_rounds(self, most: int | None) -> None:
        """Older rounds give way to lines with handles, if it pays or there is no room."""
        rounds, sight = self._rounds, self._agent.sight
        if rounds.made < 2 or not (sight.summarises or most is not None):
            return
        over = most is not None and rounds.tokens > most
        if not (over or sight.summarises):
            return
        folded, price = rounds.folded(sight.summary_tokens), self._engine.cached_price
        if over or pays(rounds.tokens, folded.tokens, rounds.made, price):
            self._rounds, self._opened = folded, True

    async def _use_tools(self, reply: Reply) -> None:
        """Call what the reply asks for, at once, and answer each call exactly once."""
        keys = [self._identity(index, call) for index, call in enumerate(reply.tool_calls)]
        new = {
            key: call
            for key, call in zip(keys, reply.tool_calls, strict=True)
            if key not in self._known
        }
        made = await gather(self._answer(call) for call in new.values())
        answers = self._known | dict(zip(new, made, strict=True))
        self._known = {key: answers[key] for key in answers if key[0]}
        given = [answers[key] for key in keys]
        hint = self._repetition(reply.tool_calls, given)
        asked = [_with_valid_arguments(call) for call in reply.tool_calls]
        said = Message(
            role="assistant", content=reply.text, origin="history", tool_calls=tuple(asked)
        )
        results = [
            Message(role="tool", content=answer.text + hint, origin="tools", tool_call_id=call.id)
            for call, answer in zip(asked, given, strict=True)
        ]
        items = [_item(call, answer) for call, answer in zip(asked, given, strict=True)]
        self._rounds.add([said, *results], items)

    def _identity(self, index: int, asked: ToolCall) -> tuple[str, str]:
        """Equal calls of a pure tool are one call; any other stands for itself."""
        tool = self._tools.get(asked.name)
        if tool is None or not tool.pure:
            return "", f"{self._rounds.made}/{index}"
        return asked.name, asked.arguments

    async def _answer(self, asked: ToolCall) -> _Answer:
        if asked.name == recall.SPEC.name and self._opened:
            return _Answer(await self._recall(asked))
        tool = self._tools.get(asked.name)
        if tool is None:
            known = sorted(self._tools)
            return self._correct(f"there is no tool {asked.name!r}; there are {known}")
        if self._clear is not None and not tool.pure:
            await self._clear.wait()
        try:
            text = await tool.answer(asked)
        except InvalidArgumentsError as error:
            return self._correct(f"invalid arguments {asked.arguments!r}: {error}")
        except (LogError, FlowChangedError, UnknownOutcomeError):
            raise
        except Exception as error:  # noqa: BLE001  # the model is told, and may try otherwise
            text = f"error: {type(error).__name__}: {error}"
        path = _place_of_last_call()
        shown = recall.cut(text, self._agent.result_tokens, f"#{path}")
        if shown is not text:
            self._opened = True
        return _Answer(shown, path)

    async def _recall(self, asked: ToolCall) -> str:
        agent, log = self._agent, self._scope.execution.log

        async def body(scope: CallScope) -> str:
            return recall.answer(log, asked.arguments, agent.name, agent.sight, scope.start)

        found: str = await call(
            "tool", recall.SPEC.name, [asked.arguments], body, pure=True, keep_input=True
        )
        return found

    def _send_back(self, reply: Reply, error: InvalidReplyError) -> None:
        """Show the model what is wrong with its reply; give up after ``repairs`` times."""
        agent = self._agent
        cut = reply.finish_reason == "length"
        why = f"it was cut off at {agent.max_tokens} tokens" if cut else str(error)
        if self._corrections >= agent.repairs:
            msg = (
                f"agent {agent.name!r} did not reply with {agent.reply_type.name} in "
                f"{agent.repairs + 1} attempts; the last one: {why}\n"
                f"schema: {msgspec.json.encode(agent.reply_type.schema).decode()}\n"
                f"reply: {reply.text}\n"
                + ("Raise max_tokens" if cut else "Simplify the type, or use a stronger model")
            )
            raise OutputError(msg, schema=agent.reply_type.schema, text=reply.text)
        self._corrections += 1
        ask = "Reply shorter." if cut else "Reply with the corrected JSON only."
        said = Message(role="assistant", content=reply.text, origin="history")
        wrong = Message(role="user", content=f"Invalid: {why}. {ask}", origin="instructions")
        self._rounds.add([said, wrong])

    def _correct(self, message: str) -> _Answer:
        self._corrections += 1
        if self._corrections > self._agent.repairs:
            raise ToolError(f"agent {self._agent.name!r} could not call its tools: {message}")
        return _Answer(f"error: {message}")

    def _repetition(self, calls: Sequence[ToolCall], answers: Sequence[_Answer]) -> str:
        """What to tell a model that makes the same step again; raises where it goes on."""
        limit = self._agent.loop_limit
        step = [
            (call.name, call.arguments, answer.text)
            for call, answer in zip(calls, answers, strict=True)
        ]
        self._steps = [*self._steps, step] if self._steps[-1:] == [step] else [step]
        times = len(self._steps)
        if times > limit:
            raise ToolError(
                f"agent {self._agent.name!r} goes round in circles: {times} times in a row it "
                f"called {calls[0].name}({calls[0].arguments}), with the same result; say in its "
                "instructions when to stop, or raise loop_limit"
            )
        if times < 2:
            return ""
        return f"\n[the same as before, {times} times now: answer, or do something else]"

    def _too_many_rounds(self) -> ToolError:
        return ToolError(
            f"agent {self._agent.name!r} asked for tools in more than "
            f"{self._agent.tool_rounds} replies; raise tool_rounds, or say in its instructions "
            "when to stop"
        )


def _place_of_last_call() -> str:
    """Where the running code made its last call."""
    scope = current_scope("an agent's tools")
    return scope.execution.log.envelopes[scope.frontier[-1]].scope


def _item(asked: ToolCall, answer: _Answer) -> Item:
    return Item(
        order=order_of(answer.path or "0"),
        seq=0,
        handle=f"#{answer.path}" if answer.path else "",
        title=f"{asked.name}({asked.arguments})",
        writer=asked.name,
        text=answer.text,
    )


def _with_valid_arguments(asked: ToolCall) -> ToolCall:
    """Engines refuse a history whose arguments are no JSON object."""
    try:
        if isinstance(msgspec.json.decode(asked.arguments.encode("utf-8", "replace")), dict):
            return asked
    except (msgspec.DecodeError, RecursionError):
        pass
    return ToolCall(id=asked.id, name=asked.name, arguments="{}")
