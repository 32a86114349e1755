"""What the log held when this process took over, and whether the flow still goes that way.

A replay runs the flow again; each call and join finds its recorded self at its place. The flow
has changed if it does something else there, or if a piece of code that ends without failure
has not come by all places recorded below it. Code that fails or is cancelled may have come by
fewer than the first time.

Three changes are no fault. First, a call that never succeeded may be another now, such as an agent
whose instructions were mended after its failure: it is made anew, and what was recorded below it no
longer counts, unless an effect was among it. Second, a failure that ended the run, though the flow
cleaned up on the way, is made again; what the cleaning up did stays done, and a flow that now
succeeds need not come by it. Third, code that reads a text while it is being written may do
otherwise before the text is whole, if no effect was among it: a text begun anew may go on
otherwise. And a fork, which is there to go another way, may differ anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accord.flow.scope import Scope, numbered
from accord.flow.suspend import answers_in, asked_below
from accord.log.events import (
    CallFinished,
    CallStarted,
    Envelope,
    Guessed,
    Joined,
    Looked,
    MailboxClosed,
    MailboxOpened,
    MessageTaken,
    Note,
    RunEnded,
    RunResumed,
    Written,
)
from accord.log.fold import Call, Calls, is_within
from accord.log.log import Log


class Replay:
    """Recorded calls and joins by place."""

    def __init__(self, calls: Calls, envelopes: Sequence[Envelope]) -> None:
        self._may_differ = calls.run is not None and bool(calls.run.forked_from)
        """A fork goes another way than what it shares its beginning with."""
        self._envelopes = tuple(envelopes)
        self._recorded = calls
        self._answered = answers_in(self._envelopes)
        self.spare: dict[str, Call] = {}
        """In a fork: calls of the run forked from that may answer as they did."""
        self._undone = _undone_before(calls)
        """The ends of failures that the flow did not get past: they are made again."""
        self._propagated = calls.propagated
        self.calls = dict(calls.by_scope)
        self.joins = dict(calls.joined)
        self.notes = dict(calls.notes)
        self._provisional: dict[str, int] = {}
        """Code that read a text, and the event with which that was whole."""
        self._below: dict[str, set[str]] = {}
        self._index()
        self._began: dict[str, tuple[int, ...]] = {}
        """What the first event at or below a place followed from."""
        for envelope in self._envelopes:
            path = envelope.scope
            while path and path not in self._began:
                self._began[path] = envelope.causes
                path = path.rpartition("/")[0]

    def call_at(self, path: str, scope: Scope, now: CallStarted) -> Call | None:
        """The call recorded at ``path``, if it is to answer or to go on.

        Raises ``FlowChangedError`` if a join was recorded there, or another call.
        """
        if not self._envelopes:
            return None
        call = self.calls.get(path)
        if call is None:
            if path in self._below or path in self.joins or path in self.notes:
                self._give_way(path, scope, self._described(path), describe(now))
            return None
        if call.started.key == now.key:
            return call
        if not self._may_be_replaced(call):
            self._give_way(path, scope, describe(call.started), describe(now))
            return None
        self.make_again(call)
        self._forget(path)
        return None

    def spare_at(self, path: str, now: CallStarted) -> Call | None:
        """The call that a fork has left behind, if it comes again with the same input."""
        call = self.spare.get(path)
        return call if call is not None and call.started.key == now.key else None

    def join_at(self, path: str, scope: Scope, branches: int) -> Envelope | None:
        """The join recorded at ``path``; raises if a call was, or one of other branches."""
        now = f"a join of {branches} branches"
        if path in self.calls or path in self.notes:
            self._give_way(path, scope, self._described(path), now)
        joined = self.joins.get(path)
        if joined is not None and isinstance(joined.event, Joined):
            recorded = joined.event.branches
            if recorded != branches:
                self._give_way(path, scope, f"a join of {recorded} branches", now)
        if any(int(segment) >= branches for segment in self._below.get(path, ())):
            self._give_way(path, scope, "a join of more branches", now)
        return self.joins.get(path)

    def note_at(self, path: str, scope: Scope, what: str) -> Envelope | None:
        """The note recorded at ``path``; raises if something else was, ``what`` being noted now."""
        if path in self.calls or path in self.joins or path in self._below:
            self._give_way(path, scope, self._described(path), what)
        return self.notes.get(path)

    def began(self, path: str, causes: tuple[int, ...]) -> int:
        """The last event before the code at ``path`` began: as it was recorded, else of ``causes``.

        That a process took the run over is no event of the flow's.
        """
        if not self._envelopes:
            return max(causes, default=0)
        recorded = self._began.get(path, causes)
        return max((seq for seq in recorded if not self._is_resume(seq)), default=0)

    def began_ns(self, path: str, causes: tuple[int, ...], log: Log) -> int:
        """When the code at ``path`` began: now, unless something of it is recorded."""
        if path not in self._began:
            return log.now()
        return self._envelopes[self.began(path, causes)].at

    def _is_resume(self, seq: int) -> bool:
        before = seq < len(self._envelopes)
        return before and isinstance(self._envelopes[seq].event, RunResumed)

    def unanswered_below(self, path: str) -> list[str]:
        """The questions recorded at or below a place that nobody has answered."""
        return [place for place in asked_below(self._recorded, path) if place not in self._answered]

    def reads_at(self, path: str, writer: str) -> None:
        """The code at ``path`` reads the answer of the call at ``writer``, as it is written."""
        call = self.calls.get(writer)
        written = call is not None and isinstance(call.ended, CallFinished)
        self._provisional[path] = call.last if call and written else len(self._envelopes)

    def is_recorded_below(self, path: str) -> bool:
        """Something was recorded below a place."""
        return path in self._below

    def causes_at(self, path: str) -> tuple[int, ...] | None:
        """What the call recorded at a place followed from; None if there is none."""
        call = self.calls.get(path)
        return None if call is None else call.start.causes

    def same_causes(self, one: Iterable[int], other: Iterable[int]) -> bool:
        """Whether events follow from the same, whichever process began there."""
        first, second = ({0 if self._is_resume(s) else s for s in each} for each in (one, other))
        return first == second

    def went_on_past(self, call: Call) -> bool:
        """The flow handled the failure or cancellation of ``call``; it is to handle it again."""
        if call.led_on or not call.cleaned_up:
            return call.led_on
        ends = (end.seq for end in call.all_ends)
        return call.last not in self._propagated or any(map(self.led_on_from, ends))

    def make_again(self, call: Call) -> None:
        """``call`` is made again: whatever cleaned up after it need not be come by."""
        self._undone.update(end.seq for end in call.all_ends)

    def led_on_from(self, end: int) -> bool:
        """A call began after event ``end``, because of it, that was no cleaning up after it."""
        after = {end}
        for envelope in self._envelopes[end:]:
            event = envelope.event
            if after.isdisjoint(envelope.causes) or isinstance(event, RunEnded | RunResumed):
                continue
            if isinstance(event, CallStarted | Note) and end not in event.handling:
                return True
            after.add(envelope.seq)
        return False

    def check_complete(self, scope: Scope) -> None:
        """Code ended without failure: it has come by all that was recorded below its scope."""
        recorded = self._below.get(scope.path)
        if recorded is None:
            return
        made = {str(index) for index in range(scope.children)}
        for label, count in (scope.adopted or {}).items():
            made.update(numbered(label, index) for index in range(count))
        left = (f"{scope.path}/{segment}".lstrip("/") for segment in sorted(recorded - made))
        missing = [path for path in left if not self._may_be_missing(path)]
        if missing:
            path = missing[0]
            then = self._described(path)
            raise scope.execution.flow_changed(path, then, "no call: the code ended before")

    def _described(self, path: str) -> str:
        """What was recorded at ``path``."""
        if (call := self.calls.get(path)) is not None:
            return describe(call.started)
        if (note := self.notes.get(path)) is not None and isinstance(note.event, Note):
            return describe_note(note.event)
        return "a join, or calls in a branch or a task"

    def _may_be_missing(self, path: str) -> bool:
        return self._may_differ or self._is_cleaning_up(path) or self._is_provisional(path)

    def _is_provisional(self, path: str) -> bool:
        """What was recorded at ``path`` was done on the beginning of a text, and does not last."""
        above = next((each for each in self._provisional if is_within(path, each)), None)
        if above is None:
            return False
        calls = [self.calls[each] for each in self._calls_from(path)]
        others = [e for p in (self.notes, self.joins) for at, e in p.items() if is_within(at, path)]
        last = max(each.seq for each in (*others, *(call.start for call in calls)))
        lasts = any(call.started.has_effects for call in calls) or any(
            isinstance(each.event, Written | MessageTaken | MailboxOpened) for each in others
        )
        return last < self._provisional[above] and not lasts

    def _may_be_replaced(self, call: Call) -> bool:
        if self._may_differ or self._is_provisional(call.scope):
            return True
        if isinstance(call.ended, CallFinished) or self.went_on_past(call):
            return False
        below = self._calls_from(call.scope)
        return not any(self.calls[path].started.has_effects for path in below)

    def _give_way(self, path: str, scope: Scope, recorded: str, now: str) -> None:
        """What was recorded at ``path`` was cleaning up after what is made again; or raise."""
        if not self._may_be_missing(path):
            raise scope.execution.flow_changed(path, recorded, now)
        self._forget(path)

    def _is_cleaning_up(self, path: str) -> bool:
        handling = [self.calls[each].started.handling for each in self._calls_from(path)]
        handling += [
            note.event.handling
            for each, note in self.notes.items()
            if is_within(each, path) and isinstance(note.event, Note)
        ]
        return all(not self._undone.isdisjoint(ends) for ends in handling)

    def _forget(self, path: str) -> None:
        for each in self._calls_from(path):
            del self.calls[each]
        for places in (self.joins, self.notes):
            for each in [place for place in places if is_within(place, path)]:
                del places[each]
        self._index()

    def _calls_from(self, path: str) -> list[str]:
        """``path`` and what lies below it, of all recorded calls."""
        return [each for each in self.calls if is_within(each, path)]

    def _index(self) -> None:
        """Which places lie right below which."""
        self._below.clear()
        for path in (*self.calls, *self.joins, *self.notes):
            above = path
            while above:
                above, _, segment = above.rpartition("/")
                below = self._below.setdefault(above, set())
                if segment in below:
                    break
                below.add(segment)


def _undone_before(calls: Calls) -> set[int]:
    """What earlier resumes made again: no end but the last of a place's last call stands."""
    return {
        end.seq
        for call in calls.by_start.values()
        for end in call.all_ends
        if end is not call.end or calls.by_scope.get(call.scope) is not call
    }


def describe(started: CallStarted) -> str:
    """A call in one line."""
    return f"{started.kind} {started.name}({started.preview})"


def describe_note(note: Note) -> str:
    """A note in one line."""
    match note:
        case Written():
            return f"{note.space} {note.how} {note.key}"
        case MailboxOpened():
            return f"open mailbox {note.name}"
        case MailboxClosed():
            return f"close mailbox {note.name}"
        case MessageTaken():
            return f"take a message from {note.mailbox}"
        case Looked():
            return f"look at {note.what}"
        case Guessed():
            return f"guess {note.site}: {note.preview}"
        case _:
            return type(note).__name__
