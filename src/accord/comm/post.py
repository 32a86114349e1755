"""Who has taken which message, as a fold of the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from accord.comm.space import EVERYBODY
from accord.log.events import (
    Envelope,
    Looked,
    MailboxClosed,
    MailboxOpened,
    MessageTaken,
    Written,
)
from accord.log.waiters import Waiters


@dataclass(slots=True)
class Box:
    """A mailbox: the messages that wait in it, by number, and how many it has given out."""

    opened: MailboxOpened
    waiting: deque[int] = field(default_factory=deque[int])
    taken: int = 0
    most: int = 0
    """The most messages that have waited in it."""
    is_closed: bool = False
    changed: Waiters = field(default_factory=Waiters)
    """A message came, or was taken; or it was closed."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """What it takes messages from."""
        everybody = (EVERYBODY,) if self.opened.broadcasts else ()
        return (self.opened.name, *self.opened.topics, *everybody)

    @property
    def is_full(self) -> bool:
        """Senders wait. Nobody waits for who takes no more, and who answers waits for nobody."""
        if self.is_closed or not self.opened.broadcasts:
            return False
        return len(self.waiting) >= self.opened.capacity


class Post:
    """All messages and mailboxes of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.boxes: dict[str, Box] = {}
        self._sent: dict[str, list[int]] = {}
        """The messages to each address, by number."""
        self._messages: dict[int, Written] = {}
        self._taken: set[int] = set()
        self._following: dict[str, list[Box]] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        match event:
            case MessageTaken():
                self._take(self.boxes[event.mailbox], event.message)
            case Written(space="mail"):
                self._sent.setdefault(event.key, []).append(envelope.seq)
                self._messages[envelope.seq] = event
                for box in self.boxes_for(event.key):
                    self._deliver(box, envelope.seq)
            case MailboxOpened() if event.name not in self.boxes:
                self._open(Box(event))
            case MailboxOpened():
                self.boxes[event.name].is_closed = False
            case MailboxClosed():
                self._close(self.boxes[event.name])
            case Looked():
                self._show(event.took)
            case _:
                pass

    def boxes_for(self, address: str) -> list[Box]:
        """The mailboxes that get what is sent to ``address``."""
        return self._following.get(address, [])

    def is_taken(self, message: int) -> bool:
        """Whether somebody has taken the message, or an agent was shown it."""
        return message in self._taken

    def untaken(self) -> Iterator[int]:
        """The messages that nobody has taken, by number."""
        return (number for number in self._messages if number not in self._taken)

    def _open(self, box: Box) -> None:
        self.boxes[box.opened.name] = box
        sent: list[int] = []
        for address in dict.fromkeys(box.addresses):
            self._following.setdefault(address, []).append(box)
            sent += self._sent.get(address, ())
        for message in sorted(sent):
            self._deliver(box, message)

    def _deliver(self, box: Box, message: int) -> None:
        written = self._messages[message]
        if written.by == box.opened.name != written.key:
            return  # what one sends to a topic or to everybody is for the others
        box.waiting.append(message)
        box.most = max(box.most, len(box.waiting))
        box.changed.wake()

    def _close(self, box: Box) -> None:
        box.is_closed = True
        box.changed.wake()

    def _take(self, box: Box, message: int) -> None:
        box.waiting.remove(message)  # the first, but for two who take from one box
        box.taken += 1
        self._taken.add(message)
        box.changed.wake()

    def _show(self, messages: Iterable[int]) -> None:
        """An agent was shown these; those sent to it alone need not be taken from its mailbox."""
        for message in messages:
            written = self._messages.get(message)
            if written is None:
                continue  # an event
            self._taken.add(message)
            box = self.boxes.get(written.key)
            if box is not None and message in box.waiting:
                self._take(box, message)
