"""Names as models write them: found in spite of case, quotes, underscores and what stands behind.

A name is taken exactly, then with signs and case aside (``"senior_data researcher"``), then with
what follows it (``Researcher: find sources``), then as a unique part or misspelling of one name.
Figures are never guessed at: ``worker 12`` is not ``worker 11``. What fits several names or none is
an error that lists the roster, for whoever wrote it to choose again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from accord.errors import UsageError

ALIKE = 0.8
"""How much of a name, letter by letter, has to be right."""

_WORDS = re.compile(r"[^\W_]+")
_FIGURES = re.compile(r"\d+")
_BEHIND = re.compile(r"^[\s\"'`*_”’)\]]*(?:[:,;.\n–—-]|$)\s*|^[\s\"'`*”’)\]]*\s")


class UnknownNameError(ValueError):
    """A name that fits nobody, or several; the message lists the roster and is for a model."""


class Roster:
    """The names of a team, in order. Raises ``UsageError`` if two could not be told apart."""

    def __init__(self, names: Iterable[str], who: str) -> None:
        self.names = tuple(names)
        self._by_words: dict[tuple[str, ...], str] = {}
        for name in self.names:
            words = _words(name)
            if words in self._by_words or not words:
                other = self._by_words.get(words, "")
                raise UsageError(
                    f"{who}: nobody could tell {name!r} from {other!r}; give each a name of its own"
                )
            self._by_words[words] = name
        self._longest_first = sorted(self._by_words, key=len, reverse=True)

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
        whole = self._by_words.get(_words(text))
        if whole is not None:
            return whole, ""
        found = self._at_the_head(text)
        if found is not None:
            return found
        head, colon, rest = text.partition(":")
        return self._nearest(head if colon else text), rest.strip()

    def mentioned(self, text: str) -> list[str]:
        """The names that occur in ``text``, each once, in the order in which they first do."""
        words = list(_words(text))
        found: list[str] = []
        index = 0
        while index < len(words):
            name = self._name_at(words, index)
            if name is None:
                index += 1
                continue
            index += len(_words(name))
            if name not in found:
                found.append(name)
        return found

    def _name_at(self, words: Sequence[str], index: int) -> str | None:
        for each in self._longest_first:
            if tuple(words[index : index + len(each)]) == each:
                return self._by_words[each]
        return None

    def _at_the_head(self, text: str) -> tuple[str, str] | None:
        """The longest name that ``text`` begins with, if a sign or a space ends it."""
        words = list(_WORDS.finditer(text))
        for each in self._longest_first:
            if tuple(word.group().casefold() for word in words[: len(each)]) != each:
                continue
            behind = text[words[len(each) - 1].end() :]
            if (end := _BEHIND.match(behind)) is not None:
                return self._by_words[each], behind[end.end() :].strip()
        return None

    def _nearest(self, text: str) -> str:
        words = _words(text)
        if not words:
            raise UnknownNameError(f"no name is given; there are: {self._listed()}")
        near = [
            name
            for each, name in self._by_words.items()
            if _may_mean(words, each) and (set(words) <= set(each) or _alike(words, each))
        ]
        if len(near) == 1:
            return near[0]
        if near:
            raise UnknownNameError(
                f"{text.strip()!r} may mean {', '.join(near)}; there are: {self._listed()}"
            )
        raise UnknownNameError(f"there is no {text.strip()[:80]!r}; there are: {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(self.names)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.casefold() for word in _WORDS.findall(text))


def _may_mean(words: tuple[str, ...], name: tuple[str, ...]) -> bool:
    """The figures in both are the same, or none are given."""
    given = _FIGURES.findall(" ".join(words))
    return not given or given == _FIGURES.findall(" ".join(name))


def _alike(words: tuple[str, ...], name: tuple[str, ...]) -> bool:
    return SequenceMatcher(None, " ".join(words), " ".join(name)).ratio() >= ALIKE
