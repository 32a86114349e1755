"""The messages of one call of an agent: what it began with, and its rounds of tools since.

Rounds are only ever added to, until folding the older ones into a few lines with handles pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accord.agent.reading import Item
from accord.engine.base import Message
from accord.engine.size import size_of_messages
from accord.tokens.summary import summarise

RESULTS_HEAD = "What your tools returned, in short; recall a handle (#...) for the full text:"


@dataclass
class Rounds:
    """``opening`` stays as it is; the last round always stands in full."""

    opening: list[Message]
    made: int = 0
    _folded: list[Item] = field(default_factory=list[Item])
    _recent: list[tuple[list[Message], list[Item]]] = field(
        default_factory=list[tuple[list[Message], list[Item]]]
    )
    _summary: list[Message] = field(default_factory=list[Message])

    @property
    def messages(self) -> list[Message]:
        """The prompt as it stands."""
        recent = [message for messages, _ in self._recent for message in messages]
        return [*self.opening, *self._summary, *recent]

    @property
    def tokens(self) -> int:
        return size_of_messages(self.messages)

    def add(self, messages: list[Message], results: Sequence[Item] = ()) -> None:
        """A reply and what answers it; ``results`` are what its tools returned."""
        self._recent.append((messages, list(results)))
        self.made += 1

    def folded(self, most: int) -> Rounds:
        """The same with all but the last round in at most ``most`` tokens."""
        items = [*self._folded, *(item for _, items in self._recent[:-1] for item in items)]
        summary = summarise(items, most)
        lines = [summary.text, *(item.shown for item in items[summary.covered :])]
        text = "\n".join([RESULTS_HEAD, *filter(None, lines)])
        return Rounds(
            opening=self.opening,
            made=self.made,
            _folded=items,
            _recent=self._recent[-1:],
            _summary=[Message(role="user", content=text, origin="tools")] if items else [],
        )
