"""Who speaks next: each way is one small class that is asked with the chat as it stands.

===================  ==========================================================================
``RoundRobin()``     each in turn; with ``transitions``, whoever of the allowed was silent longest
``Rule(function)``   a function of the messages, sync or async, names one or several; None ends
``Bids()``           each says how much it has to add, at once; the highest speaks
``Swarm()``          the last speaker names the next, by a field ``handoff`` or ``HANDOFF: name``
``Manager()``        a model plans several turns in one call: :mod:`accord.team.manager`
===================  ==========================================================================

They hold no state. What they name and the chat cannot do (nobody, somebody excluded) gives way to a
rule there, so none of them can bring it to a halt.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, cast, runtime_checkable

import msgspec

from accord.agent.agent import Agent
from accord.errors import EngineError, OutputError, ToolError, ToolLostError, UsageError
from accord.sync.gather import gather
from accord.team.manager import Manager
from accord.team.member import Member, derived
from accord.team.plan import Assignment
from accord.team.roster import UnknownNameError
from accord.team.termination import HANDOFF, handoff_in
from accord.team.transcript import (
    ChatMessage,
    Choice,
    Floor,
    longest_silent,
    possible,
    situation_of,
)

Named = str | Iterable[str] | None
Naming = Callable[[Sequence[ChatMessage]], Named | Awaitable[Named]]
Bidding = Callable[[str, Sequence[ChatMessage]], float | Awaitable[float]]


@runtime_checkable
class Speakers(Protocol):
    """A way to say who speaks next. ``repeats``: a member may speak twice in a row."""

    @property
    def repeats(self) -> bool: ...
    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:
        """Who speaks next, one or several one after the other."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundRobin:
    """Each in turn."""

    repeats: bool = False

    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:  # noqa: ARG002
        if not floor.eligible:
            return Choice()
        return Choice(assignments=(Assignment(to=longest_silent(floor, floor.eligible)),))


@dataclass(frozen=True)
class Rule:
    """As ``function`` says: a name or several; None ends the chat.

    It must say the same given the same messages; what takes time or chance belongs in a step.
    """

    function: Naming
    repeats: bool = True

    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:  # noqa: ARG002
        named: Any = self.function(floor.messages)
        if inspect.isawaitable(named):
            named = await named
        if named is None:
            return Choice(done=True)
        names = self._names(named)
        try:
            wanted = [Assignment(to=floor.roster.match(name)) for name in names]
        except UnknownNameError as error:
            raise UsageError(f"the rule that says who speaks next: {error}") from error
        taken, problem = possible(floor, wanted)
        return Choice(assignments=taken, named=tuple(wanted), why=problem)

    def _names(self, named: Any) -> list[str]:
        given: Any = named
        if isinstance(named, Iterable) and not isinstance(named, str):
            given = list(cast("Iterable[Any]", named))
        names: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given]
        if not all(isinstance(name, str) for name in names):
            raise UsageError(
                f"the rule {_called(self.function)}, which says who speaks next, gave {given!r}; "
                "have it give a member's name, a list of names, or None to end the chat"
            )
        return names


class Bid(msgspec.Struct):
    """How much somebody has to add: 0 nothing, 10 that nobody can go on without it."""

    bid: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0


BID = "Say how much it would help if you spoke next: from 0, not at all, to 10."


