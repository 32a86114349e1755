"""What agents would have been sent of a conversation, had each policy of visibility been declared.

A conversation is a list of turns. Before each turn that an agent takes, it is sent its view of the
turns before: under ``full`` and ``diff`` all of them, under ``summary`` a bounded summary and what
came since, under ``keys`` a list of handles, under ``last`` the newest one. The engine is taken to
keep each agent's last prompt and the reply to it, so a token is *new* to it unless it stands in the
longest common beginning of these and this prompt; instructions stand first in every view. An
agent's own turns are part of its view.

No policy loses anything, but for ``last``, whose point it is: :func:`folded` reads a view back, the
lines by the handles that stand in them, and gives the whole history. Pure: nothing is read from
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
from accord.tokens.summary import HEAD, pays, summarise

Policy = Literal["full", "last", "keys", "diff", "summary"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

KEYS_HEAD = "There is, with the tokens that each takes; recall a handle (#...) for the text:"
SUMMARY_TOKENS = 800
EVERYONE = ""
_HANDLES = re.compile(r"#(\d+)(?:-#(\d+))?")
_LONGEST_SENTENCE = 10_000

Count = Callable[[str], int]


class Turn(NamedTuple):
    """Something that was written.

    ``reads`` says that its writer is an agent, which was sent something first. ``instructs`` is the
    agent whose instructions these are (``""`` is everyone's), None if they are none.
    """

    writer: str
    text: str
    reads: bool = True
    instructs: str | None = None


class Conversation(NamedTuple):
    """The turns of one run, in order, and the model that its agents spoke through, if known."""

    run: str
    turns: Sequence[Turn]
    model: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A turn as a summary takes it: ``text`` is the sentence from which any excerpt is cut."""

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


class View(NamedTuple):
    """What an agent is sent before turn ``number``. The engine has the first ``cached`` pieces.

    ``sent`` and ``new`` are tokens by writer; headings are written by nobody (``""``).
    """

    reader: str
    number: int
    pieces: tuple[Piece, ...]
    cached: int
    sent: Counter[str]
    new: Counter[str]


def views(
    turns: Sequence[Turn],
    policy: Policy,
    *,
    count: Count = estimate,
    cached_price: float = CACHED_PRICE,
    summary_tokens: int = SUMMARY_TOKENS,
    replies_kept: bool = True,
) -> Iterator[View]:
    """Each view that an agent would have had, in the order of the turns.

    ``replies_kept`` says that the engine also has what it wrote itself, as vLLM, SGLang and
    llama.cpp do; hosted APIs may read it again.
    """
    settings = _Settings(cached_price, summary_tokens, replies_kept)
    items = [_item(number, turn, count) for number, turn in enumerate(turns)]
    readers: dict[str, _Reader] = {}
    for number, turn in enumerate(turns):
        if turn.reads:
            name = turn.writer
            if name not in readers:
                readers[name] = _Reader(name, policy, count, settings)
            yield readers[name].look(items, number)


def folded(view: View, turns: Sequence[Turn]) -> list[tuple[int, str]]:
    """What a view shows or leads to: numbers and texts of turns, a turn as often as it comes.

    Lines are read as an agent reads them: by the handles at their beginning. Instructions that
    stand in the view have no handle, so a range passes over them.
    """
    whole = [(item, piece.text) for piece in view.pieces if piece.whole for item in piece.items]
    instructions = {item.number for item, _ in whole if item.instructs is not None}
    found = [(item.number, text) for item, text in whole]
    for piece in view.pieces:
        if not piece.whole and (handles := _handles(piece.text)) is not None:
            behind = range(handles[0], min(handles[1] + 1, view.number))
            reached = [n for n in behind if n not in instructions]
            found += [(n, turns[n].text) for n in reached if _is_for(turns[n], view.reader)]
    return sorted(found)


def history(turns: Sequence[Turn], view: View) -> list[tuple[int, str]]:
    """All that there was for the reader of ``view``, as :func:`folded` gives it."""
    before = enumerate(turns[: view.number])
    return [(number, turn.text) for number, turn in before if _is_for(turn, view.reader)]


class _Settings(NamedTuple):
    cached_price: float
    summary_tokens: int
    replies_kept: bool


class _Reader:
    """One agent under one policy: what it has seen, and the prompt that its engine keeps."""

    def __init__(self, name: str, policy: Policy, count: Count, settings: _Settings) -> None:
        self._name = name
        self._policy: Policy = policy
        self._count = count
        self._cached_price = settings.cached_price
        self._most = settings.summary_tokens
        self._replies_kept = settings.replies_kept
        self._looks = 0
        self._looked = 0
        self._pinned: list[Piece] = []
        self._seen: list[Item] = []
        self._prompt = _Prompt()

    def look(self, items: Sequence[Item], number: int) -> View:
        """The view before turn ``number``."""
        came = [item for item in items[self._looked : number] if _is_for(item, self._name)]
        if not self._looks:
            self._pinned = [_shown(item) for item in came if item.instructs is not None]
            came = [item for item in came if item.instructs is None]
            self._prompt.add(self._pinned)
        self._seen += came
        had = len(self._prompt.pieces)
        kept = self._show(came)
        cached = kept if self._looks else 0
        replied = came and came[0].number == self._looked and came[0].writer == self._name
        if self._replies_kept and replied and cached == had:
            cached += 1
        self._looks, self._looked = self._looks + 1, number
        pieces, sent = tuple(self._prompt.pieces), Counter(self._prompt.sent)
        return View(self._name, number, pieces, cached, sent, _by_writer(pieces[cached:]))

    def _show(self, came: list[Item]) -> int:
        """Make the next prompt; gives how many of its pieces were in the last one."""
        match self._policy:
            case "full" | "diff":
                return self._prompt.add(map(_shown, came))
            case "keys":
                head = [self._line(KEYS_HEAD)] if came and len(came) == len(self._seen) else []
                return self._prompt.add([*head, *(self._line(_key(i), (i,)) for i in came)])
            case "last":
                return self._prompt.become([*self._pinned, *map(_shown, self._seen[-1:])])
            case "summary":
                return self._summarise(came)

    def _summarise(self, came: list[Item]) -> int:
        """As agents do: go on with the prompt until it pays to make it anew."""
        if not self._looks:  # nothing is cached yet, so the shorter one pays
            whole = [*self._pinned, *map(_shown, came)]
            return self._prompt.become(min(whole, self._afresh(came[-1:]), key=_tokens))
        fresh = list(dropwhile(lambda item: item.writer == self._name, came))
        going_on = self._prompt.tokens + sum(item.tokens for item in came)
        news = sum(item.tokens for item in fresh if item.tokens <= self._most)
        in_both = _tokens(self._pinned) + news
        if self._pays(going_on - in_both, 0):  # else no summary can make it pay
            afresh = self._afresh(fresh)
            if self._pays(going_on - in_both, _tokens(afresh) - in_both):
                return self._prompt.become(afresh)
        return self._prompt.add(map(_shown, came))

    def _pays(self, before: int, after: int) -> bool:
        return pays(before, after, self._looks, self._cached_price)

    def _afresh(self, news: Sequence[Item]) -> list[Piece]:
        """A summary of what came before ``news``, and these in full; a giant has a line of its own.

        So no range of handles passes over what is shown in full.
        """
        old = self._seen[: len(self._seen) - len(news)]
        summary = summarise(old, self._most)
        texts, shown = summary.text.splitlines(), old[summary.covered :]
        for item in news:
            if item.tokens > self._most and (short := summarise([item], self._most)).covered:
                texts.append(short.text)
            else:
                shown.append(item)
        lines = [self._line(text, _behind(text, self._seen)) for text in texts]
        head = [self._line(HEAD)] if lines else []
        return [*self._pinned, *head, *lines, *map(_shown, shown)]

    def _line(self, text: str, items: tuple[Item, ...] = ()) -> Piece:
        return Piece(text, self._count(text), items, whole=False)


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


def _item(number: int, turn: Turn, count: Count) -> Item:
    telling = excerpt(turn.text, _LONGEST_SENTENCE)
    return Item(number, turn.writer, turn.text, telling, count(turn.text), turn.instructs)


def _is_for(what: Turn | Item, reader: str) -> bool:
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
