"""Who wrote a piece of text first: found again by its content.

Texts are cut at line breaks, ends of sentences, and quotes (so that JSON falls into its strings).
A piece is looked up as it stands, without a list marker or a label before it, and at last by
its runs of five words: if most of them are one author's, so is the piece. Nothing has to be
carried along at run time, and texts put together by f-strings are told apart as well as those
of systems that know nothing of Accord.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, cast

MIN_PIECE = 12
"""Shorter pieces (a heading, a JSON key) say nothing about their author: they go with the last."""
RUN_WORDS = 5

_BREAKS = re.compile(r'(?:\\n|\\"|[\n"])+|(?<=[.!?])\s+')
_MARKER = re.compile(r"^(?:[-*•#>]+|\(?\d+[.)])\s+")
_LABEL = re.compile(r"^[^:\n]{1,40}:\s+")


def pieces_of(text: str) -> list[str]:
    """The pieces of ``text``, without the white space around them."""
    return [piece for part in _BREAKS.split(text) if (piece := part.strip())]


class Authors:
    """What has been written so far, and by whom; the first author keeps it."""

    def __init__(self) -> None:
        self._pieces: dict[str, str] = {}
        self._runs: dict[tuple[str, ...], str] = {}

    def learn(self, value: Any, author: str) -> None:
        """``author`` wrote all the texts in ``value``."""
        for text in texts_in(value):
            for piece in pieces_of(text):
                for form in _forms(piece):
                    self._pieces.setdefault(form, author)
            for run in _runs(text.split()):
                self._runs.setdefault(run, author)

    def of(self, piece: str) -> str | None:
        """The author of ``piece``; None if it is too short to tell, ``task`` if it is new."""
        if len(piece) < MIN_PIECE:
            return None
        for form in _forms(piece):
            if (author := self._pieces.get(form)) is not None:
                return author
        runs = list(_runs(piece.split()))
        votes = Counter(author for run in runs if (author := self._runs.get(run)) is not None)
        if votes:
            author, count = votes.most_common(1)[0]
            if 2 * count >= len(runs):
                return author
        return "task"


def texts_in(value: Any) -> Iterator[str]:
    """All strings in a recorded value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            yield from texts_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in cast("Iterable[Any]", value):
            yield from texts_in(item)
    elif hasattr(value, "__dict__"):
        yield from texts_in(vars(value))
    elif hasattr(value, "__struct_fields__"):
        yield from texts_in([getattr(value, name) for name in value.__struct_fields__])


def _forms(piece: str) -> Iterator[str]:
    """A piece as it stands, and without what a flow may have put before it."""
    for form in (piece, bare := _MARKER.sub("", piece), _LABEL.sub("", bare)):
        if len(form) >= MIN_PIECE:
            yield form


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    for start in range(len(words) - RUN_WORDS + 1):
        yield tuple(words[start : start + RUN_WORDS])
