"""Usage of any vendor becomes one record that adds up, and a lying engine crashes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.engine.base import Usage
from accord.engine.usage import normalise_usage


def test_openai_prompt_tokens_include_the_cached_ones() -> None:
    """USG-4."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    assert normalise_usage(usage) == Usage(
        prompt=100, completion=20, cached=60, cache_write=10, reasoning=5
    )


def test_anthropic_input_tokens_exclude_what_was_read_and_written() -> None:
    """USG-4."""
    usage = {
        "input_tokens": 30,
        "output_tokens": 20,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 10,
    }
    assert normalise_usage(usage) == Usage(prompt=100, completion=20, cached=60, cache_write=10)


def test_the_responses_api_shape_includes_the_cached_ones() -> None:
    usage = {
        "input_tokens": 100,
        "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 60},
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    assert normalise_usage(usage) == Usage(prompt=100, completion=20, cached=60, reasoning=20)


def test_llama_cpp_timings_stand_in_for_missing_details() -> None:
    usage: dict[str, Any] = {"prompt_tokens": 31, "completion_tokens": 5}
    assert normalise_usage(usage, timings={"cache_n": 30}) == Usage(
        prompt=31, completion=5, cached=30
    )
    usage["prompt_tokens_details"] = {"cached_tokens": 0}
    assert normalise_usage(usage, timings={"cache_n": 30}) == Usage(prompt=31, completion=5)


def test_missing_is_not_zero() -> None:
    assert normalise_usage({}) is None
    assert normalise_usage({"prompt_tokens": None, "completion_tokens": 3}) is None
    assert normalise_usage({"prompt_tokens": 5}) is None
    assert normalise_usage({"prompt_tokens": 0, "completion_tokens": 0}) == Usage(
        prompt=0, completion=0
    )


def test_a_missing_completion_follows_from_the_total() -> None:
    assert normalise_usage({"prompt_tokens": 5, "total_tokens": 8}) == Usage(prompt=5, completion=3)


def test_reasoning_counted_beside_the_completion_is_added_to_it() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 115,
        "completion_tokens_details": {"reasoning_tokens": 100},
    }
    assert normalise_usage(usage) == Usage(prompt=10, completion=105, reasoning=100)


@pytest.mark.parametrize("lie", ["12", -1, float("nan"), float("inf"), 1.5, True, [], 10**400])
def test_what_is_no_count_is_missing(lie: object) -> None:
    assert normalise_usage({"prompt_tokens": lie, "completion_tokens": 1}) is None
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": lie},
    }
    assert normalise_usage(usage) == Usage(prompt=9, completion=1)


numbers = st.one_of(
    st.none(), st.integers(-5, 50), st.floats(), st.text(max_size=2), st.integers(min_value=2**60)
)
details = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]), numbers
    ),
)
NUMBERS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
DETAILS = ("prompt_tokens_details", "completion_tokens_details", "input_tokens_details")


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(NUMBERS, numbers) | dict.fromkeys(DETAILS, details)
    )
)
def test_parts_never_exceed_the_whole(usage: dict[str, Any]) -> None:
    """USG-4: whatever an engine says."""
    found = normalise_usage(usage)
    if found is not None:
        assert min(found.prompt, found.completion, found.cached, found.cache_write) >= 0
        assert found.cached + found.cache_write <= found.prompt
        assert found.reasoning <= found.completion
