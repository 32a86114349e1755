"""Counting and splitting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.errors import UsageError
from accord.tokens.count import estimate
from accord.tokens.split import split_text


@given(st.text(), st.integers(1, 50))
def test_parts_joined_are_the_text(text: str, most: int) -> None:
    assert "".join(split_text(text, most)) == text


@given(st.text(min_size=1), st.integers(4, 50))
def test_no_part_is_larger_than_asked(text: str, most: int) -> None:
    assert all(estimate(part) <= most for part in split_text(text, most))


@given(st.text(), st.text())
def test_a_text_is_not_estimated_larger_than_its_parts(one: str, other: str) -> None:
    assert estimate(one + other) <= estimate(one) + estimate(other)


def test_cuts_fall_between_paragraphs_where_they_can() -> None:
    text = "One two three.\n\nFour five six.\n\nSeven eight nine."
    assert split_text(text, 6) == ["One two three.\n\n", "Four five six.\n\n", "Seven eight nine."]


def test_a_part_needs_a_size() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        split_text("x", 0)


def test_only_nothing_is_free() -> None:
    assert estimate("") == 0
    assert estimate(" ") == 1
    assert estimate("日本語") == 3
    assert estimate("\ud800") > 0
