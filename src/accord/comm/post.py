"""Who has taken which message, as a fold of the log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from accord.log.events import Envelope, Looked, MailboxOpened, MessageTaken, Written

EVERYBODY = "*"


@dataclass(slots=True)
class Box:
    """A mailbox: the messages that wait in it, by number, and how many it has given out."""

    name: str
    addresses: tuple[str, ...]
    capacity: int
    waiting: deque[int] = field(default_factory=deque[int])
    taken: int = 0
    _waiters: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

    async def changed(self) -> None:
        """Return when a message came or was taken."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def arrive(self, seq: int) -> None:
        """A message came."""
        self.waiting.append(seq)
        self._wake()

    def take(self, seq: int) -> None:
        """A message was taken out."""
        self.waiting.remove(seq)  # the first, but for messages of an earlier process
        self.taken += 1
        self._wake()

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


class Post:
    """All messages and mailboxes of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self._messages: dict[int, Written] = {}
        self._taken: set[int] = set()
        self._following: dict[str, list[Box]] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        match event:
            case MessageTaken():
                self.boxes[event.mailbox].take(event.message)
                self._taken.add(event.message)
            case Written():
                if event.space == "mail":
                    self._messages[envelope.seq] = event
                    for box in self.boxes_for(event.key):
                        _deliver(box, envelope.seq, event)
            case MailboxOpened():
                self._open(event)
            case Looked():
                self._look(event.took)
            case _:
                pass

    def boxes_for(self, address: str) -> list[Box]:
        """The mailboxes that get what is sent to ``address``."""
        return self._following.get(address, [])

    def untaken(self) -> Iterator[int]:
        """The messages that nobody has taken, by number."""
        return (seq for seq in self._messages if seq not in self._taken)

    def _open(self, opened: MailboxOpened) -> None:
        if opened.name in self.boxes:
            return
        addresses = tuple(dict.fromkeys((opened.name, *opened.topics, EVERYBODY)))
        box = self.boxes[opened.name] = Box(opened.name, addresses, opened.capacity)
        for address in addresses:
            self._following.setdefault(address, []).append(box)
        for seq, message in self._messages.items():
            if message.key in box.addresses:
                _deliver(box, seq, message)

    def _look(self, names: tuple[str, ...]) -> None:
        """An agent read all that had been sent to ``names``."""
        if not names:
            return
        for seq, message in self._messages.items():
            if message.key in (*names, EVERYBODY):
                self._taken.add(seq)


def _deliver(box: Box, seq: int, message: Written) -> None:
    if message.by != box.name or message.key == box.name:  # not one's own to a topic
        box.arrive(seq)
