"""Who works in a team: agents, and teams that work as one member of a larger one.

Agents are immutable. A team works with copies that also read and write where the team's work is,
under the agent's own name: :func:`derived`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

from accord.agent.agent import Agent
from accord.agent.reading import MAIL, VISIBILITIES, Read, Visibility
from accord.errors import UsageError
from accord.log.events import Reducer
from accord.tokens.extract import shortened

DESCRIPTION_TOKENS = 16
"""What a manager is told of each member, at most."""

SAME = (
    "tools",
    "model",
    "max_tokens",
    "temperature",
    "seed",
    "stop",
    "timeout_s",
    "retry",
    "repairs",
    "tool_rounds",
    "result_tokens",
    "loop_limit",
    "engine",
    "coordination",
    "extra",
    "priority",
    "deadline_s",
    "budget",
    "cheaper",
    "summariser",
    "memory",
    "ending",
    "guard",
    "cache",
    "speculate",
)
"""Options that a copy takes as the agent has them."""
SPELLED_OUT = (
    "shares",
    "reads",
    "sees",
    "writes",
    "expected_calls",
    "summary_tokens",
    "memory_items",
)
"""Options that an agent keeps in another form: :func:`derived` writes them as they are given."""


@runtime_checkable
class Team(Protocol):
    """A team as a member of another: asked in words, it gives a result with an ``output``."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    async def __call__(self, task: str, /) -> Any:
        """What the team makes of ``task``."""
        ...


Member = Agent[Any] | Team


def check_members(members: Iterable[object], who: str) -> tuple[Member, ...]:
    """``members``, if they can work in ``who``."""
    if isinstance(members, str) or not isinstance(cast("object", members), Iterable):
        raise UsageError(f"{who} works with agents, not with {members!r}")
    found = tuple(members)
    if not found:
        raise UsageError(f"{who} has nobody to work; give it at least one agent")
    for each in found:
        if not isinstance(each, Agent | Team):
            raise UsageError(f"{who}: {each!r} is no agent, chat or crew; wrap it in one")
    return cast("tuple[Member, ...]", found)


def check_team(kind: str, name: str, members: Iterable[str], sees: Visibility | None) -> None:
    """Raise ``UsageError`` for a ``kind`` of team that cannot be called so, or see so."""
    if not name.strip() or not name.isprintable() or "*" in name:
        raise UsageError(f"a {kind} is named by printable text without *, not {name!r}")
    if name in members:
        raise UsageError(f"{kind} {name!r} has a member of its own name; give it another")
    if sees is not None and sees not in VISIBILITIES:
        raise UsageError(f"{kind} {name!r}: sees one of {', '.join(VISIBILITIES)}, not {sees!r}")


def description_of(member: Member, tokens: int = DESCRIPTION_TOKENS) -> str:
    """What ``member`` is good for, in one line."""
    text = member.instructions if isinstance(member, Agent) else member.description
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return shortened(first, tokens)


def conclusion_of(answer: Any) -> Any:
    """What a member came to: an agent's answer, or the output of a team's result."""
    return getattr(answer, "output", answer)


def derived(agent: Agent[Any], **changes: Any) -> Agent[Any]:
    """A copy of ``agent`` with other options; ``reads`` and ``writes`` come beside its own."""
    spec = agent.spec
    options: dict[str, Any] = {each: getattr(agent, each) for each in SAME}
    options |= {
        "instructions": agent.instructions,
        "name": agent.name,
        "output": agent.output,
        "sees": spec.sees,
        "expected_calls": spec.expected_calls,
        "summary_tokens": spec.summary_tokens,
        "memory_items": spec.memory_items,
        "shares": [_pattern(read) for read in spec.shares],
    }
    reads: dict[str, Visibility] = {_pattern(read): read.visibility for read in spec.reads}
    writes: dict[str, Reducer] = {
        MAIL + each.key if each.how is None else each.key: each.how or "replace"
        for each in agent.writes
    }
    options["reads"] = reads | dict(cast("Mapping[str, Visibility]", changes.pop("reads", {})))
    options["writes"] = writes | dict(cast("Mapping[str, Reducer]", changes.pop("writes", {})))
    options["shares"] += list(cast("Iterable[str]", changes.pop("shares", ())))
    return Agent(**(options | changes))


def _pattern(read: Read) -> str:
    return MAIL + read.pattern if read.space == "mail" else read.pattern
