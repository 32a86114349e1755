"""A model is found under any name that people log it by, and no other is taken for it."""

from __future__ import annotations

import pytest

from accord.engine.base import Prices
from accord.engine.prices import prices_of


@pytest.mark.parametrize(
    ("name", "prompt", "cached", "completion"),
    [
        ("gpt-4o", 2.5, 1.25, 10.0),
        ("o3-mini", 1.1, 0.55, 4.4),
        ("claude-sonnet-4.5", 3.0, 0.3, 15.0),
        ("claude-opus-4.1", 15.0, 1.5, 75.0),
        ("gemini-2.5-pro", 1.25, 0.125, 10.0),
        ("qwen-plus", 0.4, None, 1.2),
    ],
)
def test_a_model_is_found_by_its_name(
    name: str, prompt: float, cached: float | None, completion: float
) -> None:
    assert prices_of(name) == Prices(prompt=prompt, cached=cached, completion=completion)


@pytest.mark.parametrize(
    ("logged", "name"),
    [
        ("openai/gpt-4o", "gpt-4o"),
        ("azure/gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        (" GPT-4o ", "gpt-4o"),
        ("gpt-4-0613", "gpt-4"),
        ("gpt-4-turbo-2024-04-09", "gpt-4-turbo"),
        ("anthropic:claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("openrouter/anthropic/claude-sonnet-4.5", "claude-sonnet-4.5"),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4"),
        ("vertex_ai/claude-opus-4-1@20250805", "claude-opus-4.1"),
        ("claude-3-5-sonnet-latest", "claude-3.5-sonnet"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("gemini-2.5-flash-preview-05-20", "gemini-2.5-flash"),
        ("mistral/mistral-large-2512", "mistral-large"),
        ("MiniMax-M2.5", "minimax-m2.5"),
    ],
)
def test_a_provider_and_a_version_are_no_part_of_the_name(logged: str, name: str) -> None:
    assert prices_of(logged) is prices_of(name) is not None


@pytest.mark.parametrize(
    "model", ["", " ", "/", ":", "llama3:70b", "gpt-4-32k", "o3-pro", "gpt", "ft:gpt-4o:me::x"]
)
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert prices_of(model) is None


def test_a_version_with_a_price_of_its_own_keeps_it() -> None:
    for dated, name in (("gpt-4o-2024-05-13", "gpt-4o"), ("gpt-4-1106-preview", "gpt-4")):
        found = prices_of(dated)
        assert found is not None
        assert found != prices_of(name)
