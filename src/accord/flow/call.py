"""The one door out.

Whatever takes time, costs money or has an effect goes through :func:`call`: it is recorded as
started and as ended, keyed by its place in the flow and by its content, and on a resume a
call that ended answers from the log.

What a recorded call answers:

==========================  ===================================================================
finished                    its output
failed, the flow went on    the same failure again
failed, the run failed      nothing: it is made again, which is why one resumes
suspended by a question     nothing: it is made again, once all that it asked is answered
cancelled, the flow went on nothing, for as long as it had taken; then as if started only
started only, or cut off    made again; but a step or tool with effects raises
                            ``UnknownOutcomeError``, for the effect may have happened
==========================  ===================================================================

Cut off is what was cancelled, took longer than its ``timeout_s``, lost its tool's server, or whose
outcome the log could not hold.

Before a call does anything that can be seen outside, all that it depends on is safe in the log;
with durability ``sync``, before any call begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from accord.clock import NANOSECONDS
from accord.engine.base import Timings, Usage
from accord.errors import (
    BudgetExceededError,
    CallTimeoutError,
    DeadlinePassedError,
    ToolLostError,
    UnknownOutcomeError,
    UsageError,
)
from accord.flow.failure import ends_in, mark, rebuild_error, record_error
from accord.flow.hold import OUTWARD
from accord.flow.replay import describe
from accord.flow.scope import CallScope, Scope, current_scope, enter, leave, own_scope
from accord.flow.suspend import Suspended, suspension_in
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
    Rung,
    Saved,
    Spent,
    Value,
)
from accord.log.fold import Call

PREVIEW_CHARACTERS = 48
KEY_CHARACTERS = 16
HURRIED = (CallTimeoutError, DeadlinePassedError, BudgetExceededError)
"""Failures that code may not come to where it need not go after all others."""
PATIENCE_S = 1.0
"""How much later than the first time a recorded cancellation may come again."""

Body = Callable[[CallScope], Awaitable[Any]]


class Measured(NamedTuple):
    """What the body of a call may return: the value, and what it cost, or did not."""

    value: Any
    usage: Usage | None = None
    timings: Timings | None = None
    spent: Spent | None = None
    cost: float | None = None
    rung: Rung = ""
    saved: Saved | None = None


class _Answer(NamedTuple):
    value: Any


async def call(
    kind: CallKind,
    name: str,
    inputs: Sequence[Any] | bytes,
    body: Body,
    *,
    named: Mapping[str, Any] | None = None,
    version: str = "",
    pure: bool = False,
    keep_input: bool = False,
    coordination: bool = False,
    timeout_s: float | None = None,
    preview: str | None = None,
    accept: Callable[[Any], Any] | None = None,
) -> Any:
    """Make a call: run ``body``, or answer from the log.

    ``inputs`` (or bytes that stand for them), those that are ``named``, and ``version`` (of what is
    called) are hashed into the call's key; the inputs are recorded if ``keep_input``, and their
    beginning as a ``preview`` unless one is given. ``body`` may return :class:`Measured`.
    ``pure`` says that making the call twice does no harm. ``accept`` makes what is recorded of what
    ``body`` gave, or raises.
    """
    scope = current_scope(name)
    execution = scope.execution
    log = execution.log
    if isinstance(inputs, bytes):
        packed = inputs
    else:
        what, values = f"the input of {kind} {name}", log.values
        given = [*inputs, named] if named else inputs
        packed = bytes(values.encode(given, what)) if keep_input else values.digest(given, what)
    plain = b"%b\0%b\0%b\0%b" % (kind.encode(), _encoded(name), version.encode(), packed)
    key = digest_of(plain)[:KEY_CHARACTERS]
    if asyncio.current_task() is not scope.task or execution.fatal is not None:
        scope = own_scope(name, f"{name}.{key[:6]}")
    if scope.hold is not None:
        scope.hold.check()
        if kind in OUTWARD or (kind in ("step", "tool") and not pure):
            await scope.certain()
    path = scope.next_path()
    if preview is None:
        shown = kind != "request" and not isinstance(inputs, bytes)
        preview = preview_of(inputs, named or {}, packed) if shown else ""
    started = CallStarted(
        name=name,
        key=key,
        kind=kind,
        preview=preview,
        input=Value(packed) if keep_input else NOTHING,
        pure=pure,
        coordination=coordination,
        handling=scope.handling_now(),
    )
    recorded = execution.replay.call_at(path, scope, started)
    attempts = 0
    if recorded is None:
        start = log.append(path, scope.take_causes(), started)
        if (spare := execution.replay.spare_at(path, started)) is not None:
            return _answer_again(scope, path, start, spare)
    else:
        answer = await _answer(scope, recorded)
        if answer is not None:
            return answer.value
        start = recorded.start.seq
        attempts = len(recorded.attempts) if recorded.ended is None else 0
    inner = CallScope(path, start, scope, kind=kind, attempts=attempts)
    if kind == "agent":
        inner.agent = name
    inner.handling = started.handling
    return await _perform(scope, inner, started, body, accept=accept, timeout_s=timeout_s)


async def _perform(
    scope: Scope,
    inner: CallScope,
    started: CallStarted,
    body: Body,
    *,
    accept: Callable[[Any], Any] | None,
    timeout_s: float | None,
) -> Any:
    execution = inner.execution
    log = execution.log
    token = enter(inner)
    done = False
    try:
        if log.durability != "exit" and (
            started.kind == "request" or started.has_effects or log.durability == "sync"
        ):
            await execution.barrier()
        if timeout_s is None:
            result = await body(inner)
        else:
            result = await _within(timeout_s, body(inner), inner, started)
        if accept is not None:
            result = accept(result)
        done = True
        execution.replay.check_complete(inner)
        end: CallEnded = _finished(inner, result, started)
    except BaseException as raised:
        error = suspension_in(raised)
        if inner.hold is not None and isinstance(error, HURRIED):
            inner.hold.hurried()
        if not log.failed:
            cut_off = done or isinstance(error, CallTimeoutError | ToolLostError)
            unknown = started.has_effects and cut_off
            unfinished = _unfinished(inner, error, unknown=unknown)
            end_seq = log.append(inner.path, inner.take_causes(), unfinished)
            scope.saw_end(end_seq)
            mark(error, log, end_seq)
        if error is not raised:
            raise error from None
        raise
    finally:
        leave(token)
    scope.saw_end(log.append(inner.path, inner.take_causes(), end))
    return result.value if isinstance(result, Measured) else result


def _answer_again(scope: Scope, path: str, start: int, spare: Call) -> Any:
    """What the call gave in the run forked from. It was paid for there."""
    execution = scope.execution
    assert isinstance(spare.ended, CallFinished)
    assert execution.spare_values is not None
    value = execution.spare_values.decode(spare.ended.output)
    output = execution.log.values.encode(value, f"the output of {spare.started.name}")
    scope.saw_end(execution.log.append(path, (start,), CallFinished(call=start, output=output)))
    return value


async def _answer(scope: Scope, recorded: Call) -> _Answer | None:
    """What a recorded call answers, or None if it is to be made."""
    execution = scope.execution
    values = execution.log.values
    match recorded.ended:
        case CallFinished(output=output):
            scope.saw_end(recorded.last)
            return _Answer(values.decode(output))
        case CallFailed(error=failure, unknown=unknown):
            if execution.replay.went_on_past(recorded):
                scope.saw_end(recorded.last)
                error = rebuild_error(failure, values)
                mark(error, execution.log, recorded.last)
                raise error
            if not unknown:
                execution.replay.make_again(recorded)
                return None
        case CallCancelled(suspended=True):
            _check_answered(scope, recorded)
            execution.replay.make_again(recorded)
            return None
        case CallCancelled() if execution.replay.went_on_past(recorded):
            # The flow went on without it, so whoever cancelled it then should do so again, in
            # about the time that it took then. If not, there is no reason to hold it back.
            waited_s = (recorded.duration_ns or 0) / NANOSECONDS
            try:
                await asyncio.sleep(waited_s + PATIENCE_S)
            except asyncio.CancelledError as error:
                scope.saw_end(recorded.last)
                mark(error, execution.log, recorded.last)
                raise
        case _:
            pass
    execution.replay.make_again(recorded)
    if recorded.started.has_effects and not execution.repeat_unknown:
        raise _unknown(scope, recorded)
    return None


def _check_answered(scope: Scope, recorded: Call) -> None:
    """What was suspended is not begun again before all that it asked has been answered."""
    if recorded.started.kind in ("node", "handle", "step", "tool"):
        missing = scope.execution.replay.unanswered_below(recorded.scope)
        if missing:
            scope.saw_end(recorded.last)
            suspended = Suspended(missing)
            mark(suspended, scope.execution.log, recorded.last)
            raise suspended


def _unknown(scope: Scope, recorded: Call) -> UnknownOutcomeError:
    """Record that the outcome is unknown, and say so."""
    log = scope.execution.log
    error = UnknownOutcomeError(
        f"{describe(recorded.started)} of run {log.run} had begun when the run stopped, and its "
        "outcome was not recorded: it may have happened. Check, then "
        f"`accord resume {log.run} --repeat-unknown` makes it again; "
        "mark it pure=True if repeating it does no harm"
    )
    record = record_error(error, log.values)
    failed = CallFailed(call=recorded.start.seq, error=record, unknown=True)
    scope.saw_end(log.append(recorded.scope, (recorded.start.seq,), failed))
    return error


def _finished(inner: CallScope, result: Any, started: CallStarted) -> CallFinished:
    values = inner.execution.log.values
    what = f"the output of {started.kind} {started.name}"
    if not isinstance(result, Measured):
        return CallFinished(call=inner.start, output=values.encode(result, what))
    return CallFinished(
        call=inner.start,
        output=values.encode(result.value, what),
        usage=result.usage,
        timings=result.timings,
        spent=result.spent,
        cost=result.cost,
        rung=result.rung,
        saved=result.saved,
    )


def _unfinished(
    inner: CallScope, error: BaseException, *, unknown: bool
) -> CallFailed | CallCancelled:
    execution = inner.execution
    leaked = inner.thread_running
    execution.leaked_threads += leaked
    if isinstance(error, Exception):
        record = record_error(error, execution.log.values)
        return CallFailed(
            call=inner.start,
            error=record,
            because=ends_in(error, execution.log),
            unknown=unknown,
            thread_left_running=leaked,
        )
    usage, cost, rung = inner.partial() if inner.partial is not None else (None, None, "")
    return CallCancelled(
        call=inner.start,
        because=ends_in(error, execution.log),
        usage=usage,
        cost=cost,
        rung=rung,
        thread_left_running=leaked,
        suspended=isinstance(error, Suspended),
    )


async def _within(
    timeout_s: float, work: Awaitable[Any], inner: CallScope, started: CallStarted
) -> Any:
    limit = inner.limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise CallTimeoutError(
            f"{started.kind} {started.name} took longer than its timeout_s of {timeout_s:g}; "
            "raise it, or make the call smaller"
        ) from error


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"a name is text that UTF-8 can hold, not {name!r}") from error


def preview_of(inputs: Sequence[Any], named: Mapping[str, Any], packed: bytes) -> str:
    """The beginning of the input, for people: texts as they stand, the rest as it was packed."""
    if not any(isinstance(value, str) for value in (*inputs, *named.values())):
        return packed[1 : PREVIEW_CHARACTERS + 1].decode(errors="ignore").removesuffix("]")
    parts = [*map(_kind, inputs), *(f"{name}={_kind(value)}" for name, value in named.items())]
    return printable(", ".join(parts)[:PREVIEW_CHARACTERS])


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return value[:PREVIEW_CHARACTERS]
    return str(value) if value is None or isinstance(value, int | float) else type(value).__name__
