"""Messages: sent to a name, and taken from its mailbox once each, in causal order.

Choose them for what one must know, and for who waits for whom. A message is one event; a mailbox is
a cursor over those sent to its name, to topics that it follows, or to everybody (``*``). A sender
waits while a mailbox is full, so nobody is flooded. What nobody takes stays in the log, and is
counted: :func:`dead_letters`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from accord.comm.post import Box, Post
from accord.errors import CallTimeoutError, MailboxFullError, UsageError
from accord.flow.call import call
from accord.flow.note import note
from accord.flow.scope import CallScope, Scope, current_scope, own_scope
from accord.log.events import MailboxOpened, MessageTaken, Note, Written
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
    At most ``capacity`` messages wait in it; then senders do. Opened twice, both take from it.
    """

    def __init__(
        self, name: str, *, topics: Iterable[str] = (), capacity: int = DEFAULT_CAPACITY
    ) -> None:
        _check_address(name)
        if capacity < 1:
            raise UsageError(f"mailbox {name!r}: a capacity is at least 1, not {capacity}")
        self.name = name
        opened = MailboxOpened(name=name, topics=tuple(topics), capacity=capacity)
        note(f"mailbox {name}", lambda _scope, _position: opened)
        _box(current_scope(name).execution.log, name)

    async def receive(self, *, timeout_s: float | None = None) -> Message[M]:
        """The next message, as soon as there is one.

        Raises :class:`accord.errors.CallTimeoutError` after ``timeout_s`` without one.
        """
        scope = own_scope("receive", f"receive {self.name}")
        log = scope.execution.log
        if not _recorded_as_call(scope, otherwise=not _box(log, self.name).waiting):
            return self._take(scope)

        async def body(inner: CallScope) -> int:
            while not _is_noted(inner) and not (box := _box(log, self.name)).waiting:
                await box.changed()
            return self._take(inner).id

        taken: int = await call("receive", self.name, [], body, pure=True, timeout_s=timeout_s)
        return cast("Message[M]", _message(log, taken))

    def _take(self, scope: Scope) -> Message[M]:
        log = scope.execution.log
        recorded = scope.execution.replay.notes.get(scope.place)

        def decide(scope: Scope, _position: int) -> Note:
            if recorded is not None and isinstance(recorded.event, MessageTaken):
                return MessageTaken(mailbox=self.name, message=recorded.event.message)
            taken = _box(log, self.name).waiting[0]
            scope.follow(taken)
            return MessageTaken(mailbox=self.name, message=taken)

        taken = note(f"receive {self.name}", decide, scope).event
        _box(log, self.name)  # senders that wait for room wake
        assert isinstance(taken, MessageTaken)
        return cast("Message[M]", _message(log, taken.message))

    async def send(self, to: str, body: Any, *, timeout_s: float | None = None) -> int:
        """:func:`send`, in the name of this mailbox."""
        return await send(to, body, sender=self.name, timeout_s=timeout_s)

    async def reply(self, message: Message[Any], body: Any) -> int:
        """Answer a message that came from :func:`ask`."""
        return await send(_reply_address(message.id), body, sender=self.name)

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
            capacity=box.capacity,
        )


async def send(to: str, body: Any, *, sender: str = "", timeout_s: float | None = None) -> int:
    """Send ``body`` to a mailbox, to all that follow a topic, or to everybody (``*``); its id.

    Waits while a mailbox that would get it is full; after ``timeout_s`` (0: at once) raises
    :class:`accord.errors.MailboxFullError`, and the message is not sent. A message to a name
    that has no mailbox waits for it to be opened.
    """
    _check_address(to)
    scope = own_scope("send", f"send {to}")
    if not _recorded_as_call(scope, otherwise=_full(scope.execution.log, to) is not None):
        return _post(scope, to, body, sender)

    async def wait_and_put(inner: CallScope) -> int:
        log = inner.execution.log
        while not _is_noted(inner) and (full := _full(log, to)) is not None:
            if timeout_s == 0:
                raise _mailbox_full(to, full, 0)
            await full.changed()
        return _post(inner, to, body, sender)

    try:
        sent: int = await call(
            "send", to, [body], wait_and_put, pure=True, timeout_s=timeout_s or None
        )
    except CallTimeoutError as error:
        full = _full(scope.execution.log, to)
        raise _mailbox_full(to, full, timeout_s or 0) from error
    return sent


def _post(scope: Scope, to: str, body: Any, sender: str) -> int:
    """Write the message, and wake who waits for it."""

    def decide(scope: Scope, _position: int) -> Written:
        value = scope.execution.log.values.encode(body, "a message")
        by = sender or scope.agent
        return Written(key=to, value=value, space="mail", how="append", by=by)

    sent = note("send", decide, scope).seq
    scope.execution.log.fold(Post)
    return sent


async def ask(to: str, body: Any, *, sender: str = "", timeout_s: float | None = None) -> Any:
    """Send ``body`` and wait for the body of the reply.

    Raises :class:`accord.errors.CallTimeoutError` if none comes within ``timeout_s``.
    """
    question = await send(to, body, sender=sender, timeout_s=timeout_s)
    answers: Mailbox[Any] = Mailbox(_reply_address(question), capacity=1)
    return (await answers.receive(timeout_s=timeout_s)).body


def dead_letters(log: Log) -> list[Message[Any]]:
    """Messages that nobody has taken."""
    return [_message(log, seq) for seq in log.fold(Post).untaken()]


def _recorded_as_call(scope: Scope, *, otherwise: bool) -> bool:
    """Whether code had to wait at this place when it was recorded; ``otherwise`` if it was not."""
    replay, path = scope.execution.replay, scope.place
    if path in replay.calls or path in replay.notes:
        return path in replay.calls
    return otherwise


def _is_noted(inner: CallScope) -> bool:
    """The wait was over when it was recorded, though the call had not ended."""
    return inner.place in inner.execution.replay.notes


def _full(log: Log, to: str) -> Box | None:
    """A mailbox that would get the message, and has no room."""
    boxes = log.fold(Post).boxes_for(to)
    return next((box for box in boxes if len(box.waiting) >= box.capacity), None)


def _mailbox_full(to: str, full: Box | None, timeout_s: float) -> MailboxFullError:
    name, capacity = (to, 0) if full is None else (full.name, full.capacity)
    return MailboxFullError(
        f"mailbox {name!r} was full for {timeout_s:g} s: {capacity} messages wait in it and nobody "
        f"takes them; the message to {to!r} was not sent. Receive more often, open it with more "
        "capacity, or wait longer"
    )


def _box(log: Log, name: str) -> Box:
    return log.fold(Post).boxes[name]


def _message(log: Log, seq: int) -> Message[Any]:
    written = log.envelopes[seq].event
    assert isinstance(written, Written)
    body = log.values.decode(written.value)
    return Message(id=seq, sender=written.by, to=written.key, body=body)


def _reply_address(question: int) -> str:
    return f"reply to {question}"


def _check_address(name: str) -> None:
    if not name.strip() or not name.isprintable():
        raise UsageError(f"messages go to a name of printable text, not to {name!r}")
