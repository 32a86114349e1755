"""What has been said in a chat, who was chosen to say it, and what a manager is shown of that.

Plain records, and pure functions of them. The transcript itself is a key of the board.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

from accord.engine.base import Usage
from accord.team.plan import Assignment
from accord.team.roster import Roster
from accord.tokens.encode import encode
from accord.tokens.extract import excerpt, shortened

LINE_TOKENS = 12
"""Less says nothing."""
SMALL_TEAM = 16
"""Of more, only who has spoken or who has not is listed."""

NO_USAGE = Usage(prompt=0, completion=0)

ChosenBy = Literal["rule", "bids", "manager", "handoff", "fallback"]


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """What one member said, and what it was asked to say, if anything.

    Both figures are cumulative, so that a condition can go by the last message alone: ``after_s``
    is the time on the run's clock since the chat began, ``usage`` all tokens of the chat by then,
    coordination included.
    """

    speaker: str
    content: Any
    instruction: str = ""
    after_s: float = 0.0
    usage: Usage = NO_USAGE


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Who speaks next, one after the other, and by whose word.

    ``named`` is what was said, whether or not it could be done; ``why`` has the bids, or what was
    wrong.
    ``loop`` is how often in a row the same was named, if that was too often. ``unasked``: a manager
    was left alone, as its plans had been of no use.
    """

    assignments: tuple[Assignment, ...] = ()
    by: ChosenBy = "rule"
    done: bool = False
    named: tuple[Assignment, ...] = ()
    why: str = ""
    corrections: int = 0
    loop: int = 0
    unasked: bool = False


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A chat as it stands: what whoever gives the word may go by."""

    task: str
    roster: Roster
    descriptions: Mapping[str, str]
    messages: tuple[ChatMessage, ...] = ()
    choices: tuple[Choice, ...] = ()
    repeats: bool = False
    """A member may speak twice in a row."""
    transitions: Mapping[str, tuple[str, ...]] | None = None
    """Who may follow whom; who is not in it may be followed by anybody."""

    @property
    def previous(self) -> str:
        """Who spoke last; empty at the beginning."""
        return self.messages[-1].speaker if self.messages else ""

    @property
    def eligible(self) -> tuple[str, ...]:
        """Who may speak next."""
        return self.eligible_after(self.previous)

    def eligible_after(self, previous: str) -> tuple[str, ...]:
        """Who may speak after ``previous``."""
        allowed = (self.transitions or {}).get(previous)
        names = [name for name in self.roster if allowed is None or name in allowed]
        others = [name for name in names if name != previous]
        return tuple(names if self.repeats or len(self.roster) == 1 else others)


def longest_silent(floor: Floor, names: Iterable[str]) -> str:
    """Of ``names``, who has not spoken yet, else spoke longest ago; the first of equals."""
    last = {message.speaker: index for index, message in enumerate(floor.messages)}
    order = {name: index for index, name in enumerate(floor.roster)}
    return min(names, key=lambda name: (last.get(name, -1), order[name]))


def possible(floor: Floor, wanted: Iterable[Assignment]) -> tuple[tuple[Assignment, ...], str]:
    """Of what is ``wanted``, one after the other, what may be done; and why the rest may not."""
    taken: list[Assignment] = []
    wrong: list[str] = []
    previous = floor.previous
    for each in wanted:
        eligible = floor.eligible_after(previous)
        if each.to in eligible:
            taken.append(each)
            previous = each.to
        else:
            others = ", ".join(eligible) or "nobody"
            wrong.append(f"{each.to} may not speak after {previous or 'the task'}, but {others}")
    return tuple(taken), "; ".join(dict.fromkeys(wrong))


def settled(choice: Choice, floor: Floor, loop_limit: int) -> Choice:
    """``choice``, or a rule's in its place: the chat goes on with somebody else, whatever was said.

    A choice that cannot be used, and a model's word for one member that is the same more than
    ``loop_limit`` times in a row, give way to the one who has been silent longest. A plan for
    several may come again, and is only marked.
    """
    if choice.done or not floor.eligible:
        return choice
    again = 1 + _same_before(choice, floor)
    usable = bool(choice.assignments)
    by_model = choice.by in ("manager", "handoff")
    looping = bool(choice.named) and again > loop_limit and (by_model or not usable)
    marked = replace(choice, loop=again) if looping else choice
    nobody_else = len(floor.roster) == 1 or len({each.to for each in choice.assignments}) > 1
    if usable and (not looping or nobody_else):
        return marked
    others = [name for name in floor.eligible if name != floor.previous] or floor.eligible
    to = longest_silent(floor, others)
    return replace(marked, assignments=(Assignment(to=to),), by="fallback")


def _same_before(choice: Choice, floor: Floor) -> int:
    """How many choices in a row before this one named the same."""
    before = (each for each in reversed(floor.choices) if not each.unasked)
    return sum(1 for _ in takewhile(lambda each: each.named == choice.named, before))


def said(content: Any) -> str:
    """What was said, as text."""
    return content if isinstance(content, str) else encode(content)


def counted(names: Iterable[str]) -> str:
    """Names in order, with how often each occurs: ``a ×2, b``."""
    counts = Counter(names)
    return ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in counts.items())


def digest_of(messages: Sequence[ChatMessage], tokens: int) -> str:
    """The last messages, a line each, within ``tokens`` together: their most telling sentences."""
    most = max(1, tokens // LINE_TOKENS)
    shown = messages[-most:]
    if not shown:
        return ""
    share = tokens // len(shown)
    lines = (f"{m.speaker}: {excerpt(said(m.content), share)}" for m in shown)
    return "\n".join(shortened(line, share) for line in lines)


def heard_of(floor: Floor) -> str:
    """Who has spoken how often; of a large team, who has not yet, if they are fewer."""
    counts = Counter(message.speaker for message in floor.messages)
    silent = [name for name in floor.roster if name not in counts]
    if len(floor.roster) <= SMALL_TEAM or len(silent) > len(counts):
        return f"Have spoken: {counted(message.speaker for message in floor.messages)}"
    return f"Have not spoken: {', '.join(silent) or 'nobody'}"


def situation_of(floor: Floor, task_tokens: int, summary_tokens: int) -> str:
    """The chat in bounded words, what changes least first."""
    parts = [f"Task:\n{shortened(floor.task, task_tokens)}"]
    if floor.messages:
        said_last = digest_of(floor.messages, summary_tokens)
        parts += [heard_of(floor), f"What was said last:\n{said_last}"]
    return "\n\n".join(parts)
