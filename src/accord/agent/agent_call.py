"""One call of an agent: requests until there is an answer. Within it, the prompt only grows.

Each tool call that a reply asks for is answered exactly once. Rounds, corrections and repetitions
are bounded. Results too large for a prompt stay in the log, and the prompt names their handle.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from accord.agent import recall
from accord.agent.context import Composer, Prompt, asked, summary_message
from accord.agent.history import VIEW, History
from accord.agent.reading import Item, search_items
from accord.agent.request import ask, wanted_by
from accord.agent.rounds import Rounds
from accord.agent.schema import InvalidReplyError
from accord.agent.tool_use import Answers, ToolUse
from accord.agent.window import Room
from accord.comm.post import Post
from accord.engine.base import Capabilities, Message, Reply, Request, ToolCall
from accord.errors import EngineError, OutputError, ToolError
from accord.flow.hold import Hold
from accord.flow.note import note
from accord.flow.scope import CallScope, Scope
from accord.log.events import Looked
from accord.schedule.budget import Spending
from accord.sync.speculate import of_before
from accord.sync.speculation import NO_GUESS, Speculation
from accord.tokens.count import estimate
from accord.tokens.extract import shortened
from accord.tokens.summary import pays

if TYPE_CHECKING:
    from accord.agent.agent import Agent

T = TypeVar("T")

_GO_ON = Message(role="user", content="Go on.", origin="task")
"""What is asked of an agent that is given nothing: engines want a question."""


class AgentCall(Generic[T]):
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
        self._engine = Capabilities()
        self._rounds = Rounds([])
        self._tools = ToolUse(agent, scope.execution.log, clear)
        self._corrections = self._tool_rounds = 0

    async def run(self) -> T:
        """The agent's answer."""
        agent = self._agent
        if self._scope.hold is not None and self._must_be_certain(self._scope.hold):
            await self._scope.certain()
        self._engine = await self._scope.execution.schedulers.of(agent.engine).start()
        if agent.tools and not self._engine.tools:
            warnings.warn(
                f"agent {agent.name!r} has tools, but the model {self._engine.model!r} cannot be "
                "told of them (its chat template has none): they are not offered",
                stacklevel=2,
            )
        prompt = self._look(await self._remembered())
        if agent.summariser is not None and prompt.covered:
            prompt = await self._in_its_words(prompt, agent.summariser)
        self._rounds, self._tools.offers_recall = Rounds(prompt.messages), prompt.names_handles
        while True:
            reply, made = await self._next_round()
            if reply.tool_calls:
                self._correct(reply)
                self._rounds.add(*self._tools.end_round(reply, made))
                continue
            try:
                return agent.reply_type.parse(reply.text)
            except InvalidReplyError as error:
                self._send_back(reply, error)

    def _must_be_certain(self, hold: Hold) -> bool:
        """What it reads counts as taken; or it remembers what it says in the call foretold."""
        agent, log = self._agent, self._scope.execution.log
        if any(read.space == "mail" for read in agent.spec.reads):
            return True
        places = log.fold(History).places(agent.name)
        return agent.spec.keeps_history and any(map(hold.depends_on, places))

    async def _remembered(self) -> list[Item]:
        """What the agent's memory holds that goes with what it is asked."""
        agent, log = self._agent, self._scope.execution.log
        if agent.memory is None:
            return []
        question = "\n".join(message.content for message in self._asked)
        return await search_items(agent.memory, question, agent.spec.memory_items, log)

    def _look(self, remembered: Sequence[Item]) -> Prompt:
        """What the prompt begins with. What it shows of others' writing is recorded."""
        agent = self._agent
        if not agent.spec.looks:
            return Prompt(before=[*agent.role, *(self._asked or [_GO_ON]), *agent.passing])
        most = Room(self._engine, self._request([])).most
        prompt = Prompt()

        def decide(scope: Scope, position: int) -> Looked:
            nonlocal prompt
            composer = Composer(
                agent.name, agent.role, agent.spec, remembered, scope=scope, position=position
            )
            affordable = self._affordable(position)
            bounds = [each for each in (most, affordable) if each is not None]
            prompt = composer.compose(self._asked, min(bounds, default=None), self._engine)
            shown = composer.messages_shown()
            return Looked(what=VIEW, by=agent.name, views=prompt.views, took=shown)

        note(VIEW, decide)
        self._scope.execution.log.fold(Post)  # senders that wait for room wake
        last = prompt.messages[-1:]
        go_on = [] if last and last[0].role == "user" else [_GO_ON]
        return replace(prompt, after=[*prompt.after, *go_on, *agent.passing])

    def _affordable(self, position: int) -> int | None:
        """The longest prompt that its budget leaves room for, as of a position of the log."""
        agent = self._agent
        if agent.budget is None:
            return None
        wanted = wanted_by(self._request([]), agent.terms, self._engine)
        spending = self._scope.execution.log.fold(Spending)
        left = agent.budget - spending.used(agent.name, wanted.weight, position)
        return max(0, int(left / (wanted.weight or 1.0)) - wanted.least - wanted.prompt)

    async def _in_its_words(self, prompt: Prompt, summariser: Agent[str]) -> Prompt:
        """The prompt with a summary that an agent wrote; as it is, if that agent fails."""
        covered = prompt.covered
        most = min(self._agent.spec.summary_tokens, sum(i.tokens for i in covered) // 20)
        try:
            told = await summariser(
                "\n\n".join(f"{item.handle} {item.shown}" for item in covered),
                at_most=f"{most} tokens; keep handles such as {covered[0].handle}",
            )
        except (EngineError, OutputError):
            return prompt  # it is in the log; what was extracted serves as well
        handles = f"{covered[0].handle}-{covered[-1].handle}"
        text = f"{handles}: {shortened(told, most - estimate(handles) - 1)}"
        return replace(prompt, summary=summary_message(text))

    async def _ask(self) -> Reply:
        agent = self._agent
        room = Room(self._engine, self._request([]))
        self._fold_rounds(room.most)
        messages = self._rounds.messages
        await room.check(messages)
        return await ask(self._request(messages), agent.terms, self._is_usable)

    def _is_usable(self, reply: Reply) -> bool:
        """It is an answer, or asks for tools as it may."""
        if reply.tool_calls:
            return all(map(self._tools.fits, reply.tool_calls))
        return self._parses(reply.text)

    def _parses(self, text: str) -> bool:
        try:
            self._agent.reply_type.parse(text)
        except InvalidReplyError:
            return False
        return True

    def _request(self, messages: Sequence[Message]) -> Request:
        request = self._agent.request(messages)
        tools = (*request.tools, recall.SPEC) if self._tools.offers_recall else request.tools
        offered = sorted(tools, key=lambda spec: spec.name) if self._engine.tools else ()
        return msgspec.structs.replace(request, tools=tuple(offered))

    def _fold_rounds(self, most: int | None) -> None:
        """Older rounds give way to lines with handles, if it pays or there is no room."""
        rounds, spec = self._rounds, self._agent.spec
        over = most is not None and rounds.tokens > most
        if rounds.made < 2 or not (over or spec.summarises):
            return
        folded, price = rounds.folded(spec.summary_tokens), self._engine.cached_price
        if over or pays(rounds.tokens, folded.tokens, rounds.made, price):
            self._rounds, self._tools.offers_recall = folded, True

    async def _next_round(self) -> tuple[Reply, Answers]:
        """The next reply, and what the tools that it asks for answer."""
        if not (self._agent.speculate and self._agent.tools):
            reply = await self._ask_for_round()
            return reply, await self._tools.make(reply.tool_calls) if reply.tool_calls else {}
        name = self._agent.name
        return await Speculation[Reply, Answers](
            site=f"tools of {name}",
            step=self._ask_for_round,
            then=self._make_all,
            guess=self._expected,
            accept=lambda guess, reply: guess == _pairs(reply.tool_calls),
        ).run()

    async def _expected(self, scope: Scope) -> list[list[str]]:
        """The calls of pure tools that the reply which is being written asks for, if any."""
        before = of_before(scope, self._agent.name)
        expected = before.tool_calls if isinstance(before, Reply) else ()
        if expected and all(map(self._tools.is_harmless, expected)):
            return _pairs(expected)
        return NO_GUESS

    async def _make_all(self, asked: Reply | list[list[str]]) -> Answers:
        if isinstance(asked, Reply):
            return await self._tools.make(asked.tool_calls) if asked.tool_calls else {}
        return await self._tools.make([ToolCall("", name, arguments) for name, arguments in asked])

    async def _ask_for_round(self) -> Reply:
        reply = await self._ask()
        if reply.tool_calls:
            self._tool_rounds += 1
            if self._tool_rounds > self._agent.tool_rounds:
                raise self._too_many_rounds()
        return reply

    def _correct(self, reply: Reply) -> None:
        """Replies with mistaken tool calls are sent back ``repairs`` times, however many calls."""
        mistakes, self._tools.mistakes = self._tools.mistakes, []
        if not mistakes:
            return
        self._corrections += 1
        if self._corrections > self._agent.repairs:
            raise ToolError(
                f"agent {self._agent.name!r} could not call its tools in {self._corrections} "
                f"replies; the last one: {'; '.join(mistakes)} ({reply.text[:200]!r})"
            )

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

    def _too_many_rounds(self) -> ToolError:
        return ToolError(
            f"agent {self._agent.name!r} asked for tools in more than "
            f"{self._agent.tool_rounds} replies; raise tool_rounds, or say in its instructions "
            "when to stop"
        )


def _pairs(calls: Sequence[ToolCall]) -> list[list[str]]:
    """Names and arguments, for ids differ each time."""
    return [[each.name, each.arguments] for each in calls]
