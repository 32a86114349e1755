"""What the replies of one call of an agent ask of its tools, and what those answer.

Each tool call is answered exactly once; equal calls of a pure tool are one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from accord.agent import recall
from accord.agent.reading import Item
from accord.agent.tool import InvalidArgumentsError
from accord.comm.space import order_of
from accord.engine.base import Message, Reply, ToolCall
from accord.errors import FlowChangedError, LogError, ToolError, UnknownOutcomeError
from accord.flow.call import call
from accord.flow.scope import CallScope, current_scope
from accord.log.log import Log
from accord.sync.gather import gather

if TYPE_CHECKING:
    from accord.agent.agent import Agent


class Answer(NamedTuple):
    """What a tool call gets; ``path`` is the place of the call, empty if it was not made."""

    text: str
    path: str = ""
    failed: bool = False
    cut: bool = False
    """The rest of it has a handle."""


Answers = dict[tuple[str, str], Answer]
"""By the identity of the call."""


class ToolUse:
    """The tools of ``agent``. Those with effects wait until ``clear`` is set."""

    def __init__(self, agent: Agent[Any], log: Log, clear: asyncio.Event | None) -> None:
        self.offers_recall = False
        """Handles stand in the prompt."""
        self.mistakes: list[str] = []
        """What was wrong with the calls of the present reply."""
        self._agent = agent
        self._log = log
        self._clear = clear
        self._tools = {tool.name: tool for tool in agent.tools}
        self._known: Answers = {}
        """What calls of pure tools have answered, by their arguments."""
        self._rounds = 0
        self._steps: list[object] = []

    def fits(self, wanted: ToolCall) -> bool:
        """There is such a tool, and it takes such arguments."""
        if wanted.name == recall.SPEC.name:
            return True
        try:
            self._tools[wanted.name].arguments(wanted.arguments)
        except (KeyError, InvalidArgumentsError):
            return False
        return True

    def is_harmless(self, wanted: ToolCall) -> bool:
        """It can be called, whether it is asked for or not."""
        tool = self._tools.get(wanted.name)
        return tool is not None and tool.pure and not tool.delegates and self.fits(wanted)

    async def make(self, calls: Sequence[ToolCall]) -> Answers:
        """Make what ``calls`` ask for that is not known yet, each once and all at once."""
        keys = [self._identity(index, each) for index, each in enumerate(calls)]
        new = {k: each for k, each in zip(keys, calls, strict=True) if k not in self._known}
        made = await gather(self._answer(each) for each in new.values())
        return dict(zip(new, made, strict=True))

    def end_round(self, reply: Reply, made: Answers) -> tuple[list[Message], list[Item]]:
        """What the history gets of a reply and of what its calls gave: once each."""
        keys = [self._identity(index, each) for index, each in enumerate(reply.tool_calls)]
        answers = self._known | made
        self.offers_recall = self.offers_recall or any(each.cut for each in made.values())
        self._known = {key: each for key, each in answers.items() if self._serves(key, each)}
        given = [answers[key] for key in keys]
        hint = self._repetition(reply.tool_calls, given)
        tool_calls = [_with_valid_arguments(each) for each in reply.tool_calls]
        said = Message(
            role="assistant", content=reply.text, origin="history", tool_calls=tuple(tool_calls)
        )
        results = [
            Message(role="tool", content=answer.text + hint, origin="tools", tool_call_id=each.id)
            for each, answer in zip(tool_calls, given, strict=True)
        ]
        items = [_item(each, answer) for each, answer in zip(tool_calls, given, strict=True)]
        self._rounds += 1
        return [said, *results], items

    def _serves(self, key: tuple[str, str], answer: Answer) -> bool:
        """An answer holds for later rounds, too; a tool that has a veto is called again."""
        tool = self._tools.get(key[0])
        return tool is not None and tool.cache is True and not answer.failed

    def _identity(self, index: int, wanted: ToolCall) -> tuple[str, str]:
        """Equal calls of a pure tool are one call; any other stands for itself."""
        tool = self._tools.get(wanted.name)
        if tool is None or not tool.pure:
            return "", f"{self._rounds}/{index}"
        try:
            return wanted.name, repr(tool.arguments(wanted.arguments))
        except InvalidArgumentsError:
            return wanted.name, wanted.arguments

    async def _answer(self, wanted: ToolCall) -> Answer:
        if wanted.name == recall.SPEC.name and self.offers_recall:
            return Answer(await self._recall(wanted))
        tool = self._tools.get(wanted.name)
        if tool is None:
            return self._mistaken(
                f"there is no tool {wanted.name!r}; there are {sorted(self._tools)}"
            )
        if self._clear is not None and (tool.delegates or not tool.pure):
            await self._clear.wait()
        path, failed = current_scope("an agent's tools").place, False
        try:
            text = await tool.answer(wanted, self._agent.cache)
        except InvalidArgumentsError as error:
            return self._mistaken(
                f"invalid arguments {wanted.arguments!r} for {wanted.name}: {error}"
            )
        except (LogError, FlowChangedError, UnknownOutcomeError):
            raise
        except Exception as error:  # noqa: BLE001  # the model is told, and may try otherwise
            text, failed = f"error: {type(error).__name__}: {error}", True
        shown = recall.cut(text, self._agent.result_tokens, f"#{path}")
        return Answer(shown, path, failed, cut=shown is not text)

    async def _recall(self, wanted: ToolCall) -> str:
        agent, log = self._agent, self._log

        async def body(scope: CallScope) -> str:
            return recall.answer(log, wanted.arguments, agent.name, agent.spec, scope.start)

        found: str = await call(
            "tool", recall.SPEC.name, [wanted.arguments], body, pure=True, keep_input=True
        )
        return found

    def _mistaken(self, message: str) -> Answer:
        self.mistakes.append(message)
        return Answer(f"error: {message}", failed=True)

    def _repetition(self, calls: Sequence[ToolCall], answers: Sequence[Answer]) -> str:
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


def _item(wanted: ToolCall, answer: Answer) -> Item:
    return Item(
        order=order_of(answer.path or "0"),
        seq=0,
        handle=f"#{answer.path}" if answer.path else "",
        title=f"{wanted.name}({wanted.arguments})",
        writer=wanted.name,
        text=answer.text,
    )


def _with_valid_arguments(wanted: ToolCall) -> ToolCall:
    """Engines refuse a history whose arguments are no JSON object."""
    try:
        if isinstance(msgspec.json.decode(wanted.arguments.encode("utf-8", "replace")), dict):
            return wanted
    except (msgspec.DecodeError, RecursionError):
        pass
    return ToolCall(id=wanted.id, name=wanted.name, arguments="{}")
