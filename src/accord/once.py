"""One run with a runtime of its own: what most programs need."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, Unpack

from accord.flow.load import Flow
from accord.runtime import Options, Result, Runtime
from accord.streaming import Item

T = TypeVar("T")


def run(
    flow: Callable[..., Coroutine[Any, Any, T]],
    /,
    *inputs: Any,
    run_id: str | None = None,
    baseline_tokens: int | None = None,
    **options: Unpack[Options],
) -> Result[T]:
    """Run ``flow(*inputs)`` and wait. ``options`` are those of :class:`Runtime`."""
    runtime = Runtime(**options)
    try:
        return runtime.run(flow, *inputs, run_id=run_id, baseline_tokens=baseline_tokens)
    finally:
        runtime.close_store()


async def arun(
    flow: Callable[..., Coroutine[Any, Any, T]],
    /,
    *inputs: Any,
    run_id: str | None = None,
    baseline_tokens: int | None = None,
    **options: Unpack[Options],
) -> Result[T]:
    """Run ``flow(*inputs)``. ``options`` are those of :class:`Runtime`."""
    async with Runtime(**options) as runtime:
        return await runtime.arun(flow, *inputs, run_id=run_id, baseline_tokens=baseline_tokens)


async def stream(
    flow: Flow, /, *inputs: Any, run_id: str | None = None, **options: Unpack[Options]
) -> AsyncGenerator[Item]:
    """:meth:`Runtime.stream`. ``options`` are those of :class:`Runtime`."""
    async with (
        Runtime(**options) as runtime,
        aclosing(runtime.stream(flow, *inputs, run_id=run_id)) as items,
    ):
        async for item in items:
            yield item


def resume(
    run_id: str,
    flow: Flow | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Result[Any]:
    """Go on with a run that stopped. ``options`` are those of :class:`Runtime`."""
    runtime = Runtime(**options)
    try:
        return runtime.resume(run_id, flow, answers=answers)
    finally:
        runtime.close_store()


async def aresume(
    run_id: str,
    flow: Flow | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    **options: Unpack[Options],
) -> Result[Any]:
    """:meth:`Runtime.aresume`. ``options`` are those of :class:`Runtime`."""
    async with Runtime(**options) as runtime:
        return await runtime.aresume(run_id, flow, answers=answers)
