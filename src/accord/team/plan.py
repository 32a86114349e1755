"""Plans: a manager's reply that says who does what, read however a model has put it.

A :class:`Plan` is asked for, as fewest tokens carry it: ``"name: what to do"``, line by
line. What comes instead is taken if it can be understood: objects with a name and a task under the
words that models use for them, lists of those, JSON inside a string, plain lines. What cannot is
sent back in one message that says all that is wrong, ``corrections`` times at most; then
:func:`ask_for_plan` gives up without an error, and whoever asked falls back on a rule. A manager
that was of no use twice running is left alone for a round: :func:`is_resting`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal, cast

import msgspec

from accord.agent.agent import Agent
from accord.errors import EngineError, OutputError, ToolError, ToolLostError
from accord.team.roster import Roster, UnknownNameError

CORRECTIONS = 2
"""How often a plan is sent back."""
PATIENCE = 2
"""So many plans running of no use, and a manager is not asked again for a round."""
UNASKED = "the manager was not asked: its last plans were of no use"
NESTED = 8
"""How deep a plan may be packed into itself."""
WRONG_TOKENS = 200
CHARACTERS = 50_000
"""A longer reply is no plan, and is not read."""
TURNS = 64
"""So many turns of a plan are read, and one more for each member."""
MISTAKES = 16
"""After so many, the rest of a plan is not read."""

_NAMES = ("name", "coworker", "agent", "speaker", "worker", "assignee", "member", "to", "who")
_TASKS = ("task", "instruction", "instructions", "description", "do", "say", "what", "question")
_LISTS = ("turns", "plan", "delegations", "assignments", "tasks", "next", "speakers")
_CONTAINERS = (list, dict, str)
_DONE = ("done", "stop", "terminate", "finish")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Who is to do what; nothing is said if the work speaks for itself."""

    to: str
    instruction: str = ""


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """What a manager is asked for: each turn as ``name: what to do``; whether that is all."""

    turns: list[str]
    """Without a default, or small models leave it out."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What became of asking for a plan; ``problem`` is what was wrong with the last reply."""

    assignments: tuple[Assignment, ...] = ()
    done: bool = False
    problem: str = ""
    corrections: int = 0


Judge = Callable[[Planned], Planned]
"""Takes out of a plan what cannot be done, and says so."""


Outcome = Literal["useful", "useless", "unasked"]
"""What became of a manager when it was to plan."""


def is_resting(outcomes: Sequence[Outcome], round_of: int) -> bool:
    """Whether a manager with these ``outcomes`` is not to be asked, for ``round_of`` times."""
    asked = [each for each in outcomes if each != "unasked"]
    failed = len(asked) >= PATIENCE and set(asked[-PATIENCE:]) == {"useless"}
    return failed and _rested(outcomes) < round_of


def corrections_after(outcomes: Sequence[Outcome], corrections: int) -> int:
    """How often a plan is sent back: after a rest, not at all."""
    return 0 if _rested(outcomes) else corrections


def _rested(outcomes: Sequence[Outcome]) -> int:
    return sum(1 for _ in takewhile(lambda each: each == "unasked", reversed(outcomes)))


async def ask_for_plan(
    manager: Agent[Plan],
    asked: str,
    roster: Roster,
    *,
    judge: Judge = lambda planned: planned,
    corrections: int = CORRECTIONS,
) -> Planned:
    """A plan that is of use, or the reasons why there is none.

    An engine that fails is not asked again: that is the business of the agent's ``retry``.
    """
    planned = Planned()
    for sent_back in range(corrections + 1):
        wrong = planned.problem[: WRONG_TOKENS * 4]
        inputs = [asked, f"Your last reply was no use: {wrong}."] if sent_back else [asked]
        try:
            read = judge(await _planned(manager, inputs, roster))
        except EngineError as error:
            return Planned(problem=f"{type(error).__name__}: {error}", corrections=sent_back)
        planned = replace(read, corrections=sent_back)
        if planned.assignments or planned.done:
            return planned
    return planned


async def _planned(manager: Agent[Plan], inputs: Iterable[str], roster: Roster) -> Planned:
    """What the reply says, typed or as it was written.

    What a manager wrote is its own mistake; a budget, the log, an effect that may have happened
    are nobody's to plan around, and are raised.
    """
    try:
        return read_plan(await manager(*inputs), roster)
    except OutputError as error:
        return read_plan(error.text, roster)
    except ToolLostError:
        raise
    except ToolError:
        return Planned(problem="it calls a tool, and you have none; write the plan itself")


