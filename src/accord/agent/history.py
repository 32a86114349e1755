"""What an agent said and was told before in this run: read off the log.

An agent's history is that of the code that calls it: calls in branches beside this one are not
part of it. The last of several joined branches, in the order of the program, is gone on with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from msgspec.structs import replace

from accord.agent.reading import Item
from accord.comm.space import order_of
from accord.engine.base import Message, Reply, Request
from accord.flow.scope import Scope
from accord.log.events import CallFinished, CallStarted, Envelope, Guessed, Joined, Looked, View
from accord.log.fold import is_within
from accord.log.log import Log
from accord.observe.places import above

VIEW = "its view"
"""What an agent's own look at what it reads is called, to tell it from looks in its tools."""


@dataclass(slots=True)
class PastCall:
    """A finished call of an agent: its place, what it looked at, and its last request.

    ``end``, ``looked``, ``request``, ``reply`` and ``undone`` are numbers of events; 0 where there
    is none.
    """

    agent: str
    path: str
    end: int = 0
    looked: int = 0
    views: tuple[View, ...] = ()
    request: int = 0
    reply: int = 0
    undone: int = 0
    """It was made on a guess that proved wrong, with this event."""
    exchange: list[Message] | None = None
    """What was asked and answered, once somebody has looked."""
    item: Item | None = None

    def stands(self, position: int) -> bool:
        """Whether it had been answered by then, and not on a guess known to be wrong."""
        return bool(self.reply) and self.end < position and not 0 < self.undone < position


class History:
    """All finished calls of all agents: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.calls: dict[str, list[PastCall]] = {}
        self._open: dict[str, PastCall] = {}
        """Calls that have not succeeded: one that failed may be made again."""
        self._requests: dict[int, str] = {}
        self._places: dict[str, list[str]] = {}
        self._tools: dict[int, str] = {}
        self._returned: dict[str, int] = {}
        self._guesses: set[str] = set()

    def places(self, agent: str) -> list[str]:
        """Where in the flow ``agent`` was called, finished or not."""
        return self._places.get(agent, [])

    def returned(self, path: str) -> int | None:
        """The event with which the call of a tool at ``path`` finished."""
        return self._returned.get(path)

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        path, event = envelope.scope, envelope.event
        match event:
            case CallStarted(kind="agent", name=name):
                self._open[path] = PastCall(name, path)
                self._places.setdefault(name, []).append(path)
            case CallStarted(kind="request"):
                self._requests[envelope.seq] = path
            case CallStarted(kind="tool"):
                self._tools[envelope.seq] = path
            case Looked(what=what) if what == VIEW and (call := self._around(path)) is not None:
                call.looked, call.views = envelope.seq, event.views
            case CallFinished():
                self._finish(envelope, event)
            case Guessed():
                self._guesses.add(above(path))
            case Joined(dropped=dropped):
                for index in dropped:
                    if (branch := f"{path}/{index}") in self._guesses:
                        self._undo(branch, envelope.seq)
            case _:
                pass

    def _undo(self, branch: str, seq: int) -> None:
        for call in (each for calls in self.calls.values() for each in calls):
            if is_within(call.path, branch) and not call.undone:
                call.undone = seq

    def _around(self, path: str) -> PastCall | None:
        """The running call of an agent that something at ``path`` is part of."""
        while path:
            path = path.rpartition("/")[0]
            if path in self._open:
                return self._open[path]
        return None

    def _finish(self, envelope: Envelope, event: CallFinished) -> None:
        path = envelope.scope
        if self._requests.pop(event.call, None) is not None:
            call = self._around(path)
            if call is not None:
                call.request, call.reply = event.call, envelope.seq
        elif self._tools.pop(event.call, None) is not None:
            self._returned[path] = envelope.seq
        elif (call := self._open.pop(path, None)) is not None:
            call.end = envelope.seq
            self.calls.setdefault(call.agent, []).append(call)


def past_calls(log: Log, agent: str, scope: Scope, position: int) -> list[PastCall]:
    """The finished calls of ``agent`` that the code in ``scope`` follows on, in program order."""
    calls = log.fold(History).calls.get(agent, ())
    known = [call for call in calls if call.stands(position) and scope.knows(call.path, call.end)]
    return sorted(known, key=lambda call: order_of(call.path))


def continued(log: Log, call: PastCall) -> Request:
    """A call's last request, less what was passing in its prompt, with the reply to it."""
    request = request_of(log, call)
    kept = [message for message in request.messages if message.kept]
    return replace(request, messages=(*kept, _reply(log, call)))


def exchange_of(log: Log, call: PastCall) -> list[Message]:
    """What the agent was asked in a call, and what it answered."""
    if call.exchange is None:
        call.exchange = _exchange_of(log, call)
    return call.exchange


def _exchange_of(log: Log, call: PastCall) -> list[Message]:
    asked: list[Message] = []
    after: Message | None = None
    for message in reversed(request_of(log, call).messages):
        corrected = after is not None and after.origin == "instructions"
        if message.role == "assistant" and not message.tool_calls and not corrected:
            break  # the end of the call before
        if message.origin == "task":
            asked = [message]
            break
        after = message
    return [*asked, _reply(log, call)]


def item_of(log: Log, call: PastCall) -> Item:
    """A whole call as one item."""
    if call.item is None:
        call.item = Item(
            order=order_of(call.path),
            seq=call.end,
            handle=f"#{call.path}",
            title="",
            writer=call.agent,
            text="\n".join(message.content for message in exchange_of(log, call)),
        )
    return call.item


def request_of(log: Log, call: PastCall) -> Request:
    """The last request of a call."""
    started = log.envelopes[call.request].event
    assert isinstance(started, CallStarted)
    return cast("list[Request]", log.values.decode(started.input))[0]


def _reply(log: Log, call: PastCall) -> Message:
    finished = log.envelopes[call.reply].event
    assert isinstance(finished, CallFinished)
    reply = cast("Reply", log.values.decode(finished.output))
    return Message(role="assistant", content=reply.text, origin="history")
