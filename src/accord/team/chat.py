"""Group chat: members take turns on one transcript, until a condition says that it is over.

Choose it where who speaks next depends on what was said. It costs the time of all turns one after
another; where parts do not need each other, a :class:`accord.team.crew.Crew` or ``gather`` is
faster.

The task and the transcript are keys of the board. Each member is shown the conclusions of others'
turns, as ``sees`` says, each once, and never their tools. The transcript, and each choice of who
speaks that was not a plain rule's, are in the log. A chat is a call: a finished one answers from
the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

from accord.agent.agent import Agent
from accord.agent.ending import Ending
from accord.agent.reading import Visibility
from accord.clock import NANOSECONDS
from accord.comm.blackboard import Blackboard
from accord.engine.base import Usage
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.scope import CallScope
from accord.observe.ledger import add_usages
from accord.team.member import (
    Member,
    check_members,
    check_team,
    conclusion_of,
    derived,
    description_of,
)
from accord.team.plan import Assignment
from accord.team.roster import Roster, UnknownNameError
from accord.team.speakers import Naming, Speakers, Swarm, as_speakers
from accord.team.termination import (
    MaxMessages,
    Termination,
    TextMention,
    Timeout,
    TokenUsage,
    as_termination,
)
from accord.team.transcript import NO_USAGE, ChatMessage, Choice, Floor, said, settled, situation_of
from accord.team.usage import usage_between

SpeakersLike = (
    Speakers
    | Literal["round_robin", "bids", "swarm", "manager"]
    | Mapping[str, str | Iterable[str]]
    | Naming
)
"""What ``speakers`` may be; see :mod:`accord.team.speakers`."""
TURNS_EACH, FEWEST, MOST = 4, 12, 1000
"""The bound of a chat that was given none: so many turns for each member, and at least so many;
with a bound of time or tokens, which an engine may never reach, the most."""


@dataclass(frozen=True, kw_only=True)
class ChatResult:
    """What a chat came to.

    ``stopped`` says why it is over; ``met`` and ``unmet`` are the conditions that were, and were
    not.
    ``choices`` counts how often somebody was to say who speaks, ``fallbacks`` how often a rule had
    to stand in, ``loops`` how often that was because the same was said again and again,
    ``corrections`` how often a manager was asked again, ``unasked`` for how many of the fallbacks
    it was not asked at all, as its plans had been of no use (:mod:`accord.team.manager`).
    """

    messages: tuple[ChatMessage, ...]
    stopped: str
    met: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    choices: int = 0
    fallbacks: int = 0
    loops: int = 0
    corrections: int = 0
    unasked: int = 0

    @property
    def output(self) -> Any:
        """What was said last; empty if nobody spoke."""
        return self.messages[-1].content if self.messages else ""

    @property
    def turns(self) -> dict[str, int]:
        """How often each spoke."""
        return dict(Counter(message.speaker for message in self.messages))

    @property
    def usage(self) -> Usage:
        """Tokens up to the last message, coordination included."""
        return self.messages[-1].usage if self.messages else NO_USAGE


@dataclass(frozen=True)
class GroupChat:
    """``await GroupChat([writer, critic], until=MaxMessages(6))("Write a slogan.")``.

    ``speakers``     who speaks next: ``"round_robin"``, ``"manager"``, ``"bids"``, ``"swarm"``, a
                     function of the messages, a dict of who may follow whom, or an object of
                     :mod:`accord.team.speakers` with options
    ``until``        a condition of :mod:`accord.team.termination`; conditions combine with ``|``
                     and ``&``. A chat without a bound gets one
    ``sees``         how much of what others said each is shown
    ``transitions``  who may follow whom, whatever ``speakers`` says
    ``repeats``      whether a member may speak twice in a row; None leaves it to ``speakers``
    ``loop_limit``   how often in a row a model may give the word in the same way

    Immutable, and without state: one chat may be held many times at once.
    """

    participants: Sequence[Member]
    _: KW_ONLY
    speakers: SpeakersLike = "round_robin"
    until: Termination | Ending | Callable[[Sequence[ChatMessage]], bool] | None = None
    sees: Visibility = "summary"
    transitions: Mapping[str, str | Iterable[str]] | None = None
    repeats: bool | None = None
    loop_limit: int = 3
    name: str = "chat"
    description: str = ""
    ends: Termination = field(init=False, repr=False)
    """``until``, with a bound."""
    roster: Roster = field(init=False, repr=False, compare=False)
    chooser: Speakers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        who = f"chat {self.name!r}"
        members = check_members(self.participants, who)
        put = partial(object.__setattr__, self)
        put("participants", members)
        put("roster", Roster((member.name for member in members), who))
        put("chooser", as_speakers(self.speakers))
        given: Any = self.speakers
        rules = cast("Any", given) if isinstance(given, Mapping) else self.transitions
        put("transitions", _transitions(rules, self.roster, who))
        put("ends", _bounded(self.until, self.roster, who))
        _check(self, who)

    async def __call__(self, task: str) -> ChatResult:
        """Hold the chat on ``task``."""
        if not isinstance(cast("object", task), str) or not task.strip():
            raise UsageError(f"chat {self.name!r} needs a task in words, not {task!r}")
        result: ChatResult = await call(
            "agent",
            self.name,
            [task],
            partial(self._hold, task),
            version=f"{self.sees} {' '.join(self.roster)}",
        )
        return result

    async def _hold(self, task: str, scope: CallScope) -> ChatResult:
        return await _Held(self, task, scope).run()


class _Held:
    """One chat being held: all that is here follows from the answers that the log has."""

    def __init__(self, chat: GroupChat, task: str, scope: CallScope) -> None:
        self._chat = chat
        self._scope = scope
        self._log = scope.execution.log
        self._board = Blackboard(f"{chat.name} {scope.path}")
        self._members = {
            member.name: self._member(member) if isinstance(member, Agent) else member
            for member in chat.participants
        }
        self._usage = NO_USAGE
        self._counted = scope.start
        """The event up to which usage is added up."""
        repeats = chat.chooser.repeats if chat.repeats is None else chat.repeats
        self._floor = Floor(
            task=task,
            roster=chat.roster,
            descriptions={each.name: description_of(each) for each in chat.participants},
            repeats=repeats,
            transitions=cast("Mapping[str, tuple[str, ...]] | None", chat.transitions),
        )

    async def run(self) -> ChatResult:
        self._board.write("task", self._floor.task)
        while True:
            choice = await self._choose()
            if not choice.assignments:
                return self._result(_done(choice) if choice.done else "nobody may speak")
            for assignment in choice.assignments:
                await self._turn(assignment)
                if self._chat.ends.met(self._floor.messages):
                    return self._result("")
            if choice.done:
                return self._result(_done(choice))

    async def _choose(self) -> Choice:
        chat, floor = self._chat, self._floor
        choice = settled(await chat.chooser.choose(floor, self._members), floor, chat.loop_limit)
        if choice.by != "rule":
            self._board.append("choices", choice)
        self._floor = replace(floor, choices=(*floor.choices, choice))
        return choice

    async def _turn(self, assignment: Assignment) -> None:
        member = self._members[assignment.to]
        instruction = assignment.instruction
        if isinstance(member, Agent):
            content = await (member(instruction) if instruction else member())
        else:
            situation = situation_of(self._floor, 2000, 800)
            content = conclusion_of(
                await member("\n\n".join(filter(None, (situation, instruction))))
            )
            self._board.append("said", f"{member.name}:\n{said(content)}")
        self._add(assignment, content)

    def _add(self, assignment: Assignment, content: Any) -> None:
        end = self._scope.frontier[-1]
        used = usage_between(self._log, self._scope.path, self._counted, end)
        self._usage, self._counted = add_usages([self._usage, used]), end
        began, at = (self._log.envelopes[seq].at for seq in (self._scope.start, end))
        message = ChatMessage(
            speaker=assignment.to,
            content=content,
            instruction=assignment.instruction,
            after_s=(at - began) / NANOSECONDS,
            usage=self._usage,
        )
        self._floor = replace(self._floor, messages=(*self._floor.messages, message))

    def _result(self, stopped: str) -> ChatResult:
        messages, choices = self._floor.messages, self._floor.choices
        parts = {str(part): part.met(messages) for part in self._chat.ends.parts}
        met = tuple(part for part, is_met in parts.items() if is_met)
        return ChatResult(
            messages=messages,
            stopped=stopped or " and ".join(met),
            met=met,
            unmet=tuple(part for part, is_met in parts.items() if not is_met),
            choices=len(choices),
            fallbacks=sum(choice.by == "fallback" for choice in choices),
            loops=sum(choice.loop > 0 for choice in choices),
            corrections=sum(choice.corrections for choice in choices),
            unasked=sum(choice.unasked for choice in choices),
        )

    def _member(self, agent: Agent[Any]) -> Agent[Any]:
        """The participant as it works here: it reads the task and what others said."""
        chat, prefix = self._chat, f"{self._chat.name} {self._scope.path}/"
        changes: dict[str, Any] = {}
        if agent.spec.sees == "nothing":
            changes["sees"] = chat.sees
        endings = (part.ending for part in chat.ends.parts if isinstance(part, TextMention))
        if agent.ending is None:
            changes["ending"] = next((e for e in endings if e.instruction(agent.name)), None)
        if isinstance(chat.chooser, Swarm):
            agent = chat.chooser.prepared(agent, chat.roster)
        return derived(
            agent,
            shares=[f"{prefix}task"],
            reads={f"{prefix}said": chat.sees},
            writes={f"{prefix}said": "append"},
            **changes,
        )


def _done(choice: Choice) -> str:
    return f"the {choice.by} is done"


def _transitions(
    rules: Mapping[str, str | Iterable[str]] | None, roster: Roster, who: str
) -> dict[str, tuple[str, ...]] | None:
    if rules is None:
        return None
    try:
        return {
            roster.match(name): tuple(
                roster.match(each) for each in ([after] if isinstance(after, str) else after)
            )
            for name, after in rules.items()
        }
    except UnknownNameError as error:
        raise UsageError(f"{who}: who may follow whom: {error}") from error


def _bounded(until: Any, roster: Roster, who: str) -> Termination:
    """``until``, or a bound in its place or beside it."""
    most = MaxMessages(max(FEWEST, TURNS_EACH * len(roster)))
    if until is None:
        return most
    ends = as_termination(until)
    for part in ends.parts:
        if missing := [name for name in part.names if name not in roster.names]:
            raise UsageError(
                f"{who}: {part} waits for {missing[0]!r}, who is not in it; there are: "
                f"{', '.join(roster)}"
            )
    if any(isinstance(part, Timeout | TokenUsage) for part in ends.parts):
        most = MaxMessages(MOST)
    return ends if ends.bounded else ends | most


def _check(chat: GroupChat, who: str) -> None:
    check_team("chat", chat.name, chat.roster, chat.sees)
    if chat.loop_limit < 1:
        raise UsageError(f"{who}: loop_limit is at least 1, not {chat.loop_limit}")
