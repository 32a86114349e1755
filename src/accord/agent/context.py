"""The prompt: from an agent's declaration and the log to messages, the most stable part first.

1. what agents share (``shares``), the same bytes for all of them
2. a summary of what was seen before, where one has been made; it grows at its end
3. the agent's own role: instructions, the form of its reply
4. its history: what it was sent and what it said, as it was, only ever added to
5. what is new: what others have written since it last looked, then what it is asked
6. what passes: policies that show a state (``full``, ``last``, ``keys``) rather than news

So an engine with a prefix cache computes 5 and 6 only, and 1 once for all. Nothing volatile (time,
ids, class paths) reaches a prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from accord.agent.reading import Item, Policy, Read, items_of
from accord.agent.session import Talk, item_of, messages_of, talks_before
from accord.engine.base import Capabilities, Message, Origin
from accord.flow.scope import Scope
from accord.log.events import View
from accord.tokens.count import estimate
from accord.tokens.encode import encode
from accord.tokens.summary import HEAD, pays, summarise

RESULTS_HEAD = "What your tools returned, in short; recall a handle (#...) for the full text:"
_MEMORY = Read("*", "memory", "last")
KEYS_HEAD = "There is, with the tokens that each takes; recall a handle (#...) for the text:"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What an agent sees: as declared, and never more.

    ``turns`` is how often it will be called in a run, as far as that is known; ``summary_tokens``
    bounds a summary.
    """

    shares: tuple[Read, ...] = ()
    reads: tuple[Read, ...] = ()
    sees: Policy = "nothing"
    turns: int | None = None
    summary_tokens: int = 800
    memory: str = ""
    """The memory from which it gets what goes best with what it is asked."""
    recalls: int = 5
    writes_summaries: bool = False
    """An agent makes them, which costs reading what they stand for."""

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.shares or self.reads or self.memory) or self.keeps_history

    @property
    def keeps_history(self) -> bool:
        return self.sees in ("diff", "summary") or any(read.keeps_history for read in self.reads)

    @property
    def mailboxes(self) -> tuple[str, ...]:
        """Whose messages it takes by looking."""
        return tuple(read.pattern for read in self.reads if read.space == "mail")

    @property
    def summarises(self) -> bool:
        """Whether what was seen before may give way to a summary."""
        return "summary" in (self.sees, *(read.policy for read in self.reads))


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What one call of an agent begins with.

    ``opened`` says that the prompt names handles, so that ``recall`` should be offered.
    """

    messages: list[Message]
    views: tuple[View, ...] = ()
    opened: bool = False
    covered: tuple[Item, ...] = ()
    """What a summary in it stands for."""

    @property
    def tokens(self) -> int:
        return sum(estimate(message.content) for message in self.messages)


def asked(inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Message]:
    """What a call is given: texts as they stand, anything else encoded; named ones by name."""
    parts = [encode(value) for value in inputs]
    parts += [f"{name}:\n{encode(value)}" for name, value in named.items()]
    return [Message(role="user", content="\n\n".join(parts), origin="task")] if parts else []


class Composer:
    """Puts the first prompt of a call together, as of a position of the log."""

    def __init__(
        self,
        agent: str,
        role: Sequence[Message],
        sight: Sight,
        recalled: Sequence[Item],
        *,
        scope: Scope,
        position: int,
    ) -> None:
        self._agent = agent
        self._role = role
        self._recalled = recalled
        self._sight = sight
        self._log = scope.execution.log
        self._position = position
        self._found: dict[tuple[Read, int], list[Item]] = {}
        self._talks: list[Talk] = []
        if sight.keeps_history:
            self._talks = talks_before(self._log, agent, scope, position)

    def compose(self, asked: list[Message], most: int | None, engine: Capabilities) -> Outlook:
        """The prompt that costs least under the declared policies, in ``most`` tokens if it can.

        ``most`` leaves room for tools and reply; None if the engine's window is unknown.
        """
        whole = self._going_on(asked) if self._talks else self._afresh(asked)
        if most is not None and whole.tokens > most:
            return self._afresh(asked, "diff", "summary")
        if self._sight.summarises:
            short = self._afresh(asked, "summary")
            reading = sum(item.tokens for item in short.covered)
            if self._sight.writes_summaries and self._pays(whole, short, engine, reading):
                return short
            if self._pays(whole, short, engine):
                return replace(short, covered=())  # what was extracted has cost nothing
        return whole

    def _pays(self, whole: Outlook, short: Outlook, engine: Capabilities, cost: int = 0) -> bool:
        made, declared = len(self._talks), self._sight.turns
        left = made if declared is None else declared - made  # as many as there have been
        in_both = _tokens_in_both(whole.messages, short.messages)
        return pays(
            whole.tokens - in_both,
            short.tokens - in_both,
            max(left, 1),
            engine.cached_price,
            cost=cost,
            in_cache=made > 0,
        )

    def _going_on(self, asked: list[Message]) -> Outlook:
        """The history as it was, and what is new."""
        talk = self._talks[-1]
        tally = _Tally(self._everything())
        tally.carry(talk.views)
        news = [
            item
            for read in (*self._sight.shares, *self._sight.reads)
            if read.keeps_history or read in self._sight.shares
            for item in self._items(read, talk.looked)
            if not self._said(item)
        ]
        tally.count(news)
        history = messages_of(self._log, talk)
        messages = [*history, *_shown(news), *asked, *self._state(tally)]
        return Outlook(messages=messages, views=tally.views(), opened=_names_handles(messages))

    def _afresh(self, asked: list[Message], *shortened: Policy) -> Outlook:
        """No history: what reads of a policy in ``shortened`` held before is summarised."""
        shares = [item for read in self._sight.shares for item in self._items(read)]
        old = [item_of(self._log, talk) for talk in self._talks]
        new: list[Item] = []
        whole: list[Item] = []
        for read in self._sight.reads:
            found = [item for item in self._items(read) if not self._said(item)]
            if read.policy in shortened:
                seen = self._seen(found)
                old += found[:seen]
                new += found[seen:]
            elif read.keeps_history:
                whole += found
        text, covered, left = self._shorten(sorted(old, key=_by_place), new)
        shown = sorted([*left, *whole], key=_by_place)
        tally = _Tally(self._everything())
        tally.count([*shares, *shown])
        tally.count_summary(covered, text)
        messages = [
            *_shown(shares, "system"),
            *([summary_message(text)] if covered else []),
            *self._role,
            *_shown(shown),
            *asked,
            *self._state(tally),
        ]
        return Outlook(
            messages=messages,
            views=tally.views(),
            opened=_names_handles(messages),
            covered=tuple(covered),
        )

    def _seen(self, found: list[Item]) -> int:
        """How many of ``found`` are old: seen before, or all but the last at the first look.

        Up to the first that is new in the order of the program: what stands behind it is shown.
        """
        if not self._talks:
            return max(len(found) - 1, 0)
        looked = self._talks[-1].looked
        return next((i for i, item in enumerate(found) if item.seq >= looked), len(found))

    def _shorten(self, old: list[Item], new: list[Item]) -> tuple[str, list[Item], list[Item]]:
        """A summary, what it stands for, and what is left to show: the new, but for giants."""
        most = self._sight.summary_tokens
        summary = summarise(old, most)
        lines, covered, shown = [summary.text], old[: summary.covered], old[summary.covered :]
        for item in sorted(new, key=_by_place):
            if item.tokens > most and (line := summarise([item], most)).covered:
                lines.append(line.text)
                covered.append(item)
            else:
                shown.append(item)
        return "\n".join(filter(None, lines)), covered, shown

    def _said(self, item: Item) -> bool:
        """It is the agent's own answer in an earlier call, and so in its history."""
        return any(item.handle == f"#{talk.path}" for talk in self._talks)

    def _state(self, tally: _Tally) -> list[Message]:
        """What policies show that have no history."""
        shown: list[str] = []
        for read in self._sight.reads:
            items = self._items(read)
            match read.policy:
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
        return [*_passing(shown, "board"), *self._remembered(tally)]

    def _remembered(self, tally: _Tally) -> list[Message]:
        """What a memory held that goes with what is asked."""
        tally.count(self._recalled)
        return _passing([item.shown for item in self._recalled], "memory")

    def _items(self, read: Read, since: int = 0) -> list[Item]:
        found = self._found.get((read, since))
        if found is None:
            reads = (*self._sight.shares, *self._sight.reads)
            before = reads[: reads.index(read)]
            found = items_of(self._log, read, self._position, since, before)
            self._found[read, since] = found
        return found

    def _everything(self) -> Iterable[tuple[Read, Item]]:
        for read in (*self._sight.shares, *self._sight.reads):
            for item in self._items(read):
                yield read, item
        for item in self._recalled:
            yield _MEMORY, item


