"""What a run is doing now: a fold over its events, with the passing news of its requests.

Costs a dictionary look-up a token. What has ended is counted and forgotten, so that it stays
small in a run of any length.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from accord.cli.render import failure, total
from accord.flow.execution import Sent, Token
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    RunResumed,
)

RECENT = 4
"""How many that have ended stay in view."""

State = Literal[
    "queued",
    "reading prompt",
    "writing",
    "working",
    "retrying",
    "done",
    "failed",
    "cancelled",
    "waiting",
]


@dataclass(slots=True)
class Work:
    """One call of an agent, a step or a tool. Times are nanoseconds on the run's clock."""

    scope: str
    name: str
    kind: str
    started_ns: int
    state: State
    prompt: int = 0
    completion: int = 0
    reused: int = 0
    """Requests that an equal one of before answered."""
    streaming: int = 0
    """Pieces of the reply that is being written: its tokens, nearly."""
    ended_ns: int | None = None
    error: str = ""

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self.prompt + self.completion + self.streaming


class Progress:
    """Where a run stands. Feed it every event once, in order, and the news as it comes."""

    def __init__(self) -> None:
        self.active: dict[str, Work] = {}
        self.recent: deque[Work] = deque(maxlen=RECENT)
        self.ended = self.failed = 0
        """Calls that have ended, and how many of these failed."""
        self.tokens = 0
        """Of requests that have ended; what is being written comes on top."""
        self._given_up: dict[str, Work] = {}
        """Failed or cancelled. A resume may make them again, without a new start in the log."""
        self._starts: dict[int, CallStarted] = {}

    def take(self, envelope: Envelope) -> Work | None:
        """Take in the next event; gives the work that it ended, if it did."""
        match envelope.event:
            case CallStarted() as started:
                self._starts[envelope.seq] = started
                self._begin(envelope, started)
            case AttemptFailed():
                if (work := self._owner(envelope.scope)) is not None:
                    work.state, work.streaming = "retrying", 0
            case CallFinished() | CallFailed() | CallCancelled() as ended:
                return self._end(envelope, ended)
            case RunResumed():
                for work in self.active.values():
                    work.state = "working" if work.kind in ("step", "tool") else "queued"
            case _:
                pass
        return None

    def hear(self, news: Sent | Token) -> None:
        """Take in passing news of a request."""
        work = self._owner(news.scope)
        if work is None:
            return
        if isinstance(news, Sent):
            work.state, work.streaming = "reading prompt", 0
        else:
            work.state = "writing"
            work.streaming += 1

    def _begin(self, envelope: Envelope, started: CallStarted) -> None:
        if started.kind in ("agent", "step", "tool"):
            state = "queued" if started.kind == "agent" else "working"
            self.active[envelope.scope] = Work(
                envelope.scope, started.name, started.kind, envelope.at, state
            )
        elif started.kind == "request" and (work := self._owner(envelope.scope)) is not None:
            work.state = "queued"

    def _end(self, envelope: Envelope, ended: CallEnded) -> Work | None:
        started = self._starts.get(ended.call)
        if started is not None and started.kind == "request":
            self._count(envelope.scope, ended)
            return None
        work = self._find(envelope.scope)
        if work is None:
            return None
        del self.active[envelope.scope]
        self.ended += 1
        work.ended_ns = envelope.at
        if isinstance(ended, CallFinished):
            work.state = "done"
        elif isinstance(ended, CallFailed):
            self.failed += 1
            work.state = "failed"
            work.error = failure(ended.error)
        else:
            work.state = "waiting" if ended.suspended else "cancelled"
        if work.state != "done":
            self._given_up[envelope.scope] = work
        self.recent.append(work)
        return work

    def _count(self, scope: str, ended: CallEnded) -> None:
        usage = None if isinstance(ended, CallFailed) else ended.usage
        work = self._owner(scope)
        if work is not None:
            work.state, work.streaming = "working", 0
            work.reused += isinstance(ended, CallFinished) and ended.saved is not None
        if usage is None:
            return
        self.tokens += total(usage)
        if work is not None:
            work.prompt += usage.prompt
            work.completion += usage.completion

    def _owner(self, scope: str) -> Work | None:
        """The work that the request at ``scope`` belongs to: the nearest above it."""
        while scope:
            scope = scope.rpartition("/")[0]
            if (work := self._find(scope)) is not None:
                return work
        return None

    def _find(self, scope: str) -> Work | None:
        """The work at ``scope``; one that had been given up is taken up again."""
        again = self._given_up.pop(scope, None)
        if again is not None:
            self.active[scope] = replace(again, state="queued", ended_ns=None, error="")
        return self.active.get(scope)
