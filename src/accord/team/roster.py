"""Names as models write them: found in spite of case, quotes, underscores and what stands behind.

A name is taken exactly, then with signs and case aside (``"senior_data researcher"``), then with
what follows it (``Researcher: find sources``), then as a unique part or misspelling of one name.
Figures are never guessed at: ``worker 12`` is not ``worker 11``. What fits several names or none is
an error that lists the roster, for whoever wrote it to choose again.

Letters are compared as Unicode's compatible, caseless forms (NFKC, UAX 15), so that however ``é``
is encoded, it is one name. Signs count in a team in which they tell names apart (``C++`` and
``C#``, emoji); what separates or ends words never does, as models write one for the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from accord.errors import UsageError

ALIKE = 0.8
"""How much of a name, letter by letter, has to be right."""
BESIDE = 80
"""So much longer than the longest name is what a name is looked for in, at the head of a text."""

_FIGURES = re.compile(r"\d+")
_BEHIND = re.compile(
    r"^[\s\"'`*_”’)\]]*(?:[:,;.\n–—\uff1a\uff0c\u3001\u3002-]|$)\s*|^[\s\"'`*”’)\]]*\s"
)
_SEPARATORS = frozenset("\"'`*.,:;!?\u3001\u3002")
_SEPARATING = frozenset({"Pc", "Pd", "Pi", "Pf", "Zs", "Zl", "Zp", "Cc", "Cs", "Cn", "Co"})
_VARIATIONS = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""They say how the sign before them is drawn; models leave them out."""


class UnknownNameError(ValueError):
    """A name that fits nobody, or several; the message lists the roster and is for a model."""


@dataclass(frozen=True, kw_only=True)
class _Token:
    """A word, or a sign, of a text: compared as ``form``, ended at ``end``."""

    form: str
    end: int
    is_word: bool


