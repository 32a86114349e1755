"""Several attempts within one call, each of which makes its calls at places of its own.

So a replay finds them, and a call that was cut off goes on with the attempt that it had come to. A
further attempt is no way around what is to be told: a mistake of the flow's, a failure of the log,
or an effect that may have happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from accord.errors import (
    AccordError,
    CallError,
    CommunicationError,
    EngineError,
    UnknownOutcomeError,
)
from accord.flow.failure import record_error
from accord.flow.scope import CallScope, Scope, enter, leave
from accord.log.events import AttemptFailed

T = TypeVar("T")


async def with_attempts(
    scope: CallScope,
    work: Callable[[Scope], Awaitable[T]],
    pause_s: Callable[[int], float | None],
) -> T:
    """What ``work`` returns at the first attempt that does not fail, else its last failure.

    ``pause_s`` says how long to wait after so many attempts; None for no further one.
    """
    attempt = scope.attempts
    while True:
        attempt += 1
        scope.children = attempt
        path = f"{scope.path}/{attempt - 1}"
        inner = Scope(path, scope.frontier, scope.execution, scope.task, scope)
        token = enter(inner)
        try:
            result = await work(inner)
            scope.execution.replay.check_complete(inner)
            return result
        except Exception as error:  # noqa: BLE001  # raised again, if it is the last one
            failure = error
        finally:
            leave(token)
            scope.frontier = inner.take_causes()
        wait_s = None if is_final(failure) else pause_s(attempt)
        if wait_s is None:
            raise failure
        _failed(scope, attempt, failure, wait_s)
        await asyncio.sleep(wait_s)


def is_final(error: Exception) -> bool:
    """Trying again would hide what somebody has to know of."""
    if isinstance(error, ExceptionGroup):
        return any(map(is_final, cast("ExceptionGroup[Exception]", error).exceptions))
    if isinstance(error, UnknownOutcomeError):
        return True
    mendable = CallError | EngineError | CommunicationError
    return isinstance(error, AccordError) and not isinstance(error, mendable)


def _failed(scope: CallScope, attempt: int, error: Exception, wait_s: float) -> None:
    log = scope.execution.log
    record = record_error(error, log.values)
    failed = AttemptFailed(call=scope.start, attempt=attempt, error=record, retry_in_s=wait_s)
    scope.saw_end(log.append(scope.path, scope.take_causes(), failed))
