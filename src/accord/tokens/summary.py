"""A bounded summary of what was seen: lines with handles, and when it pays to make one.

Each line stands for one item or several small ones in a row, takes at most 5% of their tokens, and
names the handle behind which they stand in full. A line depends on its own items only, so a
summary grows at its end and the lines before stay a cached prefix. When the lines together
grow beyond ``most`` tokens, all are made again at half the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from accord.tokens.count import estimate
from accord.tokens.extract import excerpt

SHARE = 0.04
"""Of the tokens that a line stands for, by estimate: 5% by any tokenizer."""
SHORTEST_LINE = 12
"""Tokens; less says nothing beside its handle."""
HEAD = "What came before, in short; recall a handle (#...) for the full text:"
"""What stands over a summary in a prompt."""
KEYS_HEAD = "There is, with the tokens that each takes; recall a handle (#...) for the text:"
"""What stands over a list of handles."""
SUMMARY_TOKENS = 800
"""The most that a summary takes, unless an agent says otherwise."""
WRITE_PRICE = 1.15
"""What a prompt costs that is read for the first time and kept in a cache."""


class Piece(Protocol):
    """One of the things that are summarised."""

    @property
    def handle(self) -> str: ...
    @property
    def writer(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> int:
        """What it takes to show it in full."""
        ...


class Summary(NamedTuple):
    """``text`` stands for the first ``covered`` items; the rest is too small for a line yet."""

    text: str
    covered: int


def summarise(items: Sequence[Piece], most: int) -> Summary:
    """A summary of ``items``, oldest first, in at most ``most`` tokens and 5% of theirs."""
    share = SHARE
    while (summary := _lines(items, share, most)) is None:
        share /= 2
    return summary


def _lines(items: Sequence[Piece], share: float, most: int) -> Summary | None:
    """A line for each item or group of items; None if they take more than ``most``."""
    lines: list[str] = []
    covered = spent = waiting = 0
    for index, item in enumerate(items):
        waiting += item.tokens
        budget = int(share * waiting)
        if budget < SHORTEST_LINE:
            continue
        line = _line(items[covered : index + 1], budget)
        lines.append(line)
        spent += estimate(line)
        if spent > most and len(items) > 1:
            return None
        covered, waiting = index + 1, 0
    if SHARE * waiting >= SHORTEST_LINE:  # one line for what is left, or it would grow and grow
        lines.append(_line(items[covered:], SHORTEST_LINE))
        covered = len(items)
    return Summary("\n".join(lines), covered)


def _line(items: Sequence[Piece], budget: int) -> str:
    handle = items[0].handle if len(items) == 1 else f"{items[0].handle}-{items[-1].handle}"
    head = f"{handle} {items[0].writer}".rstrip() if len(items) == 1 else handle
    fullest = max(items, key=lambda item: item.tokens)
    told = excerpt(fullest.text, budget - estimate(head) - 1)
    return f"{head}: {told}" if told else head


def pays(
    before: int,
    after: int,
    calls_left: float,
    cached_price: float,
    *,
    cost: float = 0,
    in_cache: bool = True,
) -> bool:
    """Whether to go on with ``after`` prompt tokens in place of ``before``, for so many calls.

    What both begin or end with is left out of both: it is read alike either way.
    A cached token costs ``cached_price`` of a fresh one, and one that is read for the first time
    a little more than that. The new prompt has to be read first, and so has the old one unless it
    is ``in_cache``. ``cost`` is what making the summary takes, in fresh tokens. At a price of 1
    there is no cache: all is read anew each time.
    """
    first = WRITE_PRICE if cached_price < 1 else 0.0
    saved = cached_price * calls_left * (before - after)
    return saved + (0 if in_cache else first * before) > first * after + cost
