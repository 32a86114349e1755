"""``@step``: a plain function as a recorded call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar, overload

from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.function import RecordedFunction
from accord.flow.scope import CallScope, current_scope
from accord.log.blobs import digest_of

P = ParamSpec("P")
T = TypeVar("T")


class Step(RecordedFunction[P, T]):
    """A function whose calls are recorded. Call it inside a flow and await the result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        """Make the call; a finished one answers from the log."""
        return call(
            "step",
            self.name,
            [*args],
            self.body(args, kwargs),
            named=kwargs,
            pure=self.pure,
            timeout_s=self.timeout_s,
        )


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
        return partial(step, name=name, pure=pure, timeout_s=timeout_s)
    made: Step[..., Any] = Step(function, name=name, pure=pure, timeout_s=timeout_s)
    return made


def idempotency_key() -> str:
    """A key for the running step or tool, the same whenever this call of this run is made again.

    Hand it to services that take one, so that a repeated effect is no second effect.
    """
    scope = current_scope("idempotency_key()")
    if not isinstance(scope, CallScope) or scope.kind not in ("step", "tool"):
        raise UsageError("idempotency_key() belongs inside a step or a tool: it names its call")
    execution = scope.execution
    return digest_of(f"{execution.log.run}\0{execution.began_s!r}\0{scope.path}".encode())
