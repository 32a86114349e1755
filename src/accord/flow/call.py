"""The one door out.

Whatever takes time, costs money or has an effect goes through :func:`call`: it is recorded as
started and as ended, keyed by its place in the flow and by its content, and on a resume a
call that ended answers from the log.

What a recorded call answers:

==========================  ===================================================================
finished                    its output
failed, the flow went on    the same failure again
failed, the run failed      nothing: it is made again, which is why one resumes
cancelled, the flow went on nothing until it is cancelled again
started only                made again; but a step or tool with effects raises
                            ``UnknownOutcomeError``, for the effect may have happened
==========================  ===================================================================

Before a call does anything that can be seen outside, all that it depends on is safe in the log;
with durability ``sync``, before any call begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from accord.engine.base import Timings, Usage
from accord.errors import CallTimeoutError, FlowChangedError, UnknownOutcomeError
from accord.flow.execution import Execution
from accord.flow.failure import rebuild_error, record_error
from accord.flow.scope import Scope, current_scope, enter, leave
from accord.log.blobs import digest_of
from accord.log.codec import printable
from accord.log.events import (
    NOTHING,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallKind,
    CallStarted,
    Spent,
)
from accord.log.fold import Call

PREVIEW_CHARACTERS = 48
KEY_CHARACTERS = 16
_EFFECTS = frozenset(("step", "tool"))


class Measured(NamedTuple):
    """What the body of a request returns: the value, and what it cost."""

    value: Any
    usage: Usage
    timings: Timings | None
    spent: Spent
    cost: float | None


async def call(
    kind: CallKind,
    name: str,
    inputs: Sequence[Any],
    body: Callable[[Scope], Awaitable[Any]],
    *,
    pure: bool = False,
    keep_input: bool = False,
    coordination: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Make a call: run ``body``, or answer from the log.

    ``inputs`` are hashed into the call's key, and recorded if ``keep_input``. A ``request``'s
    body returns :class:`Measured`. ``pure`` says that making it twice does no harm.
    """
    scope = current_scope(name)
    execution = scope.execution
    log = execution.log
    plain = log.values.digest(inputs, f"the input of {kind} {name}")
    key = digest_of(b"%b\0%b\0%b" % (kind.encode(), name.encode(), plain))[:KEY_CHARACTERS]
    task = asyncio.current_task()
    if task is not scope.task:
        scope = scope.adopt(task, name, key)
        enter(scope)
    path = scope.next_path()
    recorded = execution.recorded.by_scope.get(path)
    if recorded is None:
        started = CallStarted(
            kind=kind,
            name=name,
            key=key,
            preview="" if kind == "request" else _preview(inputs, plain),
            input=log.values.encode(inputs) if keep_input else NOTHING,
            pure=pure,
            coordination=coordination,
        )
        seq = log.append(path, scope.causes(), started)
    else:
        if recorded.started.key != key:
            raise _flow_changed(execution, recorded, f"{kind} {name}({_preview(inputs, plain)})")
        answer = await _answer(scope, recorded)
        if answer is not None:
            return answer.value
        seq = recorded.start.seq
    inner = Scope(path, (seq,), execution, task)
    token = enter(inner)
    try:
        if log.durability == "sync" or kind == "request" or (kind in _EFFECTS and not pure):
            await log.barrier()
        if timeout_s is None:
            result = await body(inner)
        else:
            result = await _within(timeout_s, body(inner), f"{kind} {name}")
        check_all_made(inner)
        end: CallEnded = _finished(execution, seq, result, f"the output of {kind} {name}")
    except BaseException as error:
        scope.saw_end(log.append(path, inner.causes(), _unfinished(inner, seq, error)))
        raise
    finally:
        leave(token)
    scope.saw_end(log.append(path, inner.causes(), end))
    return result.value if kind == "request" else result


class _Answer(NamedTuple):
    value: Any


