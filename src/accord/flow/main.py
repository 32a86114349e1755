"""The root of a run: the flow itself, and how its end is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from accord.errors import UsageError
from accord.flow.execution import Execution
from accord.flow.failure import ends_in, record_error
from accord.flow.load import Flow
from accord.flow.scope import Scope, enter, leave
from accord.flow.suspend import Suspended, questions_of, suspended_error, suspension_in
from accord.log.events import RunFailed, RunFinished, RunInterrupted
from accord.log.fold import index_calls


async def run_flow(flow: Flow, inputs: Sequence[Any], execution: Execution, first: int) -> Any:
    """Run ``flow(*inputs)`` after event ``first``, and record how it ended."""
    log = execution.log
    scope = Scope("", (first,), execution, asyncio.current_task())
    token = enter(scope)
    try:
        output = await flow(*inputs)
        execution.replay.check_complete(scope)
        finished = RunFinished(output=log.values.encode(output, "the output of the flow"))
        _raise_fatal(execution)
        log.append("", scope.take_causes(), finished)
        await log.barrier(alone=True)
    except Exception as error:
        _raise_fatal(execution)
        if not log.failed:  # else nothing more can be written: the run stays as it was
            failed = RunFailed(error=record_error(error, log.values), because=ends_in(error, log))
            log.append("", scope.take_causes(), failed)
        raise
    except BaseException as raised:
        error = suspension_in(raised)
        waits_for = error.ids if isinstance(error, Suspended) else ()
        if not log.failed:
            ended = RunInterrupted(because=ends_in(raised, log), waits_for=waits_for)
            log.append("", scope.take_causes(), ended)
        if isinstance(error, Suspended):
            calls = index_calls(log.envelopes)
            questions = questions_of(log.envelopes, calls, log.values)
            raise suspended_error(log.run, questions) from None
        raise
    else:
        return output
    finally:
        leave(token)
        execution.fatal = execution.fatal or UsageError(
            f"run {log.run} has ended, and a task that its flow left behind goes on making calls; "
            "await every task that a flow starts"
        )


def _raise_fatal(execution: Execution) -> None:
    """A changed flow must not write its end over what was recorded."""
    if execution.fatal is not None:
        raise execution.fatal
