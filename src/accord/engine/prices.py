"""What well-known hosted models cost, for reports on runs whose engine names no prices.

US dollars per million tokens, at the provider's own standard rate: no batch or priority rates, none
for long contexts, no regional surcharge; of models that their provider no longer lists, Bedrock's.
Where cached input has no price of its own, None stands.

Prices change: these are from ``model_prices_and_context_window_backup.json`` in the PyPI package
litellm 1.110.2 (MIT), read on 30 November 2026, and the user's own always win.
"""

from __future__ import annotations

import re

from accord.engine.base import Prices

_DATES = r"20\d\d-\d\d-\d\d|\d{8}|\d{3,4}|\d\d-\d\d(-\d{4})?"
_VERSION = re.compile(rf"[-@]({_DATES}|latest|preview|v\d+:\d+)$")
_PROVIDER = re.compile(r"(?!ft:)([a-z_-]+\.|[^/:]+[/:])")  # a tuned model has its own price


def prices_of(model: str) -> Prices | None:
    """The prices of ``model``; None if they are not known.

    Takes ``provider/model``, ``provider:model`` and ``provider.model``, and what says a version: a
    date, ``-latest``, ``-preview``. A version that has a price of its own is told apart.
    """
    name: str | None = model.strip().lower()
    while name:
        version: str | None = name
        while version:
            if (found := _BY_NAME.get(_plain(version))) is not None:
                return found
            version = _without(_VERSION.search(version), version)
        name = _without(_PROVIDER.match(name), name)
    return None


def _without(found: re.Match[str] | None, name: str) -> str | None:
    return None if found is None else name[: found.start()] + name[found.end() :]


def _plain(name: str) -> str:
    """Some write ``claude-sonnet-4.5``."""
    return name.replace(".", "-")


_PRICES: dict[str, tuple[float, float | None, float]] = {
    # prompt, cached, completion
    "claude-haiku-4.5": (1.0, 0.1, 5.0),
    "claude-opus-4": (15.0, 1.5, 75.0),
    "claude-opus-4.1": (15.0, 1.5, 75.0),
    "claude-opus-4.5": (5.0, 0.5, 25.0),
    "claude-opus-4.6": (5.0, 0.5, 25.0),
    "claude-opus-4.7": (5.0, 0.5, 25.0),
    "claude-opus-4.8": (5.0, 0.5, 25.0),
    "claude-opus-5": (5.0, 0.5, 25.0),
    "claude-3.5-haiku": (0.8, 0.08, 4.0),
    "claude-3.5-sonnet": (3.0, 0.3, 15.0),
    "claude-3.7-sonnet": (3.0, 0.3, 15.0),
    "claude-sonnet-4": (3.0, 0.3, 15.0),
    "claude-sonnet-4.5": (3.0, 0.3, 15.0),
    "claude-sonnet-4.6": (3.0, 0.3, 15.0),
    "claude-sonnet-5": (2.0, 0.2, 10.0),
    "deepseek-chat": (0.28, 0.028, 0.42),
    "deepseek-reasoner": (0.28, 0.028, 0.42),
    "deepseek-v4-flash": (0.3, 0.006, 1.2),
    "deepseek-v4-pro": (1.32, 0.044, 3.96),
    "gemini-2.5-flash": (0.3, 0.03, 2.5),
    "gemini-2.5-flash-lite": (0.1, 0.01, 0.4),
    "gemini-2.5-pro": (1.25, 0.125, 10.0),
    "gemini-3-flash": (0.5, 0.05, 3.0),
    "gemini-3.1-pro": (2.0, 0.2, 12.0),
    "gemini-3.5-flash": (1.5, 0.15, 9.0),
    "glm-4.6": (0.6, 0.11, 2.2),
    "glm-5": (1.0, 0.2, 3.2),
    "gpt-3.5-turbo": (0.5, None, 1.5),
    "gpt-4": (30.0, None, 60.0),
    "gpt-4-1106-preview": (10.0, None, 30.0),
    "gpt-4-turbo": (10.0, None, 30.0),
    "gpt-4.1": (2.0, 0.5, 8.0),
    "gpt-4.1-mini": (0.4, 0.1, 1.6),
    "gpt-4.1-nano": (0.1, 0.025, 0.4),
    "gpt-4o": (2.5, 1.25, 10.0),
    "gpt-4o-2024-05-13": (5.0, None, 15.0),
    "gpt-4o-mini": (0.15, 0.075, 0.6),
    "gpt-5": (1.25, 0.125, 10.0),
    "gpt-5-mini": (0.25, 0.025, 2.0),
    "gpt-5-nano": (0.05, 0.005, 0.4),
    "gpt-5.1": (1.25, 0.125, 10.0),
    "gpt-5.2": (1.75, 0.175, 14.0),
    "gpt-5.4": (2.5, 0.25, 15.0),
    "gpt-5.4-mini": (0.75, 0.075, 4.5),
    "gpt-5.5": (5.0, 0.5, 30.0),
    "grok-4.3": (1.25, 0.2, 2.5),
    "grok-4.5": (2.0, 0.3, 6.0),
    "kimi-k2.5": (0.6, 0.1, 3.0),
    "kimi-k2.6": (0.95, 0.16, 4.0),
    "kimi-k3": (3.0, 0.3, 15.0),
    "minimax-m2.5": (0.3, 0.03, 1.2),
    "mistral-large": (0.5, 0.05, 1.5),
    "mistral-medium": (1.5, 0.15, 7.5),
    "mistral-small": (0.15, 0.015, 0.6),
    "o1": (15.0, 7.5, 60.0),
    "o3": (2.0, 0.5, 8.0),
    "o3-mini": (1.1, 0.55, 4.4),
    "o4-mini": (1.1, 0.275, 4.4),
    "qwen-max": (1.6, None, 6.4),
    "qwen-plus": (0.4, None, 1.2),
}
_BY_NAME = {
    _plain(name): Prices(prompt=prompt, cached=cached, completion=completion)
    for name, (prompt, cached, completion) in _PRICES.items()
}