class Roster:
    """The names of a team, in order. Raises ``UsageError`` if two could not be told apart."""

    def __init__(self, names: Iterable[str], who: str) -> None:
        self.names = tuple(names)
        self._signs = _telling(self.names)
        self._by_words: dict[tuple[str, ...], str] = {}
        for name in self.names:
            words = self._words(name)
            if not words:
                raise UsageError(
                    f"{who}: nobody could tell who is meant by {name!r}; give a name that has "
                    "letters, figures or symbols"
                )
            if words in self._by_words:
                raise UsageError(
                    f"{who}: nobody could tell {name!r} from {self._by_words[words]!r}; "
                    f"{_forms(name, self._by_words[words])}give each a name of its own"
                )
            self._by_words[words] = name
        self._lengths = sorted({len(words) for words in self._by_words}, reverse=True)
        self._head = BESIDE + max(map(len, self.names), default=0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def match(self, text: str) -> str:
        """The name that ``text`` means; raises :class:`UnknownNameError`."""
        return self.split(text)[0]

    def split(self, text: str) -> tuple[str, str]:
        """The name that ``text`` begins with, and what follows it; raises likewise."""
        if text in self.names:
            return text, ""
        if len(text) <= self._head and (whole := self._by_words.get(self._words(text))):
            return whole, ""
        found = self._at_the_head(text)
        if found is not None:
            return found
        head, colon, rest = text.partition(":")
        return self._nearest(head if colon else text), rest.strip()

    def mentioned(self, text: str) -> list[str]:
        """The names that occur in ``text``, each once, in the order in which they first do."""
        words = self._words(text)
        found: dict[str, None] = {}
        index = 0
        while index < len(words):
            length = self._length_at(words, index)
            if length:
                found[self._by_words[words[index : index + length]]] = None
            index += length or 1
        return list(found)

    def _words(self, text: str) -> tuple[str, ...]:
        return tuple(token.form for token in self._tokens(text))

    def _tokens(self, text: str) -> list[_Token]:
        return [each for each in _tokens(text) if each.is_word or each.form in self._signs]

    def _length_at(self, words: tuple[str, ...], index: int) -> int:
        """Of how many words is the longest name that stands there."""
        return next((n for n in self._lengths if words[index : index + n] in self._by_words), 0)

    def _at_the_head(self, text: str) -> tuple[str, str] | None:
        """The longest name that ``text`` begins with, if a sign or a space ends it."""
        tokens = self._tokens(text[: self._head])
        words = tuple(token.form for token in tokens)
        for length in self._lengths:
            name = self._by_words.get(words[:length])
            if name is None:
                continue
            behind = text[tokens[length - 1].end :]
            if (end := _BEHIND.match(behind)) is not None:
                return name, behind[end.end() :].strip()
        return None

    def _nearest(self, text: str) -> str:
        text = text.strip()
        words = self._words(text[: self._head])
        if not words:
            raise UnknownNameError(f"no name is given; there are: {self._listed()}")
        near = [
            name
            for each, name in self._by_words.items()
            if (set(words) <= set(each) or _alike(words, each)) and _may_mean(words, each)
        ]
        if len(near) == 1 and len(text) <= self._head:
            return near[0]
        if len(near) > 1:
            raise UnknownNameError(
                f"{text[:80]!r} may mean {', '.join(near)}; there are: {self._listed()}"
            )
        raise UnknownNameError(f"there is no {text[:80]!r}; there are: {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(self.names)


def _telling(names: Sequence[str]) -> set[str]:
    """The signs of those names that cannot be told apart without them."""
    tokens = [list(_tokens(name)) for name in names]
    words = [tuple(each.form for each in name if each.is_word) for name in tokens]
    alike = Counter(words)
    return {
        each.form
        for name, plain in zip(tokens, words, strict=True)
        if not plain or alike[plain] > 1
        for each in name
        if not each.is_word
    }


def _tokens(text: str) -> Iterator[_Token]:
    """Words and signs: each letter, figure or sign with the marks on it."""
    start, end, is_word = 0, 0, False
    for index, character in enumerate(text):
        kind = _kind(character)
        if end == index and end > start and (kind == "mark" or (kind == "word" and is_word)):
            end = index + 1
            continue
        if end > start:
            yield _Token(form=_form(text[start:end]), end=end, is_word=is_word)
        starts = kind in ("word", "sign") or (kind == "mark" and not _is_ignored(character))
        start, end, is_word = index, index + starts, kind != "sign"
    if end > start:
        yield _Token(form=_form(text[start:end]), end=end, is_word=is_word)


def _kind(character: str) -> str:
    if character.isalnum():
        return "word"
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return "mark"
    plain = unicodedata.normalize("NFKC", character)
    separates = category in _SEPARATING or plain in _SEPARATORS
    return "separator" if separates else "sign"


def _is_ignored(character: str) -> bool:
    return character in _VARIATIONS or unicodedata.category(character) == "Cf"


def _form(text: str) -> str:
    """What is compared of a word; twice, as folding takes some letters apart anew."""
    for _ in range(1 if text.isascii() else 2):
        text = unicodedata.normalize("NFKC", text.casefold())
    return text if text.isascii() else "".join(each for each in text if not _is_ignored(each))


def _forms(name: str, other: str) -> str:
    """The code points of two names that look the same."""
    if name == other or (name.isascii() and other.isascii()):
        return ""
    return f"they are {name!a} and {other!a}, which are one when compared; "


def _may_mean(words: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """The figures in both are the same, or none are given."""
    given = _FIGURES.findall(" ".join(words))
    return not given or given == _FIGURES.findall(" ".join(name))


def _alike(words: tuple[str, ...], name: tuple[str, ...]) -> bool:
    given, known = " ".join(words), " ".join(name)
    if 2 * min(len(given), len(known)) < ALIKE * (len(given) + len(known)):
        return False  # the most that the ratio can be, without the time that it takes
    return SequenceMatcher(None, given, known).ratio() >= ALIKE
