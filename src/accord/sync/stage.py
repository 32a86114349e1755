"""The stages of a pipeline, where its items come from, and what cannot work."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from accord.errors import UsageError
from accord.flow.function import RecordedFunction


@dataclass(frozen=True)
class Stage:
    """``function`` at work on ``width`` items at a time.

    ``streams``   the function takes an async iterator over the text that the agent before it
                  writes, instead of its answer
    ``name``      for reports; the function's own if it is empty
    """

    function: Callable[[Any], Any]
    _: KW_ONLY
    width: int = 1
    streams: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(
                f"a stage of a pipeline is an agent, a step or a function, not {self.function!r}"
            )
        if not self.name:
            own = getattr(self.function, "name", "") or getattr(self.function, "__name__", "")
            object.__setattr__(self, "name", own or type(self.function).__name__)
        if self.width < 1:
            raise UsageError(
                f"stage {self.name!r} works on at least 1 item at a time, not {self.width}"
            )
        if self.streams and (
            isinstance(self.function, RecordedFunction) or hasattr(self.function, "not_streamed")
        ):
            raise UsageError(
                f"stage {self.name!r} is one recorded call, and a text that is being written is no "
                "input for that; stream to an async function that makes calls of what it reads"
            )


class Source:
    """Where the items come from; each is drawn when there is room for it."""

    def __init__(self, items: Any) -> None:
        self._is_async = hasattr(items, "__aiter__")
        if not self._is_async and not hasattr(items, "__iter__"):
            raise UsageError(f"a pipeline takes an iterable of items, async or not, not {items!r}")
        self._items: Any = aiter(items) if self._is_async else iter(items)

    async def draw(self, _: Any) -> Any:
        """The next item, or :data:`END`."""
        if self._is_async:
            return await anext(self._items, END)
        return next(self._items, END)

    async def close(self) -> None:
        """Let a generator that was left in the middle clean up."""
        if inspect.isasyncgen(self._items):
            await self._items.aclose()
        elif inspect.isgenerator(self._items):
            self._items.close()


END: Any = object()
"""What a source gives after its last item."""


def check(stages: list[Stage], buffer: int, policy: str) -> None:
    """Raise :class:`accord.errors.UsageError` for what cannot work."""
    if not stages:
        raise UsageError("a pipeline needs at least one stage: pipeline(items, first, second)")
    if buffer < 1:
        raise UsageError(f"a pipeline needs a buffer of at least 1 item, not {buffer}")
    if policy not in ("fail_fast", "isolate"):
        raise UsageError(f"pipeline knows the policies 'fail_fast' and 'isolate', not {policy!r}")
    for before, stage in zip([None, *stages], stages, strict=False):
        if stage.streams and (why := _why_not(before)):
            raise UsageError(
                f"stage {stage.name!r} reads what an agent before it writes, and {why}; "
                "give it the whole text (streams=False)"
            )


def _why_not(before: Stage | None) -> str:
    """Why nothing can be read of a stage that is at work; empty if it can."""
    if before is None:
        return "it is the first"
    unknown = "that is no agent"
    why = unknown if before.streams else getattr(before.function, "not_streamed", unknown)
    return f"before it comes {before.name!r}: {why}" if why else ""
