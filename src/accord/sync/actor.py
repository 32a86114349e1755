"""What an actor is, and what the log says of it: how it stands, and the state that it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import msgspec

from accord.comm.mailbox import DEFAULT_CAPACITY, Message, check_address, send
from accord.comm.post import Post
from accord.errors import UsageError
from accord.flow.function import is_async
from accord.log.events import (
    AttemptFailed,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Value,
)
from accord.log.log import Log

Handler = Callable[[Any, Message[Any]], Awaitable[Any]]
"""``handler(state, message)`` returns the new state, or a :class:`Handled`."""


class Handled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a handler returns if there is more to say than the new state.

    Without a ``state``, it stays as it was. ``reply`` goes to who asked, if anybody did. With
    ``stop``, the actor takes no more messages.
    """

    state: Any = msgspec.UNSET
    reply: Any = msgspec.UNSET
    stop: bool = False


@dataclass(frozen=True)
class Actor:
    """What an actor is. Holds no state itself: one may live in many runs at once.

    ``handler``     ``async def handler(state, message)``, which returns the new state or a
                    :class:`Handled`; :func:`answering` makes one of an agent or a step
    ``state``       what it begins with
    ``topics``      names beside its own whose messages it gets
    ``capacity``    the most messages that wait for it; then senders do
    ``restarts``    how often a message is tried again if its handler fails, with the state from
                    before it; the calls that the handler had made are made again
    ``on_failure``  what then: ``stop`` raises the failure and ends all; ``skip`` sends the message
                    on to ``NAME/dead`` (a dead letter, unless somebody takes it), raises the
                    failure where it was asked, and goes on with the next one
    """

    name: str
    handler: Handler
    _: KW_ONLY
    state: Any = None
    topics: str | Iterable[str] = ()
    capacity: int = DEFAULT_CAPACITY
    restarts: int = 0
    on_failure: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        check_address(self.name)
        if hasattr(self.handler, "name") or not is_async(self.handler):
            raise UsageError(
                f"actor {self.name!r}: a handler is an async def handler(state, message), not "
                f"{self.handler!r}; for an agent or a step, say answering(it)"
            )
        if self.capacity < 1 or self.restarts < 0 or self.on_failure not in ("stop", "skip"):
            raise UsageError(
                f"actor {self.name!r}: a capacity of at least 1, restarts of at least 0 and "
                f"on_failure 'stop' or 'skip', not {self.capacity!r}, {self.restarts!r} and "
                f"{self.on_failure!r}"
            )


@dataclass(frozen=True, kw_only=True)
class ActorStatistics:
    """Messages handled, and failed for good; further attempts; waiting now, and at most so far."""

    handled: int
    failed: int
    restarts: int
    waiting: int
    max_waiting: int


def answering(
    function: Callable[[Any], Awaitable[Any]], *, to: str | Iterable[str] = ()
) -> Handler:
    """A handler that gives a message's body to an agent or a step.

    The answer is the reply, and is sent to each of ``to``. It keeps no state.
    """
    receivers = (to,) if isinstance(to, str) else tuple(to)

    async def handler(_state: Any, message: Message[Any]) -> Handled:
        answer = await function(message.body)
        for name in receivers:
            await send(name, answer)
        return Handled(reply=answer)

    return handler


def actor_statistics(log: Log, name: str) -> ActorStatistics:
    """How the actors of that name stand, so far, in the run that ``log`` is of."""
    found, box = log.fold(Handlings), log.fold(Post).boxes.get(name)
    return ActorStatistics(
        handled=found.handled[name],
        failed=found.failed[name],
        restarts=found.restarts[name],
        waiting=0 if box is None else len(box.waiting),
        max_waiting=0 if box is None else box.most,
    )


class Handlings:
    """What actors have made of their messages: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self._begun: dict[int, CallStarted] = {}
        self._failed: set[str] = set()
        """The places of messages that failed for good."""
        self._made: dict[str, list[tuple[int, Value]]] = {}
        """What was returned, at each actor's place, with the number of the event."""

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        match event:
            case CallStarted(kind="handle"):
                self._begun[envelope.seq] = event
            case CallFinished() if event.call in self._begun:
                self.handled[self._begun[event.call].name] += 1
                if envelope.scope in self._failed:  # and was made again
                    self._failed.remove(envelope.scope)
                    self.failed[self._begun[event.call].name] -= 1
                place = envelope.scope.rpartition("/")[0]
                self._made.setdefault(place, []).append((envelope.seq, event.output))
            case CallFailed() if event.call in self._begun and envelope.scope not in self._failed:
                self._failed.add(envelope.scope)
                self.failed[self._begun[event.call].name] += 1
            case AttemptFailed() if event.call in self._begun:
                self.restarts[self._begun[event.call].name] += 1
            case _:
                pass

    def state(self, place: str, position: int, decode: Callable[[Value], Any]) -> Any:
        """What the actor at ``place`` has made of its state before ``position``, else UNSET."""
        made = self._made.get(place, [])
        for index in reversed(range(len(made))):
            seq, value = made[index]
            if seq >= position:
                continue
            returned = decode(value)
            state = returned.state if isinstance(returned, Handled) else returned
            if state is not msgspec.UNSET:
                return state
            del made[index]  # it says nothing of the state, now or later
        return msgspec.UNSET
