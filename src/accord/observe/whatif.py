"""What agents would have been sent of a conversation, had each policy of visibility been declared.

A conversation is a list of utterances. Before each one that an agent makes, it looks at those
before: under ``full`` and ``diff`` it is sent all of them, under ``summary`` a bounded summary and
what came since, under ``keys`` a list of handles, under ``last`` the newest one. An agent's own
utterances are among what it sees. Instructions stand first, everyone's before its own; a summary
comes between these, as in prompts at run time. The engine is taken to keep each agent's last prompt
and the reply to it, so a token is *new* to it unless it stands in the longest common beginning of
these and this prompt.

This is a model of what agents do at run time (:mod:`accord.agent.context`), with the same
``summarise`` and ``pays``: one prompt for each utterance, no tools, no titles over what is shown,
and no instructions but those in the log. A test has both make their prompts of one conversation.

No policy loses anything, but for ``last``, whose point it is: :func:`folded` reads a prompt back,
the lines by the handles that stand in them, and gives the whole history. Pure: nothing is read from
outside.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from typing import Literal, NamedTuple, get_args

from accord.engine.base import CACHED_PRICE
from accord.observe.ledger import apportion
from accord.tokens.count import estimate
from accord.tokens.extract import excerpt
from accord.tokens.summary import HEAD, KEYS_HEAD, SUMMARY_TOKENS, pays, summarise

Visibility = Literal["full", "last", "keys", "diff", "summary"]
"""How much of what was said an agent is shown: a policy."""
POLICIES: tuple[Visibility, ...] = get_args(Visibility)

EVERYONE = ""
_HANDLES = re.compile(r"#(\d+)(?:-#(\d+))?")
_LONGEST_SENTENCE = 10_000

Count = Callable[[str], int]


class Utterance(NamedTuple):
    """Something that was written.

    ``reads`` says that its writer is an agent, which was sent something first. ``instructs`` is the
    agent whose instructions these are (``""`` is everyone's), None if they are none.
    """

    writer: str
    text: str
    reads: bool = True
    instructs: str | None = None


class Conversation(NamedTuple):
    """What was said in one run, in order, and the model that its agents spoke through, if known."""

    said: Sequence[Utterance]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """An utterance as a summary takes it: excerpts are cut from ``text``, its telling sentence."""

    number: int
    writer: str
    whole: str
    text: str
    tokens: int
    instructs: str | None

    @property
    def handle(self) -> str:
        return f"#{self.number}"


class Piece(NamedTuple):
    """A part of a prompt: an item as it is, or a line with handles that stands for ``items``."""

    text: str
    tokens: int
    items: tuple[Item, ...]
    whole: bool


class Look(NamedTuple):
    """The prompt of ``reader`` before utterance ``number``.

    The engine has the first ``cached`` pieces. ``sent`` and ``new`` are tokens by writer; headings
    are written by nobody (``""``).
    """

    reader: str
    number: int
    pieces: tuple[Piece, ...]
    cached: int
    sent: Counter[str]
    new: Counter[str]


def looks(
    said: Sequence[Utterance],
    policy: Visibility,
    *,
    count: Count = estimate,
    cached_price: float = CACHED_PRICE,
    summary_tokens: int = SUMMARY_TOKENS,
    replies_kept: bool = True,
) -> Iterator[Look]:
    """Each look that an agent would have had, in the order of what was said.

    ``replies_kept`` says that the engine also has what it wrote itself, as vLLM, SGLang and
    llama.cpp do; hosted APIs may read it again.
    """
    items = [_item(number, utterance, count) for number, utterance in enumerate(said)]
    readers: dict[str, _Reader] = {}
    for number, utterance in enumerate(said):
        if not utterance.reads:
            continue
        name = utterance.writer
        if name not in readers:
            readers[name] = _Reader(name, policy, count, cached_price, summary_tokens, replies_kept)
        yield readers[name].look(items, number)


def folded(look: Look, said: Sequence[Utterance]) -> list[tuple[int, str]]:
    """What a look shows or leads to: numbers and texts of utterances, each as often as it comes.

    Lines are read as an agent reads them: by the handles at their beginning. Instructions that
    stand in the prompt have no handle, so a range passes over them.
    Only tests and benchmarks use it, to prove that no policy loses anything.
    """
    whole = [(item, piece.text) for piece in look.pieces if piece.whole for item in piece.items]
    instructions = {item.number for item, _ in whole if item.instructs is not None}
    found = [(item.number, text) for item, text in whole]
    for piece in look.pieces:
        if not piece.whole and (handles := _handles(piece.text)) is not None:
            behind = range(handles[0], min(handles[1] + 1, look.number))
            reached = [n for n in behind if n not in instructions]
            found += [(n, said[n].text) for n in reached if _is_for(said[n], look.reader)]
    return sorted(found)


def history(look: Look, said: Sequence[Utterance]) -> list[tuple[int, str]]:
    """All that there was for the reader, as :func:`folded` gives it.

    Only tests and benchmarks use it, to prove that no policy loses anything.
    """
    before = enumerate(said[: look.number])
    return [(number, each.text) for number, each in before if _is_for(each, look.reader)]


@dataclass
class _Prompt:
    """The last prompt, and whose tokens are in it."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    sent: Counter[str] = field(default_factory=Counter[str])

    @property
    def tokens(self) -> int:
        return self.sent.total()

    def add(self, more: Iterable[Piece]) -> int:
        """Go on; gives how many pieces were there before."""
        had = len(self.pieces)
        self.pieces += more
        self.sent.update(_by_writer(self.pieces[had:]))
        return had

    def become(self, pieces: list[Piece]) -> int:
        """Be another; gives how many pieces its beginning has in common with this."""
        pairs = zip(self.pieces, pieces, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.pieces, self.sent = pieces, _by_writer(pieces)
        return kept


@dataclass
class _Reader:
    """One agent under one policy: what it has seen, and the prompt that its engine keeps."""

    name: str
    policy: Visibility
    count: Count
    cached_price: float
    summary_tokens: int
    replies_kept: bool
    looks: int = 0
    """How many it has had."""
    looked: int = 0
    """The utterance that the last was before: its reply to that prompt."""
    shared: list[Piece] = field(default_factory=list[Piece])
    """Everyone's instructions."""
    role: list[Piece] = field(default_factory=list[Piece])
    """Its own."""
    seen: list[Item] = field(default_factory=list[Item])
    prompt: _Prompt = field(default_factory=_Prompt)

    def look(self, items: Sequence[Item], number: int) -> Look:
        """The look before utterance ``number``."""
        came = [item for item in items[self.looked : number] if _is_for(item, self.name)]
        if not self.looks:
            self.shared = [_shown(item) for item in came if item.instructs == EVERYONE]
            self.role = [_shown(item) for item in came if item.instructs == self.name]
            came = [item for item in came if item.instructs is None]
            self.prompt.add([*self.shared, *self.role])
        self.seen += came
        had = len(self.prompt.pieces)
        kept = self._show(came)
        cached = kept if self.looks else 0
        pieces, sent = tuple(self.prompt.pieces), Counter(self.prompt.sent)
        if self.looks and self.replies_kept and cached == had:
            reply = _shown(items[self.looked])
            cached += pieces[had : had + 1] == (reply,)
        self.looks, self.looked = self.looks + 1, number
        return Look(self.name, number, pieces, cached, sent, _by_writer(pieces[cached:]))

    def _show(self, came: list[Item]) -> int:
        """Make the next prompt; gives how many of its pieces were in the last one."""
        match self.policy:
            case "full" | "diff":
                return self.prompt.add(map(_shown, came))
            case "keys":
                head = [self._line(KEYS_HEAD)] if came and len(came) == len(self.seen) else []
                return self.prompt.add([*head, *(self._line(_key(i), (i,)) for i in came)])
            case "last":
                return self.prompt.become([*self.shared, *self.role, *map(_shown, self.seen[-1:])])
            case "summary":
                return self._summarise(came)

    def _summarise(self, came: list[Item]) -> int:
        """As agents do: go on with the prompt until it pays to make it anew."""
        if not self.looks:  # nothing is cached yet, so the shorter one pays
            whole = [*self.prompt.pieces, *map(_shown, came)]
            return self.prompt.become(min(whole, self._afresh(came[-1:]), key=_tokens))
        news = list(dropwhile(lambda item: item.writer == self.name, came))
        afresh = self._afresh(news)
        shown = {piece.items for piece in afresh if piece.whole}
        in_both = _tokens(self.shared) + sum(item.tokens for item in news if (item,) in shown)
        going_on = self.prompt.tokens + sum(item.tokens for item in came)
        before, after = going_on - in_both, _tokens(afresh) - in_both
        if pays(before, after, self.looks, self.cached_price):
            return self.prompt.become(afresh)
        return self.prompt.add(map(_shown, came))

    def _afresh(self, news: Sequence[Item]) -> list[Piece]:
        """A summary of what came before ``news``, and these in full; a giant has a line of its own.

        So no range of handles passes over what is shown in full.
        """
        most = self.summary_tokens
        old = self.seen[: len(self.seen) - len(news)]
        summary = summarise(old, most)
        texts, shown = summary.text.splitlines(), old[summary.covered :]
        for item in news:
            if item.tokens > most and (short := summarise([item], most)).covered:
                texts.append(short.text)
            else:
                shown.append(item)
        lines = [self._line(text, _behind(text, self.seen)) for text in texts]
        head = [self._line(HEAD)] if lines else []
        return [*self.shared, *head, *lines, *self.role, *map(_shown, shown)]

    def _line(self, text: str, items: tuple[Item, ...] = ()) -> Piece:
        return Piece(text, self.count(text), items, whole=False)


def _item(number: int, said: Utterance, count: Count) -> Item:
    telling = excerpt(said.text, _LONGEST_SENTENCE)
    return Item(number, said.writer, said.text, telling, count(said.text), said.instructs)


def _is_for(what: Utterance | Item, reader: str) -> bool:
    return what.instructs in (None, EVERYONE, reader)


def _shown(item: Item) -> Piece:
    return Piece(item.whole, item.tokens, (item,), whole=True)


def _tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _key(item: Item) -> str:
    return f"{item.handle} {item.writer} {item.tokens}"


def _handles(line: str) -> tuple[int, int] | None:
    found = _HANDLES.match(line)
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _behind(line: str, items: Iterable[Item]) -> tuple[Item, ...]:
    handles = _handles(line)
    assert handles is not None
    return tuple(item for item in items if handles[0] <= item.number <= handles[1])


def _by_writer(pieces: Iterable[Piece]) -> Counter[str]:
    """A line's tokens by what it stands for, so that all add up."""
    found: Counter[str] = Counter()
    for piece in pieces:
        shares = apportion(piece.tokens, [item.tokens for item in piece.items])
        writers = [item.writer for item in piece.items]
        for writer, tokens in zip(writers, shares, strict=True) if shares else [("", piece.tokens)]:
            found[writer] += tokens
    return found
