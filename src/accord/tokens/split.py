"""Long texts in parts that fit a window: nothing lost, nothing doubled."""

from __future__ import annotations

import re
from itertools import pairwise

from accord.errors import UsageError
from accord.tokens.count import estimate

_BOUNDARIES = (
    re.compile(r"\n\s*\n"),  # paragraphs
    re.compile(r"\n"),  # lines
    re.compile(r"(?<=[.!?。！？])\s*"),  # sentences  # CJK punctuation is meant
    re.compile(r"\s"),  # words
)


def split_text(text: str, max_tokens: int) -> list[str]:
    """``text`` in parts of about ``max_tokens`` each at most; joined, they are the text again.

    Cuts where it hurts least: between paragraphs, else lines, sentences, words, characters.
    Counts by :func:`accord.tokens.count.estimate`, so leave a margin to the engine's window.
    """
    if max_tokens < 1:
        msg = f"split_text needs at least one token a part, not {max_tokens}"
        raise UsageError(msg)
    parts: list[str] = []
    part, size = "", 0
    for piece in _pieces(text, max_tokens, 0):
        tokens = estimate(piece)
        if part and size + tokens > max_tokens:
            parts.append(part)
            part, size = "", 0
        part, size = part + piece, size + tokens
    return [*parts, part] if part else parts


def _pieces(text: str, max_tokens: int, level: int) -> list[str]:
    """``text`` cut at the coarsest boundaries that make every piece small enough."""
    if estimate(text) <= max_tokens:
        return [text] if text else []
    if level == len(_BOUNDARIES):
        middle = len(text) // 2
        if middle == 0:
            return [text]  # one character is as small as it gets
        halves = (text[:middle], text[middle:])
        return [piece for half in halves for piece in _pieces(half, max_tokens, level)]
    ends = [match.end() for match in _BOUNDARIES[level].finditer(text) if match.end()]
    cuts = [0, *ends, len(text)]
    spans = (text[start:end] for start, end in pairwise(cuts))
    return [piece for span in spans for piece in _pieces(span, max_tokens, level + 1)]
