"""What a request cost by the engine's own word: any vendor's tokens and timings as one record.

Promises: whatever an engine claims, ``cached + cache_write <= prompt`` and
``reasoning <= completion``; a number that is missing is not zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accord.engine.base import Timings, Usage
from accord.engine.shapes import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

# The log keeps signed 64-bit integers, and no engine counts further than a double can.
_MAX_COUNT = 2**53


def normalise_usage(
    usage: Mapping[str, Any], *, timings: Mapping[str, Any] | None = None
) -> Usage | None:
    """One record from any vendor's usage; None unless prompt and completion are both known.

    OpenAI's ``prompt_tokens`` and ``input_tokens`` include cached tokens. Anthropic's
    ``input_tokens`` excludes ``cache_read_input_tokens`` and ``cache_creation_input_tokens``; it is
    told apart by these names. ``timings`` is llama.cpp's, for servers whose usage lacks the
    details.
    """
    prompt_details = mapping(
        usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    )
    completion_details = mapping(
        usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    )
    cached = _first(
        prompt_details.get("cached_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        (timings or {}).get("cache_n"),
    )
    written = _first(
        prompt_details.get("cache_write_tokens"), usage.get("cache_creation_input_tokens")
    )
    reasoning = _first(completion_details.get("reasoning_tokens"))
    prompt = _prompt(usage, cached or 0, written or 0)
    completion = _first(usage.get("completion_tokens"), usage.get("output_tokens"))
    total = _first(usage.get("total_tokens"))
    if completion is None and prompt is not None and total is not None:
        completion = max(total - prompt, 0)
    if prompt is None or completion is None:
        return None
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning  # xAI and Gemini count reasoning beside the completion
    cached = min(cached or 0, prompt)
    return Usage(
        prompt=prompt,
        completion=completion,
        cached=cached,
        cache_write=min(written or 0, prompt - cached),
        reasoning=min(reasoning or 0, completion),
    )


def possible(usage: Usage) -> Usage:
    """``usage`` within what can be, whatever an engine in this process claims of itself."""
    prompt, completion = max(0, usage.prompt), max(0, usage.completion)
    cached = min(max(0, usage.cached), prompt)
    if (prompt, completion, cached) == (usage.prompt, usage.completion, usage.cached):
        return usage
    return Usage(prompt=prompt, completion=completion, cached=cached, estimated=usage.estimated)


def _prompt(usage: Mapping[str, Any], cached: int, written: int) -> int | None:
    prompt = _first(usage.get("prompt_tokens"))
    if prompt is not None:
        return prompt
    prompt = _first(usage.get("input_tokens"))
    anthropic = "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    if prompt is None or not anthropic or "input_tokens_details" in usage:
        return prompt
    return prompt + cached + written


def _first(*values: object) -> int | None:
    """The first value that is a count: a whole, finite number that is not negative."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if 0 <= value <= _MAX_COUNT and value == int(value):
            return int(value)
    return None


def normalise_timings(timings: Mapping[str, Any], metrics: Mapping[str, Any]) -> Timings | None:
    """llama.cpp's ``timings``, or the ``metrics`` of vLLM's ``--enable-per-request-metrics``.

    vLLM measures time to first token from when the request was scheduled, so it is the prefill.
    """
    found = Timings(
        queue_s=_seconds(metrics.get("queue_time_ms")),
        prefill_s=_seconds(timings.get("prompt_ms", metrics.get("time_to_first_token_ms"))),
        decode_s=_seconds(timings.get("predicted_ms", metrics.get("generation_time_ms"))),
    )
    return None if found == Timings() else found


def _seconds(milliseconds: object) -> float | None:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return None
    seconds = milliseconds / 1000 if -1e15 < milliseconds < 1e15 else -1.0
    return seconds if seconds >= 0 else None
