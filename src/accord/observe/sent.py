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
from accord.observe.whatif import POLICIES, Conversation, Count, Look, Visibility, looks
from accord.tokens.count import estimate

Unit = Literal["dollars", "tokens"]

_TENTH = Prices(prompt=1e6, cached=1e6 * CACHED_PRICE, completion=0.0)
"""Of a fresh token, where no price is known: what is priced comes out in tokens."""


class PromptCost(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens ``sent``, those ``new`` to the engine, and what both cost."""

    sent: int
    new: int
    priced: float


class AgentSent(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent was sent before its ``turns``, by policy."""

    turns: int
    policies: dict[Visibility, PromptCost]


class EdgeSent(msgspec.Struct, frozen=True, kw_only=True):
    """What ``reader`` was sent of what ``writer`` wrote, by policy."""

    writer: str
    reader: str
    policies: dict[Visibility, PromptCost]


class VisibilityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report. ``turns`` counts all utterances, ``written`` the tokens of each once.

    ``priced`` is in ``unit``: US dollars, or tokens, of which a cached one counts a tenth.
    """

    conversations: int
    turns: int
    written: int
    unit: Unit
    policies: dict[Visibility, PromptCost]
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
) -> VisibilityReport:
    """The report on ``conversations``.

    In dollars by ``prices``, or else by those of their models if all are known. ``replies_kept``
    is as for :func:`accord.observe.whatif.looks`.
    """
    known = [found for each in conversations if (found := prices or prices_of(each.model))]
    in_dollars = len(known) == len(conversations)
    priced = known if in_dollars else [_TENTH] * len(conversations)
    tally = _Tally(count, replies_kept=replies_kept)
    for conversation, price in zip(conversations, priced, strict=True):
        tally.take(conversation, price)
    return VisibilityReport(
        conversations=len(conversations),
        turns=sum(len(each.said) for each in conversations),
        written=sum(count(one.text) for each in conversations for one in each.said),
        unit="dollars" if in_dollars else "tokens",
        policies=tally.whole(),
        agents=tally.agents(),
        edges=tally.edges(),
    )


class _Tally:
    """Adds up by policy, writer and reader."""

    def __init__(self, count: Count, *, replies_kept: bool) -> None:
        self._count = count
        self._replies_kept = replies_kept
        self._costs: defaultdict[tuple[str, str], dict[Visibility, PromptCost]] = defaultdict(dict)
        self._turns: Counter[str] = Counter()

    def take(self, conversation: Conversation, prices: Prices) -> None:
        engine = Capabilities(prefix_cache=True, prices=prices)
        for utterance in conversation.said:
            self._turns[utterance.writer] += utterance.reads
        for policy in POLICIES:
            for look in looks(
                conversation.said,
                policy,
                count=self._count,
                cached_price=engine.cached_price,
                replies_kept=self._replies_kept,
            ):
                self._add(policy, look, prices)

    def _add(self, policy: Visibility, look: Look, prices: Prices) -> None:
        for writer, sent in look.sent.items():
            of = self._costs[writer, look.reader]
            new = look.new[writer]
            usage = Usage(prompt=sent, cached=sent - new, completion=0)
            more = PromptCost(sent=sent, new=new, priced=prices.cost(usage))
            of[policy] = _sum([of[policy], more]) if policy in of else more

    def whole(self) -> dict[Visibility, PromptCost]:
        return _by_policy(self._costs.values())

    def agents(self) -> dict[str, AgentSent]:
        """Who was sent most comes first."""
        found = {
            name: AgentSent(
                turns=turns,
                policies=_by_policy(
                    of for (_, reader), of in self._costs.items() if reader == name
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
            for (writer, reader), of in self._costs.items()
        ]
        return tuple(sorted(found, key=lambda edge: -edge.policies["full"].sent))


def _by_policy(all_of: Iterable[dict[Visibility, PromptCost]]) -> dict[Visibility, PromptCost]:
    listed = list(all_of)
    return {policy: _sum([of[policy] for of in listed if policy in of]) for policy in POLICIES}


def _sum(parts: Sequence[PromptCost]) -> PromptCost:
    return PromptCost(
        sent=sum(part.sent for part in parts),
        new=sum(part.new for part in parts),
        priced=sum(part.priced for part in parts),
    )
