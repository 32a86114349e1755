"""The beginning of a summary: what a text says first and most tellingly, in few tokens.

Extraction, not writing: every word comes from the text, so nothing is made up, and it costs no
model. Sentences that carry figures, names and quotations say more than others; of equals, the
first is taken.
"""

from __future__ import annotations

import re
from functools import lru_cache

from accord.tokens.count import estimate

_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\s*\n+\s*")  # CJK punctuation is meant
_WORDS = re.compile(r"\s*\S+")
_TELLING = re.compile(
    r"""\d+(?:[.,:]\d+)*       # figures
    | ["“«「][^"”»」]+["”»」]   # quotations
    | (?<=\s)[A-Z][\w-]+       # names, but for the first word""",
    re.VERBOSE,
)
SCANNED_CHARACTERS = 20_000


def excerpt(text: str, tokens: int) -> str:
    """At most ``tokens`` tokens of ``text``: its most telling sentence, cut if need be.

    Empty if not even one word fits.
    """
    if tokens < 1:
        return ""
    return shortened(_most_telling(text[:SCANNED_CHARACTERS]), tokens)


@lru_cache(maxsize=1024)  # a summary is made again and again, of the same texts
def _most_telling(text: str) -> str:
    """The sentence of ``text`` that tells most, on one line; the first of equals."""
    sentences = [s for s in _SENTENCES.split(text.strip()) if s]
    if not sentences:
        return ""
    best = max(range(len(sentences)), key=lambda index: (_weight(sentences[index]), -index))
    return " ".join(sentences[best].split())


def _weight(sentence: str) -> float:
    """How much a sentence tells for its length."""
    telling = len(_TELLING.findall(sentence))
    return telling / (4 + len(sentence.split()))


def shortened(text: str, tokens: int) -> str:
    """As many words of ``text`` from its beginning as fit into ``tokens``, and a mark."""
    if estimate(text) <= tokens:
        return text
    ends = [match.end() for match in _WORDS.finditer(text)]
    if len(ends) < 2:  # no spaces to cut at
        ends = list(range(1, len(text)))
    low, high = 0, len(ends) - 1
    while low < high:  # the most words that fit with the mark
        middle = (low + high + 1) // 2
        if estimate(text[: ends[middle - 1]] + "…") <= tokens:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low - 1]] + "…" if low else ""
