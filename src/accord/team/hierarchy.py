"""Managers over managers: each plans for a few, who work at once, and joins what they did.

No manager speaks to more than ``span`` subordinates, so its prompts are as long in a crew of a
thousand as in one of four, and the time of a crew grows with the depth of its tree, the logarithm
of its size. A manager has no tools: it can do none of the work itself. It sees conclusions, each
cut to a bound, and never how they were come by. What only one subordinate did is passed on as it
is.

Where a manager's plan is of no use, all its subordinates are given the whole of what it was given.
After two such plans running it is not asked for as many tasks as it has subordinates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from accord.agent.agent import Agent
from accord.agent.options import AgentOptions
from accord.comm.blackboard import Blackboard
from accord.errors import UsageError
from accord.sync.gather import gather
from accord.team.member import DESCRIPTION_TOKENS, Member, description_of
from accord.team.plan import (
    CORRECTIONS,
    UNASKED,
    Assignment,
    Outcome,
    Plan,
    Planned,
    ask_for_plan,
    corrections_after,
    is_resting,
)
from accord.team.roster import Roster
from accord.team.transcript import said
from accord.tokens.count import estimate
from accord.tokens.extract import shortened

LEAD = "You manage a team. You do none of the work yourself: you say who does what."
HOW = (
    "Give each member that is needed its part, as 'name: what to do, in a sentence'. They work at "
    "the same time and do not see each other's work."
)
JOIN = "You manage a team. Put what its members did together into one answer, and add nothing."


@dataclass(frozen=True, kw_only=True)
class ManagerOptions:
    """What managers are: ``agent`` are options of each one's :class:`accord.Agent`.

    ``task_tokens`` bound what is shown of a task, ``conclusion_tokens`` of each conclusion.
    """

    instructions: str = ""
    task_tokens: int = 1000
    conclusion_tokens: int = 500
    corrections: int = CORRECTIONS
    agent: AgentOptions | None = None

    def __post_init__(self) -> None:
        if "tools" in (self.agent or {}):
            raise UsageError("a manager has no tools of its own; give them to who does the work")


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """Who gave what to whom. ``by`` a rule, where the manager's plan was of no use."""

    manager: str
    to: str
    instruction: str
    by: Literal["manager", "fallback", "requirement"] = "manager"
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Boss:
    """A manager with its subordinates."""

    name: str
    members: tuple[Member | Boss, ...]

    @property
    def description(self) -> str:
        """What its people are good for."""
        each = max(4, DESCRIPTION_TOKENS * 2 // len(self.members))
        return "; ".join(shortened(f"{m.name} {about(m)}", each) for m in self.members)

    @property
    def depth(self) -> int:
        """Managers one above the other."""
        return 1 + max((m.depth for m in self.members if isinstance(m, Boss)), default=0)

    @property
    def widest(self) -> int:
        """The most subordinates that one manager speaks to."""
        below = (member.widest for member in self.members if isinstance(member, Boss))
        return max(len(self.members), *below, 0)


def about(member: Member | Boss) -> str:
    """What a subordinate is good for, in one line."""
    return member.description if isinstance(member, Boss) else description_of(member)


def tree_of(members: Sequence[Member], span: int, name: str) -> Boss:
    """The flattest tree in which nobody has more than ``span`` subordinates, evenly filled."""
    if len(members) <= span:
        return Boss(name=name, members=tuple(members))
    below = span
    while below * span < len(members):
        below *= span
    groups = -(-len(members) // below)
    bounds = [len(members) * index // groups for index in range(groups + 1)]
    parts = [members[start:end] for start, end in pairwise(bounds)]
    return Boss(
        name=name,
        members=tuple(
            part[0] if len(part) == 1 else tree_of(part, span, f"{name}.{index + 1}")
            for index, part in enumerate(parts)
        ),
    )


Work = Callable[[Member, str], Awaitable[Any]]
"""Has a member do something, and gives its conclusion."""


@dataclass(frozen=True, kw_only=True)
class Led:
    """What came of an assignment, and who gave what to whom for it."""

    value: Any
    delegations: tuple[Delegation, ...] = ()
    corrections: int = 0
    fallbacks: int = 0
    unasked: int = 0


@dataclass(frozen=True, kw_only=True)
class Leading:
    """Leads one task through a tree: plan, work at once, join.

    ``plans`` is what became of each manager's plans so far, added to here: a function of the
    answers, one task after another.
    """

    board: Blackboard
    options: ManagerOptions
    work: Work
    plans: dict[str, list[Outcome]]

    async def lead(self, boss: Boss, task: str, output: Any = str) -> Led:
        """What ``boss`` and its people make of ``task``, as ``output``."""
        roster = Roster((member.name for member in boss.members), boss.name)
        planned, outcome = await self._plan(boss, task, roster)
        plan = _merged(planned.assignments)
        given = [
            Delegation(
                manager=boss.name,
                to=to,
                instruction=plan.get(to) or task,
                by="manager" if plan else "fallback",
                why=planned.problem,
            )
            for to in (plan or roster)
        ]
        led = await self._delegate(boss, task, given, output)
        return replace(
            led,
            corrections=led.corrections + planned.corrections,
            fallbacks=led.fallbacks + (outcome != "useful"),
            unasked=led.unasked + (outcome == "unasked"),
        )

    async def _plan(self, boss: Boss, task: str, roster: Roster) -> tuple[Planned, Outcome]:
        """Its plan, if it is asked and makes one of use."""
        outcomes = self.plans.setdefault(boss.name, [])
        if is_resting(outcomes, len(boss.members)):
            outcomes.append("unasked")
            return Planned(problem=UNASKED), "unasked"
        planned = await ask_for_plan(
            self._planner(boss),
            f"Task:\n{clipped(task, self.options.task_tokens)}",
            roster,
            judge=_not_idle,
            corrections=corrections_after(outcomes, self.options.corrections),
        )
        outcomes.append("useful" if planned.assignments else "useless")
        return planned, outcomes[-1]

    async def _delegate(
        self, boss: Boss, task: str, given: Sequence[Delegation], output: Any
    ) -> Led:
        for delegation in given:
            self.board.append("delegations", delegation)
        by_name = {member.name: member for member in boss.members}
        done = await gather(self._one(by_name[each.to], each.instruction) for each in given)
        names = [each.to for each in given]
        value = await self.joined(boss, task, names, [led.value for led in done], output)
        return Led(
            value=value,
            delegations=(*given, *(d for led in done for d in led.delegations)),
            corrections=sum(led.corrections for led in done),
            fallbacks=sum(led.fallbacks for led in done),
            unasked=sum(led.unasked for led in done),
        )

    async def _one(self, member: Member | Boss, instruction: str) -> Led:
        if isinstance(member, Boss):
            return await self.lead(member, instruction)
        return Led(value=await self.work(member, instruction))

    async def joined(
        self, boss: Boss, task: str, names: Sequence[str], values: Sequence[Any], output: Any
    ) -> Any:
        """One answer out of several; a single text is passed on as it is."""
        if len(values) == 1 and output is str:
            return values[0]
        most = self.options.conclusion_tokens
        parts = [f"{n}:\n{clipped(said(v), most)}" for n, v in zip(names, values, strict=True)]
        asked = f"Task:\n{clipped(task, self.options.task_tokens)}"
        joiner = self._agent(boss, [JOIN, self.options.instructions], output=output)
        return await joiner("\n\n".join([asked, *parts]))

    def _planner(self, boss: Boss) -> Agent[Plan]:
        lines = [f"{member.name}: {about(member)}" for member in boss.members]
        parts = [LEAD, self.options.instructions, "Members:", *lines, HOW]
        return self._agent(boss, parts, output=Plan, repairs=0)

    def _agent(self, boss: Boss, parts: Sequence[str], **options: Any) -> Agent[Any]:
        given: dict[str, Any] = {**(self.options.agent or {}), **options, "coordination": True}
        return Agent(boss.name, "\n".join(filter(None, parts)), **given)


def clipped(text: str, tokens: int) -> str:
    """``text``, or its beginning and its end in ``tokens``."""
    if estimate(text) <= tokens:
        return text
    tail = shortened(text[::-1], max(1, tokens // 3))[::-1]
    return f"{shortened(text, max(1, tokens * 2 // 3))}\n{tail}"


def _not_idle(planned: Planned) -> Planned:
    """A manager that gives nobody anything is told so."""
    problem = planned.problem or "you gave nobody anything to do, and cannot do it yourself"
    return replace(planned, done=False, problem="" if planned.assignments else problem)


def _merged(assignments: Sequence[Assignment]) -> dict[str, str]:
    """What each is to do: one named twice is asked once."""
    plan: dict[str, dict[str, None]] = {}
    for each in assignments:
        plan.setdefault(each.to, {})[each.instruction] = None
    return {to: "\n".join(filter(None, parts)) for to, parts in plan.items()}
