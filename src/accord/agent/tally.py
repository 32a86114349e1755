"""What a prompt shows of whose writing, and what all of it would have taken: for the tax report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from accord.agent.reading import Item
from accord.log.events import View
from accord.tokens.count import estimate

KEPT = ("shared", "diff", "summary")
"""What stays in a history, and so is sent again with it."""


class Tally:
    """Adds up by writer and visibility. What was written before event ``looked`` is not new."""

    def __init__(self, looked: int) -> None:
        self._looked = looked
        self._full: Counter[tuple[str, str]] = Counter()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._new: Counter[tuple[str, str]] = Counter()
        self._visibility: dict[int, str] = {}

    def expect(self, visibility: str, items: Iterable[Item]) -> None:
        """``items`` are there to be seen."""
        for item in items:
            self._full[item.writer, visibility] += item.tokens
            self._visibility[item.seq] = visibility

    def carry(self, views: Iterable[View]) -> None:
        """What the history holds already."""
        for view in views:
            if view.policy in KEPT:
                self._sent[view.writer, view.policy] += view.sent

    def count(self, items: Iterable[Item]) -> None:
        """``items`` are shown in full."""
        for item in items:
            self._add(item, item.tokens)

    def count_lines(self, items: Sequence[Item], lines: Sequence[str]) -> None:
        """``items`` are shown as ``lines``, one each."""
        for item, line in zip(items, lines, strict=True):
            self._add(item, estimate(line))

    def count_summary(self, items: Sequence[Item], text: str) -> None:
        """``items`` are shown in a summary, each by its share."""
        whole = sum(item.tokens for item in items)
        for item in items:
            self._add(item, round(estimate(text) * item.tokens / whole))

    def views(self) -> tuple[View, ...]:
        """One for each writer and visibility."""
        return tuple(
            View(writer=w, policy=v, full=full, sent=self._sent[w, v], new=self._new[w, v])
            for (w, v), full in sorted(self._full.items())
        )

    def _add(self, item: Item, tokens: int) -> None:
        visibility = self._visibility.get(item.seq)
        if visibility is None:
            return  # the agent's own
        self._sent[item.writer, visibility] += tokens
        if item.seq >= self._looked:
            self._new[item.writer, visibility] += tokens
