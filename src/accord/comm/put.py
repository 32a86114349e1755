"""Writing where others read: each write is decided in one moment.

It is accepted, or an echo (it would change nothing, so nothing is written), or refused. Which of
them depends only on the log before it, so a replay comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from accord.comm.space import MISSING, Spaces, SpaceState, Write, put_on
from accord.errors import AccordError, ConflictError, UsageError
from accord.flow.note import note
from accord.flow.scope import Scope, own_scope
from accord.log.blobs import digest_of
from accord.log.codec import printable
from accord.log.events import NOTHING, Looked, Noted, Reducer, Space, Written
from accord.log.log import Log

SHOWN_CHARACTERS = 60
LABEL_CHARACTERS = 6


@dataclass(frozen=True, kw_only=True)
class Put:
    """What is to be written.

    ``value`` is what is added. ``function`` makes it from what the key holds (or MISSING) instead:
    then nothing can be overlooked.
    """

    key: str
    value: Any = None
    function: Callable[[Any], Any] | None = None
    how: Reducer = "replace"
    space: Space = "board"
    if_version: int | None = None

    @property
    def what(self) -> str:
        return f"{self.space} {self.how} {self.key}"


def put(wanted: Put, scope: Scope | None = None) -> int:
    """Write, and return the key's version.

    Raises :class:`accord.errors.ConflictError`; see :class:`accord.comm.blackboard.Blackboard`.
    """
    scope = scope or writing_scope(wanted.what, wanted.value)
    log = scope.execution.log
    refusals: list[AccordError] = []

    def decide(scope: Scope, position: int) -> Noted:
        decided = _decide(wanted, scope, position)
        if isinstance(decided, Written):
            return decided
        if decided is not None:
            refusals.append(decided)
        return Looked(what=wanted.what, by=scope.agent)

    envelope = note(wanted.what, decide, scope)
    state = space_of(log, wanted.space)  # whoever waits for the key wakes
    for refusal in refusals:
        raise refusal
    return state.version(wanted.key, envelope.seq + 1)


def writing_scope(what: str, value: Any) -> Scope:
    """The scope of the running task. One that the flow started goes by what it writes first."""

    def label(scope: Scope) -> str:
        digest = digest_of(scope.execution.log.values.digest(value, what))
        return f"{what}.{digest[:LABEL_CHARACTERS]}"

    return own_scope(what, label)


def space_of(log: Log, space: Space) -> SpaceState:
    """A space of the run that ``log`` is of, after all events so far."""
    return log.fold(Spaces).of(space)


def _decide(wanted: Put, scope: Scope, position: int) -> Written | AccordError | None:
    """What to record, or why not; None for an echo."""
    values = scope.execution.log.values
    state = space_of(scope.execution.log, wanted.space)
    version = state.version(wanted.key, position)
    if wanted.if_version not in (None, version):
        return _conflict(wanted, scope, position, f"version {wanted.if_version} was expected")
    last = state.last(wanted.key, position)
    added = wanted.value
    if wanted.how != "append" or last is None or last.written.how != "append":
        reduces = wanted.how in ("merge", "union", "maximum")
        fold = state.held if reduces else state.value
        held = fold(wanted.key, position, values.decode)
        before = b"" if held is MISSING else values.digest(held)
        kind = type(held).__name__
        if wanted.function is not None:
            added = wanted.function(held)
        if reduces:
            values.digest(added, wanted.what)  # what the log cannot hold is said, not copied
        try:
            # What is held on to must not change with what the writer goes on with.
            after = put_on(held, wanted.how, deepcopy(added) if reduces else added)
        except TypeError:
            return UsageError(
                f"one cannot {wanted.how} a {type(added).__name__} to {wanted.key!r}, which holds "
                f"a {kind}; use another key, or write() over it"
            )
        if (b"" if after is MISSING else values.digest(after, wanted.what)) == before:
            return None
        if reduces:
            state.hold(wanted.key, position, after)
        if last is not None and _overlooks(wanted, scope, last):
            why = "that came beside this code, not before it"
            return _conflict(wanted, scope, position, why)
    return Written(
        key=wanted.key,
        value=NOTHING if wanted.how == "remove" else values.encode(added, wanted.what),
        space=wanted.space,
        how=wanted.how,
        by=scope.agent,
    )


def _overlooks(wanted: Put, scope: Scope, last: Write) -> bool:
    """It would replace what the writer cannot know of."""
    knowing = wanted.function is not None or wanted.if_version is not None
    if knowing or wanted.how not in ("replace", "remove"):
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
    added = "" if wanted.function is not None else f" with {_short(wanted.value)}"
    return ConflictError(
        f"run {log.run}: {scope.agent or 'the flow'} (at {scope.path or 'its top'}) would "
        f"{wanted.how} {wanted.key!r}{added}, but it holds {holds} (version {version}): {why}. "
        "Read it first and pass if_version; on a board, update() and reducers (append, merge, ...) "
        "never conflict",
        key=wanted.key,
        version=version,
        writer=writer,
    )


def _short(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
