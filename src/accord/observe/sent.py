"""What the messages of a log cost to send, under full visibility and under other policies.

All counts are of prompt tokens, and estimated unless a tokenizer is given. They add up: the edges
of an agent (from each writer, ``""`` being headings) are what it was sent, and the agents are the
whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from accord.engine.base import CACHED_PRICE, Capabilities, Prices, Usage
from accord.engine.prices import prices_of
from accord.observe.whatif import POLICIES, Conversation, Count, Policy, View, views
from accord.tokens.count import estimate

Unit = Literal["dollars", "tokens"]

_TENTH = Prices(prompt=1e6, cached=1e6 * CACHED_PRICE, completion=0.0)
"""Of a fresh token, where no price is known: what is priced comes out in tokens."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens ``sent``, those ``new`` to the engine, and what both cost."""

    sent: int
    new: int
    priced: float


class AgentSent(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent was sent before its ``turns``, by policy."""

    turns: int
    policies: dict[Policy, Spent]


class EdgeSent(msgspec.Struct, frozen=True, kw_only=True):
    """What ``reader`` was sent of what ``writer`` wrote, by policy."""

    writer: str
    reader: str
    policies: dict[Policy, Spent]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The report. ``written`` counts each turn once.

    ``priced`` is in ``unit``: US dollars, or tokens, of which a cached one counts a tenth.
    """

    conversations: int
    turns: int
    written: int
    unit: Unit
    policies: dict[Policy, Spent]
    agents: dict[str, AgentSent]
    edges: tuple[EdgeSent, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return msgspec.to_builtins(self)


def sent_of(
    conversations: Sequence[Conversation],
    prices: Prices | None = None,
    count: Count = estimate,
    *,
    replies_kept: bool = True,
) -> Sent:
    """The report on ``conversations``.

    In dollars by ``prices``, or else by those of their models if all are known. ``replies_kept``
    is as for :func:`accord.observe.whatif.views`.
    """
    priced = [prices or prices_of(each.model) for each in conversations]
    known = [price for price in priced if price is not None]
    dollars = bool(known) and len(known) == len(priced)
    tally = _Tally(replies_kept=replies_kept)
    for conversation, price in zip(conversations, known if dollars else priced, strict=True):
        tally.take(conversation, price if dollars and price else _TENTH, count)
    return Sent(
        conversations=len(conversations),
        turns=sum(len(each.turns) for each in conversations),
        written=sum(count(turn.text) for each in conversations for turn in each.turns),
        unit="dollars" if dollars else "tokens",
        policies=tally.whole(),
        agents=tally.agents(),
        edges=tally.edges(),
    )


class _Tally:
    """Adds up by policy, writer and reader."""

    def __init__(self, *, replies_kept: bool) -> None:
        self._replies_kept = replies_kept
        self._spent: defaultdict[tuple[str, str], dict[Policy, Spent]] = defaultdict(dict)
        self._turns: Counter[str] = Counter()

    def take(self, conversation: Conversation, prices: Prices, count: Count) -> None:
        engine = Capabilities(prefix_cache=True, prices=prices)
        for turn in conversation.turns:
            self._turns[turn.writer] += turn.reads
        for policy in POLICIES:
            for view in views(
                conversation.turns,
                policy,
                count=count,
                cached_price=engine.cached_price,
                replies_kept=self._replies_kept,
            ):
                self._view(policy, view, prices)

    def _view(self, policy: Policy, view: View, prices: Prices) -> None:
        for writer, sent in view.sent.items():
            of = self._spent[writer, view.reader]
            new = view.new[writer]
            usage = Usage(prompt=sent, cached=sent - new, completion=0)
            more = Spent(sent=sent, new=new, priced=prices.cost(usage))
            of[policy] = _sum([of[policy], more]) if policy in of else more

    def whole(self) -> dict[Policy, Spent]:
        return _by_policy(self._spent.values())

    def agents(self) -> dict[str, AgentSent]:
        """Who was sent most comes first."""
        found = {
            name: AgentSent(
                turns=turns,
                policies=_by_policy(
                    of for (_, reader), of in self._spent.items() if reader == name
                ),
            )
            for name, turns in self._turns.items()
            if turns
        }
        most = sorted(found.items(), key=lambda each: -each[1].policies["full"].sent)
        return dict(most)

    def edges(self) -> tuple[EdgeSent, ...]:
        """The widest first."""
        found = [
            EdgeSent(writer=writer, reader=reader, policies=_by_policy([of]))
            for (writer, reader), of in self._spent.items()
        ]
        return tuple(sorted(found, key=lambda edge: -edge.policies["full"].sent))


def _by_policy(all_of: Iterable[dict[Policy, Spent]]) -> dict[Policy, Spent]:
    listed = list(all_of)
    return {policy: _sum([of[policy] for of in listed if policy in of]) for policy in POLICIES}


def _sum(parts: Sequence[Spent]) -> Spent:
    return Spent(
        sent=sum(part.sent for part in parts),
        new=sum(part.new for part in parts),
        priced=sum(part.priced for part in parts),
    )
