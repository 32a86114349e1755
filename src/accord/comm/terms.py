"""What is looked up: the terms of a text, in any script.

A word is a run of letters, marks and digits, casefolded and in NFKC; a symbol or an emoji is a term
of its own; punctuation separates. Scripts written without spaces between words (Han, kana, Thai,
Lao, Khmer, Myanmar), and Hangul with its particles, go by pairs of neighbouring characters: each
character begins one term, so that a single one is found as the beginning of its terms.

No term holds a sign at which SQLite's ``ascii`` tokenizer cuts, so an index keeps them as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

MOST_CHARACTERS = 64
"""Longer words are cut: they are data, not language."""

_LAST_CHARACTER = "\U0010ffff"
_ASCII_SYMBOLS = 0xF0000
"""Where ASCII's symbols stand in private use, which nothing else of a text is let into."""

_DENSE = re.compile(
    "["
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\u1780-\u17ff"  # Khmer
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u312f\u31a0-\u31ff"  # radicals, kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"  # kana and Han of other planes
    "]+"
)


class Term(NamedTuple):
    """A term of a query: what begins with ``first`` and does not come after ``last``."""

    first: str
    last: str

    @property
    def phrase(self) -> str:
        """As FTS5 takes it."""
        return f'"{self.first}"' if self.first == self.last else f'"{self.first}" *'


def document(text: str) -> str:
    """The terms of ``text`` with a space between, as often as they occur."""
    runs = _runs(text)
    if _DENSE.search(runs) is None:
        return " ".join([word[:MOST_CHARACTERS] for word in runs.split()])
    terms: list[str] = []
    for run in runs.split():
        terms += [*_pairs(run), run[-1]] if _DENSE.match(run) else [run[:MOST_CHARACTERS]]
    return " ".join(terms)


def query(text: str, most: int) -> list[Term]:
    """The first ``most`` different terms to look up for ``text``."""
    found: dict[Term, None] = {}
    for run in _runs(text).split():
        if not _DENSE.match(run):
            word = run[:MOST_CHARACTERS]
            found[Term(word, word)] = None
        elif len(run) == 1:
            found[Term(run, run + _LAST_CHARACTER)] = None
        else:
            found |= dict.fromkeys(Term(pair, pair) for pair in _pairs(run))
        if len(found) >= most:
            break
    return list(found)[:most]


def _runs(text: str) -> str:
    """Words, symbols, and runs of dense script, with spaces between."""
    if text.isascii():
        return text.lower().translate(_KINDS)
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _DENSE.sub(r" \g<0> ", unicodedata.normalize("NFKC", folded).translate(_KINDS))


def _pairs(run: str) -> Iterable[str]:
    return map("".join, pairwise(run))


class _Kinds(dict[int, str]):
    """What each character becomes, for ``str.translate``; found out when it first comes."""

    def __missing__(self, code: int) -> str:
        made = self[code] = _kind(chr(code))
        return made


def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cf" or _selects_variation(character):
        return ""
    if category[0] in "LMN":
        return character
    if category[0] == "S" or category == "Cn":  # an emoji newer than this Python has no category
        return f" {chr(_ASCII_SYMBOLS + ord(character)) if character.isascii() else character} "
    return " "


def _selects_variation(character: str) -> bool:
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


_KINDS = _Kinds()
