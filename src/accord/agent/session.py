"""What an agent said and was told before in this run: read off the log.

An agent's history is that of the code that calls it: calls in branches beside this one are not
part of it. The last of several joined branches, in the order of the program, is gone on with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from accord.agent.reading import Item
from accord.comm.space import order_of
from accord.engine.base import Message, Reply, Request
from accord.flow.scope import Scope
from accord.log.events import CallFailed, CallFinished, CallStarted, Envelope, Looked, View
from accord.log.log import Log

VIEW = "its view"
"""What an agent's own look at what it reads is called, to tell it from looks in its tools."""


@dataclass(slots=True)
class Talk:
    """One finished call of an agent: its place, what it looked at, and its last request."""

    agent: str
    path: str
    end: int = 0
    looked: int = 0
    views: tuple[View, ...] = ()
    request: int = 0
    reply: int = 0
    """Numbers of events; 0 where there is none."""


class Sessions:
    """All finished calls of all agents: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.talks: dict[str, list[Talk]] = {}
        self._open: dict[str, Talk] = {}
        self._requests: dict[int, str] = {}
        self._places: dict[str, list[str]] = {}

    def places(self, agent: str) -> list[str]:
        """Where in the flow ``agent`` was called, finished or not."""
        return self._places.get(agent, [])

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        path, event = envelope.scope, envelope.event
        match event:
            case CallStarted(kind="agent", name=name):
                self._open[path] = Talk(name, path)
                self._places.setdefault(name, []).append(path)
            case CallStarted(kind="request"):
                self._requests[envelope.seq] = path
            case Looked(what=what) if what == VIEW and (talk := self._speaking(path)) is not None:
                talk.looked, talk.views = envelope.seq, event.views
            case CallFinished() | CallFailed():
                self._end(envelope, event)
            case _:
                pass

    def _speaking(self, path: str) -> Talk | None:
        """The call of an agent that something at ``path`` is part of."""
        while path:
            path = path.rpartition("/")[0]
            if path in self._open:
                return self._open[path]
        return None

    def _end(self, envelope: Envelope, event: CallFinished | CallFailed) -> None:
        path = envelope.scope
        if self._requests.pop(event.call, None) is not None:
            talk = self._speaking(path)
            if talk is not None and isinstance(event, CallFinished):
                talk.request, talk.reply = event.call, envelope.seq
        elif (talk := self._open.pop(path, None)) is not None and isinstance(event, CallFinished):
            talk.end = envelope.seq
            self.talks.setdefault(talk.agent, []).append(talk)


def talks_before(log: Log, agent: str, scope: Scope, position: int) -> list[Talk]:
    """The finished calls of ``agent`` that the code in ``scope`` follows on, in program order."""
    talks = log.fold(Sessions).talks.get(agent, ())
    known = [t for t in talks if t.reply and t.end < position and scope.knows(t.path, t.end)]
    return sorted(known, key=lambda talk: order_of(talk.path))


def messages_of(log: Log, talk: Talk) -> list[Message]:
    """The prompt of a call's last request, less what was passing, with the reply to it."""
    kept = [message for message in request_of(log, talk).messages if message.kept]
    reply = Message(role="assistant", content=reply_of(log, talk).text, origin="history")
    return [*kept, reply]


def item_of(log: Log, talk: Talk) -> Item:
    """A whole call in one item: what was asked, and what came."""
    return Item(
        order=order_of(talk.path),
        seq=talk.end,
        handle=f"#{talk.path}",
        title="",
        writer=talk.agent,
        text=transcript(log, talk),
    )


def transcript(log: Log, talk: Talk) -> str:
    """What the agent was asked in this call, and what it answered."""
    asked = [m.content for m in request_of(log, talk).messages if m.origin == "task"]
    return "\n".join([*asked[-1:], reply_of(log, talk).text])


def request_of(log: Log, talk: Talk) -> Request:
    """The last request of a call."""
    started = log.envelopes[talk.request].event
    assert isinstance(started, CallStarted)
    return cast("list[Request]", log.values.decode(started.input))[0]


def reply_of(log: Log, talk: Talk) -> Reply:
    """The reply to it."""
    finished = log.envelopes[talk.reply].event
    assert isinstance(finished, CallFinished)
    return cast("Reply", log.values.decode(finished.output))
