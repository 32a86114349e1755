"""``@step``: a plain function as a recorded call.

An async function runs on the loop, a sync one in a thread of its own, with the caller's
context. A thread cannot be stopped from outside: one that outlives its call's timeout or
cancellation is left behind as a daemon, counted, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from accord.clock import VirtualLoop, in_daemon_thread
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.scope import Scope, current_scope

P = ParamSpec("P")
T = TypeVar("T")


class Step(Generic[P, T]):
    """A function whose calls are recorded. Call it inside a flow and await the result."""

    def __init__(
        self, function: Callable[P, Any], *, name: str, pure: bool, timeout_s: float | None
    ) -> None:
        update_wrapper(self, function)
        self.name = name
        self.pure = pure
        self.timeout_s = timeout_s
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Make the call; a finished one answers from the log."""
        work = self._on_loop if self._is_async else self._in_thread
        return call(
            "step",
            self.name,
            [*args, kwargs] if kwargs else args,
            partial(work, args, kwargs),
            pure=self.pure,
            timeout_s=self.timeout_s,
        )

    def _on_loop(self, args: Any, kwargs: Any, _scope: Scope) -> Awaitable[T]:
        function: Callable[..., Any] = self._function
        return function(*args, **kwargs)

    def _in_thread(self, args: Any, kwargs: Any, scope: Scope) -> Awaitable[T]:
        return in_thread(scope, partial(self._function, *args, **kwargs))


@overload
def step(function: Callable[P, Awaitable[T]], /) -> Step[P, T]: ...
@overload
def step(function: Callable[P, T], /) -> Step[P, T]: ...
@overload
def step(
    *, name: str = "", pure: bool = False, timeout_s: float | None = None
) -> Callable[[Callable[P, Any]], Step[P, Any]]: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    pure: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Make a function a recorded call, as ``@step`` or ``@step(pure=True, ...)``.

    ``pure`` says that making the call twice does no harm; without it, a call whose outcome a
    crash left unrecorded is reported as unknown on resume, and not repeated. ``timeout_s``
    bounds each call, in seconds. Arguments and result must be values that the log can hold.
    """
    if function is None:
        return partial(_wrap, name=name, pure=pure, timeout_s=timeout_s)
    return _wrap(function, name=name, pure=pure, timeout_s=timeout_s)


def _wrap(
    function: Callable[..., Any], *, name: str, pure: bool, timeout_s: float | None
) -> Step[..., Any]:
    if not callable(function):
        msg = f"@step needs a function, not {function!r}"
        raise UsageError(msg)
    title = name or getattr(function, "__name__", type(function).__name__)
    return Step(function, name=title, pure=pure, timeout_s=timeout_s)


def idempotency_key() -> str:
    """A key for the running call, the same whenever this call of this run is made again.

    Hand it to services that take one, so that a repeated effect is no second effect.
    """
    scope = current_scope("idempotency_key()")
    return f"{scope.execution.log.run}/{scope.path}"


async def in_thread(scope: Scope, work: Callable[[], T]) -> T:
    """Run ``work`` in a daemon thread with this task's context."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def arrived(done: Future[T]) -> None:
        if isinstance(loop, VirtualLoop):
            loop.thread_finished()
        scope.thread_running = False
        if outcome.cancelled():
            return
        if (error := done.exception()) is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())

    def wake(done: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(arrived, done)
        except RuntimeError:
            """The loop has closed: the run ended without this thread."""

    if isinstance(loop, VirtualLoop):
        loop.thread_started()
    scope.thread_running = True
    context = copy_context()
    in_daemon_thread(cast("Callable[[], T]", partial(context.run, work)), wake)
    return await outcome
