"""Notes: events without duration, at a place of the flow. Something was written, or looked at.

What is written or seen depends on what others had written by then, and that on timing. So each note
is decided as of a position in the log, and on a replay it is decided again as of the position
where it is recorded: ``decide`` must depend on nothing but its scope and the log before that
position. It is asked exactly once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec.structs import replace

from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.replay import describe_note
from accord.flow.scope import CallScope, Scope, own_scope
from accord.log.events import CallKind, Envelope, Guessed, Looked, MessageTaken, Noted

Decide = Callable[[Scope, int], Noted]


class Condition(Protocol):
    """Something that code may have to wait for."""

    def met(self) -> bool:
        """Whether it holds now."""
        ...

    def changed(self) -> Awaitable[None]:
        """Returns when it may hold; raises if it never will."""
        ...


def note(what: str, decide: Decide, scope: Scope | None = None) -> Envelope:
    """Record what ``decide`` says, or find it recorded at this place.

    ``what`` names the act in errors, and the task that does it first. Raises
    :class:`accord.errors.FlowChangedError` if another act was recorded here.
    """
    scope = scope or own_scope(what, what)
    execution = scope.execution
    log = execution.log
    path = scope.next_path()
    recorded = execution.replay.note_at(path, scope, what)
    if recorded is not None:
        now, before = decide(scope, recorded.seq), recorded.event
        assert isinstance(before, Noted)
        if not _is_same(now, before):
            raise execution.flow_changed(path, describe_note(before), describe_note(now))
        scope.saw_end(recorded.seq)
        return recorded
    noted = decide(scope, len(log.envelopes))
    _check_text(noted)
    if scope.hold is not None and _is_seen(noted):
        if not scope.hold.is_certain:
            raise scope.hold.stop()
        scope.be_seen()
    if handling := scope.handling_now():
        noted = replace(noted, handling=handling)
    seq = log.append(path, scope.take_causes(), noted)
    scope.saw_end(seq)
    return log.envelopes[seq]


async def note_when(
    condition: Condition,
    what: str,
    decide: Decide,
    *,
    kind: CallKind,
    name: str,
    timeout_s: float | None = None,
    scope: Scope | None = None,
) -> Envelope:
    """A note as soon as ``condition`` is met: at once, or in a call that waits for it.

    So waiting can be cancelled, replayed and timed out as any call can, and what need not wait
    costs one event.
    """
    scope = scope or own_scope(what, what)
    await scope.certain()
    replay, log = scope.execution.replay, scope.execution.log
    path = scope.place
    if path in replay.notes or (path not in replay.calls and condition.met()):
        return note(what, decide, scope)

    async def body(inner: CallScope) -> int:
        # A crash may have come between the note and the end of the call.
        while inner.place not in replay.notes and not condition.met():
            await condition.changed()
        return note(what, decide, inner).seq

    noted: int = await call(kind, name, [], body, pure=True, timeout_s=timeout_s)
    return log.envelopes[noted]


def _is_seen(noted: Noted) -> bool:
    """Others can tell that it happened."""
    return bool(noted.took) if isinstance(noted, Looked) else not isinstance(noted, Guessed)


def _check_text(noted: Noted) -> None:
    """Names are not values: what the log cannot hold would be lost with all that follows."""
    try:
        msgspec.json.encode(noted)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{describe_note(noted)!r}: names are text that UTF-8 can hold, without lone surrogates"
        ) from error


def _is_same(now: Noted, before: Noted) -> bool:
    """The same act. What a look showed, or which message was next, may be another by now."""
    if isinstance(now, Looked) and isinstance(before, Looked):
        return now.what == before.what
    if isinstance(now, MessageTaken) and isinstance(before, MessageTaken):
        return now.mailbox == before.mailbox
    if isinstance(now, Guessed) and isinstance(before, Guessed):
        return now.site == before.site
    return now == replace(before, handling=())
