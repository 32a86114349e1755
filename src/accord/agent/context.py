"""The prompt: from an agent's declaration and the log to messages, the most stable part first.

1. what agents share (``shares``), the same bytes for all of them
2. a summary of what was seen before, where one has been made; it grows at its end
3. the agent's own role: instructions, the form of its reply
4. its history: what it was sent and what it said, as it was, only ever added to
5. what is new: what others have written since it last looked, then what it is asked
6. what passes: visibilities that show a state (``full``, ``last``, ``keys``) rather than news

So an engine with a prefix cache computes 5 and 6 only, and 1 once for all. Nothing volatile (time,
ids, class paths) reaches a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from accord.agent.history import PastCall, continued, exchange_of, item_of, past_calls
from accord.agent.reading import Item, Read, Visibility, items_of, place_of
from accord.agent.tally import Tally
from accord.comm.post import Post
from accord.comm.space import Order
from accord.engine.base import Capabilities, Message, Origin
from accord.engine.size import size_of_messages
from accord.flow.scope import Scope
from accord.log.events import View
from accord.tokens.encode import encode
from accord.tokens.summary import HEAD, KEYS_HEAD, SUMMARY_TOKENS, pays, summarise

RECALL = "recall"
"""The tool that fetches what stands behind a handle."""


@dataclass(frozen=True, kw_only=True)
class ContextSpec:
    """What an agent sees: as declared, and never more. See :class:`accord.agent.agent.Agent`."""

    shares: tuple[Read, ...] = ()
    reads: tuple[Read, ...] = ()
    sees: Visibility = "nothing"
    expected_calls: int | None = None
    summary_tokens: int = SUMMARY_TOKENS
    writes_summaries: bool = False
    """An agent makes them, which costs reading what they stand for."""
    memory: str = ""
    memory_items: int = 5

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.shares or self.reads or self.memory) or self.keeps_history

    @property
    def keeps_history(self) -> bool:
        return self.sees in ("diff", "summary") or any(read.keeps_history for read in self.reads)

    @property
    def summarises(self) -> bool:
        """Whether what was seen before may give way to a summary."""
        return "summary" in (self.sees, *(read.visibility for read in self.reads))


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What one call of an agent begins with: ``before``, a summary if there is one, ``after``.

    ``covered`` is what the summary stands for, if an agent may write it anew. ``names_handles``
    says that ``recall`` is to be offered.
    """

    before: list[Message] = field(default_factory=list[Message])
    summary: Message | None = None
    after: list[Message] = field(default_factory=list[Message])
    views: tuple[View, ...] = ()
    covered: tuple[Item, ...] = ()
    news: tuple[Item, ...] = ()
    """What others wrote that is shown in full after the history."""
    names_handles: bool = False

    @property
    def messages(self) -> list[Message]:
        summary = [] if self.summary is None else [self.summary]
        return [*self.before, *summary, *self.after]

    @cached_property
    def tokens(self) -> int:
        return size_of_messages(self.messages)


def asked(inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Message]:
    """What a call is given: texts as they stand, anything else encoded; named ones by name."""
    parts = [encode(value) for value in inputs]
    parts += [f"{name}:\n{encode(value)}" for name, value in named.items()]
    return [Message(role="user", content="\n\n".join(parts), origin="task")] if parts else []


def summary_message(text: str) -> Message:
    """The layer that stands for what came before."""
    return Message(role="system", content=f"{HEAD}\n{text}", origin="board")


