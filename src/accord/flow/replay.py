"""What the log held when this process took over, and whether the flow still goes that way.

A replay runs the flow again; each call and join finds its recorded self at its place. The flow
has changed if it does something else there, or if a piece of code that ends without failure
has not come by all places recorded below it. Code that fails or is cancelled may have come by
fewer than the first time.

One change is no fault: a call that never succeeded may be another now, such as an agent whose
instructions were mended after its failure. It is made anew, and what was recorded below it no
longer counts, unless an effect was among it.
"""

from __future__ import annotations

from accord.flow.scope import Scope, numbered
from accord.log.events import CallFinished, CallStarted, Envelope, Joined
from accord.log.fold import Call, Calls


class Replay:
    """Recorded calls and joins by place."""

    def __init__(self, calls: Calls) -> None:
        self._propagated = calls.propagated
        self.calls = dict(calls.by_scope)
        self.joins = dict(calls.joined)
        self._below: dict[str, set[str]] = {}
        self._index()

    def call_at(self, path: str, scope: Scope, now: CallStarted) -> Call | None:
        """The call recorded at ``path``, if it is to answer or to go on.

        Raises ``FlowChangedError`` if a join was recorded there, or another call.
        """
        call = self.calls.get(path)
        if call is None:
            if path in self._below or path in self.joins:
                raise scope.execution.flow_changed(path, "a join", describe(now))
            return None
        if call.started.key == now.key:
            return call
        if not self._may_be_replaced(call):
            raise scope.execution.flow_changed(path, describe(call.started), describe(now))
        self._forget(path)
        return None

    def join_at(self, path: str, scope: Scope, branches: int) -> Envelope | None:
        """The join recorded at ``path``; raises if a call was, or one of other branches."""
        now = f"a join of {branches} branches"
        if (call := self.calls.get(path)) is not None:
            raise scope.execution.flow_changed(path, describe(call.started), now)
        joined = self.joins.get(path)
        if joined is not None and isinstance(joined.event, Joined):
            recorded = joined.event.branches
            if recorded != branches:
                raise scope.execution.flow_changed(path, f"a join of {recorded} branches", now)
        for segment in self._below.get(path, ()):
            if int(segment) >= branches:
                raise scope.execution.flow_changed(path, "a join of more branches", now)
        return joined

    def went_on_past(self, call: Call) -> bool:
        """The flow handled the failure or cancellation of ``call``; it is to handle it again.

        If all that was done about it was to clean up while it went on to end what was around
        it, the flow did not: the call is made again, and what the cleaning up did is forgotten.
        """
        if call.led_on or not call.cleaned_up:
            return call.led_on
        cleaning = {path for path, each in self.calls.items() if _cleans_up(each, call)}
        if call.last not in self._propagated or self._something_follows(cleaning):
            return True
        for path in cleaning:
            del self.calls[path]
        self.joins = {
            path: joined
            for path, joined in self.joins.items()
            if joined.seq < call.last or any(each.startswith(f"{path}/") for each in self.calls)
        }
        self._index()
        return False

    def _something_follows(self, cleaning: set[str]) -> bool:
        """After the cleaning up, its code did something that was no cleaning up."""
        for path in cleaning:
            parent, _, segment = path.rpartition("/")
            for sibling in self._below.get(parent, ()):
                if sibling.isdigit() and segment.isdigit() and int(sibling) > int(segment):
                    below = self._calls_from(f"{parent}/{sibling}".lstrip("/"))
                    if not cleaning.issuperset(below):
                        return True
        return False

    def check_complete(self, scope: Scope) -> None:
        """Code ended without failure: it has come by all that was recorded below its scope."""
        recorded = self._below.get(scope.path)
        if recorded is None:
            return
        made = {str(index) for index in range(scope.children)}
        for label, count in (scope.adopted or {}).items():
            made.update(numbered(label, index) for index in range(count))
        missing = sorted(recorded - made)
        if missing:
            path = f"{scope.path}/{missing[0]}".lstrip("/")
            call = self.calls.get(path)
            then = "calls in a branch or a task" if call is None else describe(call.started)
            raise scope.execution.flow_changed(path, then, "no call: the code ended before")

    def _may_be_replaced(self, call: Call) -> bool:
        if isinstance(call.ended, CallFinished) or self.went_on_past(call):
            return False
        return not any(
            self.calls[path].started.has_effects for path in self._calls_from(call.scope)
        )

    def _forget(self, path: str) -> None:
        for each in self._calls_from(path):
            del self.calls[each]
        for each in [join for join in self.joins if join.startswith(f"{path}/")]:
            del self.joins[each]
        self._index()

    def _calls_from(self, path: str) -> list[str]:
        """``path`` and what lies below it, of all recorded calls."""
        return [each for each in self.calls if f"{each}/".startswith(f"{path}/")]

    def _index(self) -> None:
        """Which places lie right below which."""
        self._below.clear()
        for path in (*self.calls, *self.joins):
            above = path
            while above:
                above, _, segment = above.rpartition("/")
                below = self._below.setdefault(above, set())
                if segment in below:
                    break
                below.add(segment)


def _cleans_up(call: Call, failed: Call) -> bool:
    return failed.last in call.started.handling


def describe(started: CallStarted) -> str:
    """A call in one line."""
    return f"{started.kind} {started.name}({started.preview})"