@dataclass(frozen=True, kw_only=True)
class Bids:
    """The highest bid of those who may speak; of equals, who was silent longest.

    ``bid(name, messages)`` is a cheap stand-in; without it, each is asked in few words, which
    counts as coordination. Who fails to bid has bid 0.
    """

    bid: Bidding | None = None
    task_tokens: int = 200
    summary_tokens: int = 200
    repeats: bool = False

    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:
        names = floor.eligible
        if not names:
            return Choice(by="bids")
        bids = await gather(self._bid(floor, members[name], name) for name in names)
        best = [name for name, bid in zip(names, bids, strict=True) if bid == max(bids)]
        chosen = Assignment(to=longest_silent(floor, best))
        told = ", ".join(f"{name} {bid:g}" for name, bid in zip(names, bids, strict=True))
        return Choice(assignments=(chosen,), by="bids", named=(chosen,), why=f"bids: {told}")

    async def _bid(self, floor: Floor, member: Member, name: str) -> float:
        if self.bid is not None:
            given = self.bid(name, floor.messages)
            offered: Any = await given if inspect.isawaitable(given) else given
            return _number(offered, f"bid function {_called(self.bid)}", name)
        if not isinstance(member, Agent):
            return 0.0
        try:
            asked = situation_of(floor, self.task_tokens, self.summary_tokens)
            return float((await _bidder(member)(asked, BID)).bid)
        except ToolLostError:
            raise
        except (EngineError, OutputError, ToolError):
            return 0.0


def _number(offered: Any, who: str, name: str) -> float:
    try:
        bid = float(offered)
    except (TypeError, ValueError, OverflowError):
        bid = math.nan
    if math.isnan(bid):
        raise UsageError(
            f"the {who} gave {offered!r} for {name!r}, which cannot be compared; have it give a "
            "number, 0 for nothing to add"
        )
    return bid


def _called(function: object) -> str:
    """A function's name; without the address that ``repr`` has, which no replay would repeat."""
    return str(getattr(function, "__name__", type(function).__name__))


def _bidder(member: Agent[Any]) -> Agent[Bid]:
    """The member, asked for nothing but its bid; not under its name, or it would remember that."""
    return Agent(
        f"{member.name} bids",
        member.instructions,
        output=Bid,
        model=member.model,
        engine=member.engine,
        retry=member.retry,
        max_tokens=24,
        repairs=1,
        coordination=True,
    )


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """The last speaker names the next; who names nobody goes on itself. The first begins."""

    repeats: bool = True

    async def choose(self, floor: Floor, members: Mapping[str, Member]) -> Choice:  # noqa: ARG002
        if not floor.messages:
            return Choice(assignments=(Assignment(to=floor.roster.names[0]),), by="handoff")
        named = handoff_in(floor.messages[-1].content) or floor.previous
        try:
            wanted = (Assignment(to=floor.roster.match(named)),)
        except UnknownNameError as error:
            return Choice(by="handoff", named=(Assignment(to=named),), why=str(error))
        taken, problem = possible(floor, wanted)
        return Choice(assignments=taken, by="handoff", named=wanted, why=problem)

    def prepared(self, member: Agent[Any], names: Iterable[str]) -> Agent[Any]:
        """``member``, told how to hand over, if it answers in text."""
        if member.output is not str:
            return member
        others = ", ".join(name for name in names if name != member.name)
        line = f"To hand over, end your reply with a line '{HANDOFF}: name', of: {others}."
        return derived(member, instructions=f"{member.instructions}\n{line}".strip())


def as_speakers(speakers: Any) -> Speakers:
    """``speakers`` as an object: a name, a function or a dict of transitions may stand for one."""
    if isinstance(speakers, Mapping):
        return RoundRobin()
    if isinstance(speakers, str):
        known: dict[str, Callable[[], Speakers]] = {
            "round_robin": RoundRobin,
            "bids": Bids,
            "swarm": Swarm,
            "manager": Manager,
        }
        if speakers not in known:
            raise UsageError(f"speakers is one of {', '.join(known)}, not {speakers!r}")
        return known[speakers]()
    if isinstance(speakers, Speakers) and not isinstance(speakers, type):
        return speakers
    if callable(speakers) and not isinstance(speakers, type):
        return Rule(cast("Naming", speakers))
    raise UsageError(
        f"speakers is a name, a function of the messages, a dict of who may follow whom, or an "
        f"object such as Manager(), not {speakers!r}"
    )