async def _answer(scope: Scope, recorded: Call) -> _Answer | None:
    """What a recorded call answers, or None if it is to be made."""
    execution = scope.execution
    values = execution.log.values
    ended, end = recorded.ended, recorded.end
    if isinstance(ended, CallFinished) and end is not None:
        scope.saw_end(end.seq)
        return _Answer(values.decode(ended.output))
    if isinstance(ended, CallFailed) and end is not None:
        error = rebuild_error(ended.error, values)
        if recorded.led_on or _stays_unknown(execution, error):
            scope.saw_end(end.seq)
            raise error
        return None
    if isinstance(ended, CallCancelled) and recorded.led_on:
        # The flow went on without it, so whoever cancelled it then will do so again.
        await asyncio.get_running_loop().create_future()
    if _may_have_happened(execution, recorded):
        raise _unknown(scope, recorded)
    return None


def _may_have_happened(execution: Execution, recorded: Call) -> bool:
    started = recorded.started
    return started.kind in _EFFECTS and not started.pure and not execution.repeat_unknown


def _stays_unknown(execution: Execution, error: Exception) -> bool:
    return isinstance(error, UnknownOutcomeError) and not execution.repeat_unknown


def _unknown(scope: Scope, recorded: Call) -> UnknownOutcomeError:
    """Record that the outcome is unknown, and say so."""
    log = scope.execution.log
    started = recorded.started
    error = UnknownOutcomeError(
        f"{started.kind} {started.name}({started.preview}) of run {log.run} had begun when the "
        "run stopped, and its outcome was not recorded: it may have happened. Check, then "
        f"`accord resume {log.run} --repeat-unknown` makes it again; "
        "mark it pure=True if repeating it does no harm"
    )
    failed = CallFailed(call=recorded.start.seq, error=record_error(error, log.values))
    scope.saw_end(log.append(recorded.scope, (recorded.start.seq,), failed))
    return error


def _finished(execution: Execution, seq: int, result: Any, what: str) -> CallFinished:
    if not isinstance(result, Measured):
        return CallFinished(call=seq, output=execution.log.values.encode(result, what))
    return CallFinished(
        call=seq,
        output=execution.log.values.encode(result.value, what),
        usage=result.usage,
        timings=result.timings,
        spent=result.spent,
        cost=result.cost,
    )


def _unfinished(inner: Scope, seq: int, error: BaseException) -> CallFailed | CallCancelled:
    execution = inner.execution
    leaked = inner.thread_running
    execution.leaked_threads += leaked
    if isinstance(error, Exception):
        record = record_error(error, execution.log.values)
        return CallFailed(call=seq, error=record, thread_left_running=leaked)
    usage, cost = inner.partial() if inner.partial is not None else (None, None)
    return CallCancelled(call=seq, usage=usage, cost=cost, thread_left_running=leaked)


async def _within(timeout_s: float, work: Awaitable[Any], what: str) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        msg = f"{what} took longer than its timeout of {timeout_s:g} s"
        raise CallTimeoutError(msg) from error


def _flow_changed(execution: Execution, recorded: Call, now: str) -> FlowChangedError:
    then = f"{recorded.started.kind} {recorded.started.name}({recorded.started.preview})"
    error = FlowChangedError(
        f"the flow has changed since run {execution.log.run} was recorded; at {recorded.scope}\n"
        f"  recorded: {then}\n"
        f"  now:      {now}\n"
        "Restore the flow (its code, its agents, its input), or start a new run",
        recorded=then,
        now=now,
    )
    execution.fatal = execution.fatal or error
    return error


def check_all_made(scope: Scope) -> None:
    """Raise ``FlowChangedError`` if the log has one more finished call here than was made."""
    recorded = scope.execution.recorded.by_scope
    if not recorded:
        return
    index = scope.children
    more = recorded.get(f"{scope.path}/{index}" if scope.path else str(index))
    if more is not None and isinstance(more.ended, CallFinished):
        raise _flow_changed(scope.execution, more, "no call: the code ended here")


def _preview(inputs: Sequence[Any], plain: bytes) -> str:
    """The first characters of the input, for people."""
    if inputs and isinstance(inputs[0], str):
        return printable(inputs[0][:PREVIEW_CHARACTERS])
    return plain[1 : PREVIEW_CHARACTERS + 1].decode(errors="ignore").removesuffix("]")