class Composer:
    """Puts the first prompt of a call together, as of a position of the log."""

    def __init__(
        self,
        agent: str,
        role: Sequence[Message],
        spec: ContextSpec,
        remembered: Sequence[Item],
        *,
        scope: Scope,
        position: int,
        until: Order | None = None,
    ) -> None:
        self._role = role
        self._spec = spec
        self._remembered = remembered
        self._log = scope.execution.log
        self._position = position
        self._until = until
        """Only what was written before that place is shown."""
        self._found: dict[tuple[Read, int], list[Item]] = {}
        past = past_calls(self._log, agent, scope, position)
        self._looked = max((call.looked for call in past), default=0)
        self._past: list[PastCall] = past if spec.keeps_history else []
        self._places = {f"#{call.path}" for call in self._past}

    def compose(self, asked: list[Message], most: int | None, engine: Capabilities) -> Prompt:
        """The prompt that costs least as things are to be seen, in ``most`` tokens if it can.

        ``most`` leaves room for tools and reply; None if the engine's window is unknown.
        """
        whole = self._going_on(asked) if self._past else self._afresh(asked)
        if most is not None and whole.tokens > most:
            return self._afresh(asked, "diff", "summary")
        if self._spec.summarises:
            short = self._afresh(asked, "summary")
            reading = sum(item.tokens for item in short.covered)
            if self._spec.writes_summaries and self._pays(whole, short, engine, reading):
                return short
            if self._pays(whole, short, engine):
                return replace(short, covered=())  # what was extracted has cost nothing
        return whole

    def messages_shown(self) -> tuple[int, ...]:
        """The messages that are shown, and that nobody had taken; by number."""
        post = self._log.fold(Post)
        return tuple(
            item.seq
            for read in self._spec.reads
            if read.space == "mail" and read.visibility != "nothing"
            for item in self._items(read)
            if not post.is_taken(item.seq)
        )

    def _pays(self, whole: Prompt, short: Prompt, engine: Capabilities, cost: int = 0) -> bool:
        made, expected = len(self._past), self._spec.expected_calls
        left = made if expected is None else expected - made  # as many as there have been
        in_both = _tokens_in_both(whole, short)
        return pays(
            whole.tokens - in_both,
            short.tokens - in_both,
            max(left, 1),
            engine.cached_price,
            cost=cost,
            in_cache=made > 0,
        )

    def _going_on(self, asked: list[Message]) -> Prompt:
        """The history as it was, and what is new."""
        last = self._past[-1]
        news = [
            item
            for read in (*self._spec.shares, *self._spec.reads)
            if read.keeps_history or read in self._spec.shares
            for item in self._items(read, last.looked)
            if item.handle not in self._places
        ]
        tally = self._tally()
        tally.carry(last.views)
        tally.count(news)
        state = self._state(tally)
        request = continued(self._log, last)
        recalled = any(tool.name == RECALL for tool in request.tools)
        return Prompt(
            before=list(request.messages),
            after=[*_board(news), *asked, *state],
            views=tally.views(),
            news=tuple(news),
            names_handles=recalled or self._lists_keys,
        )

    def _afresh(self, asked: list[Message], *shortened: Visibility) -> Prompt:
        """No history: what reads of a visibility in ``shortened`` held before is summarised."""
        shares = [item for read in self._spec.shares for item in self._items(read)]
        old = [item_of(self._log, call) for call in self._past]
        new: list[Item] = []
        whole: list[Item] = []
        for read in self._spec.reads:
            found = [item for item in self._items(read) if item.handle not in self._places]
            if read.visibility in shortened:
                seen = self._seen(found)
                old += found[:seen]
                new += found[seen:]
            elif read.keeps_history:
                whole += found
        text, covered, left = self._shorten(sorted(old, key=place_of), new)
        shown = sorted([*left, *whole], key=place_of)
        tally = self._tally()
        tally.count([*shares, *shown])
        tally.count_summary(covered, text)
        state = self._state(tally)
        return Prompt(
            before=_board(shares, "system"),
            summary=summary_message(text) if covered else None,
            after=[*self._role, *self._told(shown), *asked, *state],
            views=tally.views(),
            covered=tuple(covered),
            news=tuple(shown),
            names_handles=bool(covered) or self._lists_keys,
        )

    def _seen(self, found: list[Item]) -> int:
        """How many of ``found`` are old: seen before, or all but the last at the first look.

        Up to the first that is new in the order of the program: what stands behind it is shown.
        """
        if not self._past:
            return max(len(found) - 1, 0)
        looked = self._past[-1].looked
        return next((i for i, item in enumerate(found) if item.seq >= looked), len(found))

    def _shorten(self, old: list[Item], new: list[Item]) -> tuple[str, list[Item], list[Item]]:
        """A summary, what it stands for, and what is left to show: the new, but for giants."""
        most = self._spec.summary_tokens
        summary = summarise(old, most)
        lines, covered, left = [summary.text], old[: summary.covered], old[summary.covered :]
        for item in sorted(new, key=place_of):
            if item.tokens > most and (line := summarise([item], most)).covered:
                lines.append(line.text)
                covered.append(item)
            else:
                left.append(item)
        return "\n".join(filter(None, lines)), covered, left

    def _told(self, items: Sequence[Item]) -> list[Message]:
        """What others wrote, as the board has it; the agent's own calls, as they were said."""
        own = {call.end: call for call in self._past}
        messages: list[Message] = []
        others: list[Item] = []
        for item in items:
            if (call := own.get(item.seq)) is None:
                others.append(item)
                continue
            messages += [*_board(others), *exchange_of(self._log, call)]
            others = []
        return [*messages, *_board(others)]

    @property
    def _lists_keys(self) -> bool:
        return any(read.visibility == "keys" and self._items(read) for read in self._spec.reads)

    def _state(self, tally: Tally) -> list[Message]:
        """What visibilities show that have no history, and what a memory holds."""
        shown: list[str] = []
        for read in self._spec.reads:
            items = self._items(read)
            match read.visibility:
                case "full":
                    shown += [item.shown for item in items]
                    tally.count(items)
                case "last":
                    shown += [item.shown for item in items[-1:]]
                    tally.count(items[-1:])
                case "keys" if items:
                    lines = [f"{item.handle} {item.title} {item.tokens}" for item in items]
                    shown.append("\n".join([KEYS_HEAD, *lines]))
                    tally.count_lines(items, lines)
                case _:
                    pass
        tally.count(self._remembered)
        remembered = [item.shown for item in self._remembered]
        return [*_passing(shown, "board"), *_passing(remembered, "memory")]

    def _items(self, read: Read, since: int = 0) -> list[Item]:
        found = self._found.get((read, since))
        if found is None:
            reads = (*self._spec.shares, *self._spec.reads)
            before = reads[: reads.index(read)]
            found = items_of(self._log, read, self._position, since, before)
            if self._until is not None:
                found = [item for item in found if item.order < self._until]
            self._found[read, since] = found
        return found

    def _tally(self) -> Tally:
        tally = Tally(self._looked)
        for read in self._spec.shares:
            tally.expect("shared", self._items(read))
        for read in self._spec.reads:
            tally.expect(read.visibility, self._items(read))
        tally.expect("memory", self._remembered)
        return tally


def _board(items: Sequence[Item], role: Any = "user") -> list[Message]:
    if not items:
        return []
    text = "\n\n".join(item.shown for item in items)
    return [Message(role=role, content=text, origin="board")]


def _passing(shown: Sequence[str], origin: Origin) -> list[Message]:
    text = "\n\n".join(shown)
    return [Message(role="user", content=text, origin=origin, kept=False)] if shown else []


def _tokens_in_both(whole: Prompt, short: Prompt) -> int:
    """Of what both prompts begin or end with: news item by item, the rest by message."""
    one, other = (list(filter(_is_no_news, each.messages)) for each in (whole, short))
    most = min(len(one), len(other))
    head = next((i for i in range(most) if one[i] != other[i]), most)
    tail = next((i for i in range(most - head) if one[-1 - i] != other[-1 - i]), most - head)
    new = {item.seq for item in whole.news}
    news = sum(item.tokens for item in short.news if item.seq in new)
    return size_of_messages([*one[:head], *one[len(one) - tail :]]) + news


def _is_no_news(message: Message) -> bool:
    return message.origin != "board" or message.role == "system" or not message.kept
