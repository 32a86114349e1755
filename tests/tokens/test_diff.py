"""Changes between values: nothing is lost, and little is said twice."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.tokens.count import estimate
from accord.tokens.diff import apply, diff, pieces, written

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.lists(
    st.sampled_from(["One line.\n", "Another, longer line!\n", "三行目。", "And? ", "\n"]),
    max_size=30,
).map("".join)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(values, values)
def test_a_diff_folds_back_to_the_value(old: Any, new: Any) -> None:
    after = apply(old, diff(old, new))
    assert json.dumps(after, sort_keys=True) == json.dumps(new, sort_keys=True)


@given(values)
def test_nothing_has_changed_in_what_is_the_same(value: Any) -> None:
    assert diff(value, json.loads(json.dumps(value))) == []


@given(texts)
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text


@given(st.lists(values, max_size=4).filter(lambda versions: len(versions) > 1))
def test_diffs_between_versions_add_up(versions: list[Any]) -> None:
    value = versions[0]
    for before, after in itertools.pairwise(versions):
        value = apply(value, diff(before, after))
    assert json.dumps(value, sort_keys=True) == json.dumps(versions[-1], sort_keys=True)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "plan.b = 3"),
        ({"a": 1, "b": 2}, {"a": 1}, "plan.b: removed"),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, "plan.a[2:2] = [3]"),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 5}], "plan[1].x = 5"),
    ],
)
def test_a_change_is_written_with_its_place(old: Any, new: Any, shown: str) -> None:
    assert written(diff(old, new), "plan") == shown


def test_an_edit_of_a_long_text_says_the_edit() -> None:
    old = "".join(f"Sentence {i} of the draft is here.\n" for i in range(100))
    new = old.replace("Sentence 50 of", "Phrase 50 of")
    shown = written(diff(old, new), "draft")
    assert shown == (
        "draft:\n- Sentence 50 of the draft is here.\n+ Phrase 50 of the draft is here."
    )
    assert estimate(shown) < 0.05 * estimate(new)


def test_a_number_is_not_the_truth_value_that_equals_it() -> None:
    assert diff({"a": 1}, {"a": True})
    assert diff([1], [1.0])