class _Tally:
    """Adds up what was shown of whose writing, by writer and policy."""

    def __init__(self, everything: Iterable[tuple[Read, Item]]) -> None:
        self._full: Counter[tuple[str, str]] = Counter()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._new: Counter[tuple[str, str]] = Counter()
        self._policies: dict[int, Policy] = {}
        for read, item in everything:
            self._full[item.writer, read.policy] += item.tokens
            self._policies[item.seq] = read.policy

    def carry(self, views: Iterable[View]) -> None:
        """What the history holds already."""
        for view in views:
            if view.policy in ("diff", "summary"):
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
        return tuple(
            View(
                writer=writer,
                policy=policy,
                full=full,
                sent=self._sent[writer, policy],
                new=self._new[writer, policy],
            )
            for (writer, policy), full in sorted(self._full.items())
        )

    def _add(self, item: Item, tokens: int) -> None:
        policy = self._policies.get(item.seq)
        if policy is not None:  # else it is the agent's own
            self._sent[item.writer, policy] += tokens
            self._new[item.writer, policy] += tokens


def _shown(items: Sequence[Item], role: Any = "user") -> list[Message]:
    if not items:
        return []
    text = "\n\n".join(item.shown for item in items)
    return [Message(role=role, content=text, origin="board")]


def _passing(shown: Sequence[str], origin: Origin) -> list[Message]:
    text = "\n\n".join(shown)
    return [Message(role="user", content=text, origin=origin, kept=False)] if shown else []


def summary_message(text: str) -> Message:
    """The layer that stands for what came before."""
    return Message(role="system", content=f"{HEAD}\n{text}", origin="board")


def _tokens_in_both(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Of the messages that both begin or end with."""
    most = min(len(one), len(other))
    head = next((i for i in range(most) if one[i] != other[i]), most)
    tail = next((i for i in range(most - head) if one[-1 - i] != other[-1 - i]), most - head)
    return sum(estimate(message.content) for message in [*one[:head], *one[len(one) - tail :]])


def _names_handles(messages: Iterable[Message]) -> bool:
    heads = (HEAD, KEYS_HEAD, RESULTS_HEAD)
    return any(head in message.content for message in messages for head in heads)


def _by_place(item: Item) -> Any:
    return item.order, item.seq
