"""Writing where others read: each write is decided in one moment.

It is accepted, or an echo (it would change nothing, so nothing is written), or a conflict. Which
of them depends only on the log before it, so a replay comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accord.comm.space import MISSING, Spaces, SpaceState, Write, put_on
from accord.errors import ConflictError
from accord.flow.note import note
from accord.flow.scope import Scope, own_scope
from accord.log.codec import printable
from accord.log.events import NOTHING, Looked, Note, Reducer, Space, Written
from accord.log.log import Log

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Put:
    """What is to be written. ``make`` gives it, from what the key holds (or MISSING).

    ``knowing`` says that it is made from what the key holds: nothing can be overlooked.
    """

    key: str
    make: Callable[[Any], Any]
    how: Reducer = "replace"
    space: Space = "board"
    if_version: int | None = None
    knowing: bool = False
    by: str | None = None
    """Who writes, if it is not the agent at work."""

    @property
    def what(self) -> str:
        return f"{self.space} {self.how} {self.key}"


def put(wanted: Put, scope: Scope | None = None) -> int:
    """Write, and return the key's version.

    Raises :class:`accord.errors.ConflictError`; see :class:`accord.comm.blackboard.Blackboard`.
    """
    scope = scope or own_scope(wanted.what, wanted.what)
    log = scope.execution.log

    def decide(scope: Scope, position: int) -> Note:
        decided = _decide(wanted, scope, position)
        return decided if isinstance(decided, Written) else Looked(what=wanted.what, by=scope.agent)

    envelope = note(wanted.what, decide, scope)
    state = space_of(log, wanted.space)  # whoever waits for the key wakes
    if isinstance(envelope.event, Written):
        return envelope.seq
    decided = _decide(wanted, scope, envelope.seq)
    if isinstance(decided, ConflictError):
        raise decided
    return state.version(wanted.key, envelope.seq)


def space_of(log: Log, space: Space) -> SpaceState:
    """A space of the run that ``log`` is of, after all events so far."""
    return log.fold(Spaces).of(space)


def _decide(wanted: Put, scope: Scope, position: int) -> Written | ConflictError | None:
    """What to record, or why not; None for an echo."""
    values = scope.execution.log.values
    state = space_of(scope.execution.log, wanted.space)
    version = state.version(wanted.key, position)
    if wanted.if_version not in (None, version):
        return _conflict(wanted, scope, position, f"version {wanted.if_version} was expected")
    last = state.last(wanted.key, position)
    if wanted.how == "append" and last is not None and last.written.how == "append":
        made = wanted.make(MISSING)
    else:
        before = state.value(wanted.key, position, values.decode)
        held = b"" if before is MISSING else values.digest(before)
        made = wanted.make(before)
        try:
            after = put_on(before, wanted.how, made)
        except TypeError as error:
            return _conflict(wanted, scope, position, str(error))
        if (b"" if after is MISSING else values.digest(after, wanted.what)) == held:
            return None
        if last is not None and _overlooks(wanted, scope, last):
            return _conflict(wanted, scope, position, "that came beside this code, not before it")
    return Written(
        key=wanted.key,
        value=NOTHING if wanted.how == "remove" else values.encode(made, wanted.what),
        space=wanted.space,
        how=wanted.how,
        by=scope.agent if wanted.by is None else wanted.by,
    )


def _overlooks(wanted: Put, scope: Scope, last: Write) -> bool:
    """It would replace what the writer cannot know of."""
    if wanted.how not in ("replace", "remove") or wanted.knowing or wanted.if_version is not None:
        return False
    return not scope.knows(last.path, last.seq)


def _conflict(wanted: Put, scope: Scope, position: int, why: str) -> ConflictError:
    log = scope.execution.log
    state = space_of(log, wanted.space)
    last = state.last(wanted.key, position)
    value = state.value(wanted.key, position, log.values.decode)
    version = state.version(wanted.key, position)
    writer = "" if last is None else last.written.by
    holds = "nothing" if value is MISSING else f"{_short(value)}, by {writer or 'the flow'}"
    return ConflictError(
        f"run {log.run}: {scope.agent or 'the flow'} (at {scope.path or 'its top'}) would "
        f"{wanted.how} {wanted.key!r} with {_short(wanted.make(value))}, but it holds {holds} "
        f"(version {version}): {why}. Use update(), a reducer (append, merge, ...), or read it "
        "and pass if_version",
        key=wanted.key,
        version=version,
        writer=writer,
    )


def _short(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
