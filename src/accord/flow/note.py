"""Facts that take no time, at a place of the flow: something was written, or looked at.

What is written or seen depends on what others had written by then, and that on timing. So each
such moment has a place and an event of its own, and on a replay it is decided again as of that
event: the same log before it gives the same outcome, whatever has been written since.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from accord.flow.failure import failures_in_flight
from accord.flow.replay import describe_note
from accord.flow.scope import Scope, own_scope
from accord.log.events import Envelope, Looked, Note


def note(what: str, decide: Callable[[Scope, int], Note], scope: Scope | None = None) -> Envelope:
    """Record what ``decide`` says, or find it recorded at this place.

    ``decide`` gets the scope and the position in the log as of which to decide. ``what`` names the
    act in errors. Raises :class:`accord.errors.FlowChangedError` if another was recorded here.
    """
    scope = scope or own_scope(what, what)
    execution = scope.execution
    log = execution.log
    path = scope.next_path()
    recorded = execution.replay.note_at(path, scope, what)
    if recorded is not None:
        now = decide(scope, recorded.seq)
        before = recorded.event
        assert isinstance(before, Note)
        if not _is_same(now, before):
            raise execution.flow_changed(path, describe_note(before), describe_note(now))
        scope.saw_end(recorded.seq)
        return recorded
    noted = decide(scope, len(log.envelopes))
    handling = failures_in_flight(log) or scope.handling
    if handling:
        noted = replace(noted, handling=handling)
    seq = log.append(path, scope.take_causes(), noted)
    scope.saw_end(seq)
    return log.envelopes[seq]


def _is_same(now: Note, before: Note) -> bool:
    """The same act. Of a look, what it was at: how an agent was shown it may have changed since."""
    if isinstance(now, Looked) and isinstance(before, Looked):
        return now.what == before.what
    return now == replace(before, handling=())
