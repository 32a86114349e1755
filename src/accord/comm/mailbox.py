"""Messages: sent to a name, and taken from its mailbox once each, in causal order.

Choose them for what one must know, and for who waits for whom. A message is one event; a mailbox is
a cursor over those sent to its name, to topics that it follows, or to everybody (``*``). A sender
waits while a mailbox is full, so nobody is flooded. What nobody takes stays in the log, and is
counted: :func:`dead_letters`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar, cast

from accord.clock import NANOSECONDS
from accord.comm.post import Box, Post
from accord.comm.put import writing_scope
from accord.errors import CallTimeoutError, MailboxFullError, UsageError
from accord.flow.execution import Execution
from accord.flow.note import Decide, note, note_when
from accord.flow.scope import CallScope, Scope, current_scope
from accord.log.events import (
    CallStarted,
    Envelope,
    MailboxClosed,
    MailboxOpened,
    MessageTaken,
    Noted,
    Written,
)
from accord.log.log import Log

M = TypeVar("M")

DEFAULT_CAPACITY = 1024


@dataclass(frozen=True, kw_only=True)
class Message(Generic[M]):
    """A message as its recipient gets it: its number in the log, and the name it was sent to."""

    id: int
    sender: str
    to: str
    body: M
    asks: bool = False
    """Its sender waits for a reply."""


@dataclass(frozen=True, kw_only=True)
class MailboxStatistics:
    """Messages that came in, that were taken, and that wait; and how many may wait."""

    received: int
    taken: int
    waiting: int
    capacity: int


class Mailbox(Generic[M]):
    """The mailbox ``name`` of this run, opened where it is made: inside a flow.

    Takes what is sent to its name, to its ``topics`` and to everybody, from the run's beginning on.
    At most ``capacity`` messages wait in it; then senders do. Opened again, alike, both take from
    it.
    """

    def __init__(
        self, name: str, *, topics: str | Iterable[str] = (), capacity: int = DEFAULT_CAPACITY
    ) -> None:
        if capacity < 1:
            raise UsageError(f"mailbox {name!r}: a capacity is at least 1, not {capacity}")
        self.name = name
        followed = (topics,) if isinstance(topics, str) else tuple(topics)
        _open(MailboxOpened(name=name, topics=followed, capacity=capacity))

    async def receive(self, *, timeout_s: float | None = None) -> Message[M]:
        """The next message, as soon as there is one.

        Raises :class:`accord.errors.CallTimeoutError` after ``timeout_s`` without one.
        """
        return cast("Message[M]", await _receive(self.name, timeout_s))

    async def send(self, to: str, body: Any, *, timeout_s: float | None = None) -> int:
        """:func:`send`, in the name of this mailbox."""
        return await send(to, body, sender=self.name, timeout_s=timeout_s)

    async def reply(self, message: Message[Any], body: Any) -> int:
        """:func:`reply`, in the name of this mailbox."""
        return await reply(message, body, sender=self.name)

    async def ask(self, to: str, body: Any, *, timeout_s: float | None = None) -> Any:
        """:func:`ask`, in the name of this mailbox."""
        return await ask(to, body, sender=self.name, timeout_s=timeout_s)

    def statistics(self) -> MailboxStatistics:
        """How things stand. For people: it is not recorded, so no flow may depend on it."""
        box = _box(current_scope("statistics()").execution.log, self.name)
        return MailboxStatistics(
            received=box.taken + len(box.waiting),
            taken=box.taken,
            waiting=len(box.waiting),
            capacity=box.opened.capacity,
        )


async def send(to: str, body: Any, *, sender: str = "", timeout_s: float | None = None) -> int:
    """Send ``body`` to a mailbox, to all that follow a topic, or to everybody (``*``); its id.

    Waits while a mailbox that would get it is full; after ``timeout_s`` (0: at once) raises
    :class:`accord.errors.MailboxFullError`, and the message is not sent. A message to a name
    that has no mailbox waits for it to be opened.
    """
    return (await _send(to, body, sender, timeout_s)).seq


async def _send(
    to: str, body: Any, sender: str, timeout_s: float | None, *, asks: bool = False
) -> Envelope:
    check_address(to)
    what = f"send {to}"
    scope = writing_scope(what, body)
    log = scope.execution.log

    def decide(scope: Scope, _position: int) -> Noted:
        value = log.values.encode(body, "a message")
        by = sender or scope.agent
        return Written(key=to, value=value, space="mail", how="append", by=by, asks=asks)

    room = _Room(log, to, timeout_s)
    try:
        sent = await note_when(
            room, what, decide, kind="send", name=to, timeout_s=timeout_s or None, scope=scope
        )
    except CallTimeoutError as error:
        raise room.none() from error
    log.fold(Post)  # whoever waits for it wakes
    return sent


async def ask(to: str, body: Any, *, sender: str = "", timeout_s: float | None = None) -> Any:
    """Send ``body`` and wait for the body of the reply; a reply that is an exception is raised.

    Within ``timeout_s``, on the run's clock, the question has to be sent and answered. Raises
    :class:`accord.errors.MailboxFullError` if there is no room for it by then, and
    :class:`accord.errors.CallTimeoutError` if there is no answer.
    """
    _check_not_itself(to)
    question = await _send(to, body, sender, timeout_s, asks=True)
    scope = current_scope("ask")
    log = scope.execution.log
    address = _reply_address(log, question.seq)
    open_mailbox(address)
    left_s = None if timeout_s is None else max(0.0, timeout_s - _waited_s(log, question))
    try:
        with scope.execution.awaiting(question.seq, scope):
            answer = (await _receive(address, left_s)).body
    except CallTimeoutError as error:
        raise _unanswered(to, timeout_s or 0) from error
    if isinstance(answer, Exception):
        raise answer
    return answer


async def reply(message: Message[Any], body: Any, *, sender: str = "") -> int:
    """Answer a message that came from :func:`ask`; with an exception, that is raised there."""
    log = current_scope("a reply").execution.log
    return await send(_reply_address(log, message.id), body, sender=sender)


def close_mailbox(name: str) -> None:
    """Nobody takes messages from ``name`` any more: senders do not wait for room in it.

    They can be taken once it is opened again; until then, they are dead letters.
    """
    note(f"close mailbox {name}", lambda _scope, _position: MailboxClosed(name=name))
    current_scope("a mailbox").execution.log.fold(Post)  # senders that wait for room wake


def dead_letters(log: Log) -> list[Message[Any]]:
    """Messages that nobody has taken."""
    return [_message(log, number) for number in log.fold(Post).untaken()]


class _Arrived:
    """A message waits in a mailbox."""

    def __init__(self, box: Box, execution: Execution) -> None:
        self._box = box
        self._execution = execution

    def met(self) -> bool:
        return bool(self._box.waiting)

    async def changed(self) -> None:
        with self._execution.hearing():  # somebody outside may send one
            if not self._box.waiting:
                await self._box.changed.wait()


class _Room:
    """All mailboxes that would get a message have room for it. At once: ``timeout_s`` 0."""

    def __init__(self, log: Log, to: str, timeout_s: float | None) -> None:
        self._log = log
        self._to = to
        self._timeout_s = timeout_s

    def met(self) -> bool:
        return self._full() is None

    def changed(self) -> Awaitable[None]:
        full = self._full()
        assert full is not None, "it was asked for in the same moment"
        if self._timeout_s == 0:
            raise self.none()
        return full.changed.wait()

    def none(self) -> MailboxFullError:
        """What to raise when there was none in time; the same whatever has been taken since."""
        return MailboxFullError(
            f"a mailbox that takes messages to {self._to!r} was full for "
            f"{self._timeout_s or 0:g} s, and this one was not sent; receive more often, open the "
            "mailbox with more capacity, or wait longer"
        )

    def _full(self) -> Box | None:
        boxes = self._log.fold(Post).boxes_for(self._to)
        return next((box for box in boxes if box.is_full), None)


def open_mailbox(address: str) -> Box:
    """The mailbox for the one message to ``address``, such as a reply."""
    _open(MailboxOpened(name=address, capacity=1, broadcasts=False))
    return _box(current_scope("a mailbox").execution.log, address)


def take(name: str) -> Message[Any]:
    """The message that waits in a mailbox."""
    log = current_scope("receive").execution.log
    return _taken(log, note(f"receive {name}", _next_of(_box(log, name), name)))


async def _receive(name: str, timeout_s: float | None) -> Message[Any]:
    execution = current_scope("receive").execution
    box = _box(execution.log, name)  # whoever sends brings it up to date
    taken = await note_when(
        _Arrived(box, execution),
        f"receive {name}",
        _next_of(box, name),
        kind="receive",
        name=name,
        timeout_s=timeout_s,
    )
    return _taken(execution.log, taken)


def _next_of(box: Box, name: str) -> Decide:
    def decide(scope: Scope, _position: int) -> Noted:
        waiting = box.waiting
        if waiting:
            scope.follow(waiting[0])
        return MessageTaken(mailbox=name, message=waiting[0] if waiting else 0)

    return decide


def _taken(log: Log, taken: Envelope) -> Message[Any]:
    log.fold(Post)  # senders that wait for room wake
    assert isinstance(taken.event, MessageTaken)
    return _message(log, taken.event.message)


def _open(wanted: MailboxOpened) -> None:
    for name in (wanted.name, *wanted.topics):
        check_address(name)
    note(f"mailbox {wanted.name}", lambda _scope, _position: wanted)
    opened = _box(current_scope("a mailbox").execution.log, wanted.name).opened
    if (opened.topics, opened.capacity) != (wanted.topics, wanted.capacity):
        raise UsageError(
            f"mailbox {wanted.name!r} is open with topics {list(opened.topics)} and capacity "
            f"{opened.capacity}; open it once, or alike each time"
        )


def _box(log: Log, name: str) -> Box:
    return log.fold(Post).boxes[name]


def _message(log: Log, number: int) -> Message[Any]:
    written = log.envelopes[number].event
    assert isinstance(written, Written)
    body = log.values.decode(written.value)
    return Message(id=number, sender=written.by, to=written.key, body=body, asks=written.asks)


def _waited_s(log: Log, sent: Envelope) -> float:
    """How long a message waited for room: if it did, it is the first thing in a call of its own."""
    began = log.envelopes[sent.causes[0]]
    waited = isinstance(began.event, CallStarted) and began.event.kind == "send"
    return (sent.at - began.at) / NANOSECONDS if waited else 0.0


def _unanswered(to: str, timeout_s: float) -> CallTimeoutError:
    """By the mailboxes that were open when the time was up, which are the same on a replay."""
    scope = current_scope("ask")
    post = Post()
    for envelope in scope.execution.log.envelopes[: scope.frontier[-1] + 1]:
        post.add(envelope)
    said = f"{to!r} has not answered within {timeout_s:g} s"
    if any(not box.is_closed for box in post.boxes_for(to)):
        return CallTimeoutError(f"{said}; see that its owner replies to what it receives")
    opened = [box.opened for box in post.boxes.values() if not box.is_closed]
    names = [each.name for each in opened if each.broadcasts]  # the others wait for one reply
    close = get_close_matches(to, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"open are: {', '.join(names) or 'none'}"
    return CallTimeoutError(f"{said}, and no mailbox of that name was open; {hint}")


def _check_not_itself(to: str) -> None:
    """An actor is asked while it handles a message only by others: it handles one at a time."""
    scope: Scope | None = current_scope("ask")
    envelopes = scope.execution.log.envelopes
    while scope is not None:
        if isinstance(scope, CallScope) and scope.kind == "handle":
            handling = envelopes[scope.start].event
            assert isinstance(handling, CallStarted)
            if handling.name == to:
                raise UsageError(
                    f"actor {to!r} asks itself, and would wait for ever: it handles one message "
                    "at a time; send() to itself, or do the work in a function of its own"
                )
        scope = scope.outer


def _reply_address(log: Log, question: int) -> str:
    """By the place of the question, which is the same in a fork."""
    return f"reply to {log.envelopes[question].scope}"


def check_address(name: str) -> None:
    """Raise ``UsageError`` if nothing can be sent to ``name``."""
    if not name.strip() or not name.isprintable():
        raise UsageError(f"messages go to a name of printable text, not to {name!r}")