def read_plan(reply: Any, roster: Roster) -> Planned:
    """What ``reply`` assigns to whom; ``problem`` says what of it cannot be understood."""
    size = sum(map(len, reply.turns if isinstance(reply, Plan) else [str(reply)]))
    if size > CHARACTERS:
        return Planned(problem=f"it has {size} characters; plan in at most {CHARACTERS}")
    reading = _Reading(roster)
    if isinstance(reply, Plan):
        reading.done = reply.done
        reading.take(reply.turns)
    else:
        reading.take(reply)
    if not (reading.found or reading.done or reading.wrong):
        reading.wrong.append(f"nobody is named; there are: {', '.join(roster)}")
    return Planned(
        assignments=tuple(reading.found),
        done=reading.done,
        problem="; ".join(dict.fromkeys(reading.wrong)),
    )


class _Reading:
    """Reads one reply."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._most = TURNS + len(roster)
        self.found: list[Assignment] = []
        self.wrong: list[str] = []
        self.done = False

    def take(self, value: Any, depth: int = 0) -> None:
        """Add what ``value`` says."""
        if len(self.wrong) >= MISTAKES:
            return
        if len(self.found) >= self._most:
            self.wrong.append(f"of its turns, only the first {self._most} were read")
        elif depth > NESTED:
            self.wrong.append("it is nested too deep")
        elif isinstance(value, dict):
            self._take_object(cast("dict[str, Any]", value), depth)
        elif isinstance(value, list):
            for each in cast("list[Any]", value):
                self.take(each, depth + 1)
        elif isinstance(value, str):
            self._take_text(value, depth)

    def _take_object(self, plan: dict[str, Any], depth: int) -> None:
        self.done = self.done or plan.get("done") is True
        name = _first(plan, _NAMES)
        if name is not None:
            self._assign(str(name), _text(_first(plan, _TASKS)))
            return
        inner: list[Any] = [plan[key] for key in _LISTS if isinstance(plan.get(key), _CONTAINERS)]
        if inner:
            for each in inner:
                self.take(each, depth + 1)
            return
        if plan and all(self._is_name(key) for key in plan):
            for key, task in list(plan.items())[: self._most]:
                self._assign(key, _text(task))
        elif not self.done:
            self.wrong.append(f"it names nobody; there are: {', '.join(self._roster)}")

    def _take_text(self, text: str, depth: int) -> None:
        text = _without_fence(text)
        packed = _decoded(text)
        if packed is not None:
            self.take(packed, depth + 1)
            return
        if text.strip(".!").casefold() in _DONE:
            self.done = True
            return
        lines = [_BULLET.sub("", line).strip() for line in text.splitlines() if line.strip()]
        if depth:
            self._assign("\n".join(lines))  # a turn of a list: whatever stands behind the name
            return
        turns = [line for line in lines[: self._most] if self._begins_with_name(line)]
        for line in turns:
            self._assign(line)
        if not turns:
            self._take_prose(text)

    def _take_prose(self, text: str) -> None:
        """A sentence that mentions one name means it."""
        mentioned = self._roster.mentioned(text)
        if len(mentioned) == 1:
            self.found.append(Assignment(to=mentioned[0]))
        elif mentioned:
            self.wrong.append(
                f"it may mean {', '.join(mentioned)}; name each as 'name: what to do'"
            )
        else:
            self._assign(text)

    def _assign(self, name: str, task: str = "") -> None:
        try:
            to, rest = self._roster.split(name)
        except UnknownNameError as error:
            self.wrong.append(str(error))
            return
        instruction = " ".join(filter(None, (rest, task)))
        self.found.append(Assignment(to=to, instruction=instruction))

    def _is_name(self, text: str) -> bool:
        try:
            self._roster.split(text)
        except UnknownNameError:
            return False
        return True

    def _begins_with_name(self, line: str) -> bool:
        head = line.partition(":")[0]
        return self._is_name(head) and not self._roster.split(head)[1]


def _first(plan: dict[str, Any], keys: Iterable[str]) -> Any:
    return next((plan[key] for key in keys if plan.get(key) not in (None, "", {}, [])), None)


def _text(task: Any) -> str:
    """A task in words, whatever it was wrapped in."""
    if isinstance(task, dict):
        inner = cast("dict[str, Any]", task)
        return _text(_first(inner, _TASKS) or next(iter(inner.values()), ""))
    return task.strip() if isinstance(task, str) else ""


def _decoded(text: str) -> Any:
    """What ``text`` holds as JSON: an object, a list, or a string with something in it."""
    if not text.startswith(("{", "[", '"')):
        return None
    try:
        found: Any = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return cast("Any", found) if isinstance(found, _CONTAINERS) else None


def _without_fence(text: str) -> str:
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and len(text) > 6:
        return text[3:-3].partition("\n")[2].strip()
    return text
