"""A plain function whose calls are recorded: what ``@step`` and ``@tool`` make."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

from accord.errors import UsageError
from accord.flow.scope import CallScope
from accord.flow.thread import in_thread

P = ParamSpec("P")
T = TypeVar("T")


class RecordedFunction(Generic[P, T]):
    """``function`` under a name. Async runs on the loop, sync in a thread of its own."""

    def __init__(
        self, function: Callable[P, Any], *, name: str, pure: bool, timeout_s: float | None
    ) -> None:
        if not callable(function):
            raise UsageError(f"@step and @tool go on a function, not on {function!r}")
        if timeout_s is not None and not timeout_s > 0:
            raise UsageError(f"timeout_s is a time above 0 or None, not {timeout_s!r}")
        update_wrapper(cast("Any", self), function)
        self.name: str = name or getattr(function, "__name__", type(function).__name__)
        if not self.name.isprintable():
            raise UsageError(f"a name is printable text, not {self.name!r}")
        self.pure = pure
        self.timeout_s = timeout_s
        self.function = function
        self._is_async = is_async(function)

    @property
    def has_effects(self) -> bool:
        """Making a call of it twice may do harm."""
        return not self.pure

    def body(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[CallScope], Awaitable[T]]:
        """The body of a call with these arguments."""
        work: Callable[[], Any] = partial(self.function, *args, **kwargs)
        if self._is_async:
            return lambda _scope: work()
        return lambda scope: in_thread(scope, work)


def is_async(function: object) -> bool:
    """Whether calling it gives something to await: an async function, or an object with one."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    call = getattr(function, "__call__", None)  # noqa: B004  # of an object, it may be async
    return any(map(inspect.iscoroutinefunction, (function, call)))
