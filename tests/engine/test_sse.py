"""The event decoder: the same payloads however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.engine.sse import EventDecoder
from accord.errors import EngineProtocolError


def decoded(*chunks: bytes) -> list[str]:
    decoder = EventDecoder()
    return [payload for chunk in chunks for payload in decoder.feed(chunk)] + decoder.finish()


# One line each, and no NUL-free rule: only line ends are special.
payloads = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n")).map(lambda s: "x" + s),
    max_size=6,
)


@given(payloads, st.lists(st.integers(0, 400), max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_any_chunking_gives_the_same_payloads(
    texts: list[str], cuts: list[int], newline: str
) -> None:
    raw = "".join(f"data: {text}{newline}{newline}" for text in texts).encode()
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    chunks = [raw[a:b] for a, b in pairwise(edges)]
    assert decoded(*chunks) == texts


def test_unicode_line_separators_inside_a_payload_survive() -> None:
    """STR-14."""
    line = 'data: {"content":"x\u2028y\u0085z\x0b\x1c"}\n\n'
    assert decoded(line.encode()) == ['{"content":"x\u2028y\u0085z\x0b\x1c"}']


def test_a_character_split_between_chunks_stays_whole() -> None:
    raw = "data: 日本🌟\n\n".encode()
    assert decoded(*(raw[i : i + 1] for i in range(len(raw)))) == ["日本🌟"]


def test_comments_and_other_fields_are_ignored() -> None:
    raw = b": ping\n\nevent: message\nid: 7\nretry: 10\ndata: a\n\n:\n\ndata:b\n\n"
    assert decoded(raw) == ["a", "b"]


def test_the_data_lines_of_one_event_are_joined() -> None:
    assert decoded(b"data: {\ndata: }\n\n") == ["{\n}"]


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert decoded(b"\xef\xbb\xbfdata: a\n\n") == ["a"]


def test_the_last_event_counts_without_its_blank_line() -> None:
    assert decoded(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 200, b"data: xxxxxxxx\n" * 30])
def test_a_line_or_an_event_that_never_ends_is_an_error(raw: bytes) -> None:
    decoder = EventDecoder(max_line_bytes=100)
    with pytest.raises(EngineProtocolError, match="more than 100 bytes"):
        _ = [decoder.feed(bytes([byte])) for byte in raw]
