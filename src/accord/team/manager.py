"""The LLM manager of a chat: one call plans several turns, on a bounded view of the chat.

What it is shown does not grow with the chat: the beginning of the task, who has spoken, and the
most telling sentences of what was said last. What it writes is ``name: what to do`` a turn. So its
share of tokens and time falls with the number of turns in a plan; ``turns`` is that number. A plan
that is made further ahead is made on less: where each contribution should steer the next, plan
fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from accord.agent.agent import Agent
from accord.agent.options import AgentOptions
from accord.errors import UsageError
from accord.team.member import Member
from accord.team.plan import (
    UNASKED,
    Assignment,
    Outcome,
    Plan,
    Planned,
    ask_for_plan,
    corrections_after,
    is_resting,
)
from accord.team.transcript import Choice, Floor, possible, situation_of

FEWEST_TURNS, SHARE = 4, 4
"""Of turns in a plan: at least so many, else one for so many members."""
TURN_TOKENS = 40
"""What a turn may take in a reply."""

LEAD = "You lead a group and decide who speaks next. You do none of the work yourself."
HOW = (
    "Plan the next turns, at most {turns}, in order, each as 'name: what to do, in a few words'. "
    "done is true if nothing is left to do after them."
)


@dataclass(frozen=True, kw_only=True)
class Manager:
    """Lets a model decide, ``turns`` at a time (None: a quarter of the members, at least 4).

    ``instructions`` are added to its own. It is shown ``task_tokens`` of the task and
    ``summary_tokens`` of what was said. A plan that is of no use is sent back ``corrections``
    times; then, or if its engine fails, the chat goes on by a rule. After two such plans running,
    it does so for a round, as many turns as there are members, and the manager is not asked; then
    it gets one try, without corrections, before the next such round. ``options`` are those of its
    :class:`accord.Agent`, such as ``model``.
    """

    name: str = "manager"
    instructions: str = ""
    turns: int | None = None
    task_tokens: int = 400
    summary_tokens: int = 300
    corrections: int = 1
    repeats: bool = False
    options: AgentOptions = field(default_factory=AgentOptions)

    def __post_init__(self) -> None:
        if (self.turns is not None and self.turns < 1) or self.corrections < 0:
            raise UsageError(
                f"a manager plans at least one turn, and corrects 0 times or more: {self}"
            )
        if "tools" in self.options:
            raise UsageError(f"manager {self.name!r} has tools; give them to who does the work")

    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:  # noqa: ARG002
        outcomes: list[Outcome] = [_outcome(choice) for choice in floor.choices]
        if is_resting(outcomes, len(floor.roster)):
            return Choice(by="manager", why=UNASKED, unasked=True)
        turns = self.turns or max(FEWEST_TURNS, -(-len(floor.roster) // SHARE))
        named: list[Assignment] = []

        def judge(planned: Planned) -> Planned:
            named[:] = planned.assignments
            taken, wrong = possible(floor, planned.assignments[:turns])
            idle = "" if floor.messages or named else "nobody has spoken yet"
            problem = "; ".join(filter(None, (planned.problem, wrong, idle)))
            done = planned.done and not idle
            return replace(planned, assignments=taken, done=done, problem=problem)

        planned = await ask_for_plan(
            self._agent(floor, turns),
            situation_of(floor, self.task_tokens, self.summary_tokens),
            floor.roster,
            judge=judge,
            corrections=corrections_after(outcomes, self.corrections),
        )
        return Choice(
            assignments=planned.assignments,
            by="manager",
            done=planned.done,
            named=tuple(named),
            why=planned.problem,
            corrections=planned.corrections,
        )

    def _agent(self, floor: Floor, turns: int) -> Agent[Plan]:
        lines = [
            f"{name}: {about}" if about else name for name, about in floor.descriptions.items()
        ]
        parts = [LEAD, self.instructions, "Members:", *lines, HOW.format(turns=turns)]
        options: AgentOptions = {
            "max_tokens": 32 + TURN_TOKENS * turns,
            **self.options,
            "coordination": True,
            "repairs": 0,
        }
        return Agent(self.name, "\n".join(filter(None, parts)), output=Plan, **options)


def _outcome(choice: Choice) -> Outcome:
    if choice.unasked:
        return "unasked"
    return "useless" if choice.by == "fallback" else "useful"
