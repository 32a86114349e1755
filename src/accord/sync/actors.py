"""Actors: each has a name, a mailbox and a state, and handles one message at a time.

Choose them where parts of the work talk to each other and none waits for all (that is ``gather``),
or where only one at a time may change something. A message costs four small events (sent, taken,
handling begun, handled) and the state that it leaves; there is no point where all meet.

::

    async def count(total: int, message: Message[int]) -> int:
        return total + message.body


    async with actors(Actor("counter", count, state=0)) as team:
        await send("counter", 5)
    team.state("counter")

They live beside the block. When it ends, what waits in their mailboxes is handled to the end, with
all that this leads to; then they end, too. If the block fails, or an actor's failure is not to be
skipped, all are cancelled, and the first failure is raised.

An actor's state is what its last handled message left, read off the log each time: what a handler
that failed has done to it is forgotten. A handler sends at once; what it returns as a reply goes
out once the message is handled. On a resume, what was handled is not handled again.

Actors that wait for each other's replies, or for room in each other's full mailboxes, wait for
ever: give ``ask`` and ``send`` a ``timeout_s`` where messages go round.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from accord.clock import NANOSECONDS
from accord.comm.mailbox import Mailbox, Message, close_mailbox, reply, send, take
from accord.comm.post import Box, Post
from accord.errors import UsageError
from accord.flow.attempts import is_final, with_attempts
from accord.flow.call import call
from accord.flow.fork import Fork
from accord.flow.note import note
from accord.flow.scope import CallScope, Scope, own_scope
from accord.flow.suspend import Suspended
from accord.log.events import (
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Looked,
    MailboxClosed,
)
from accord.log.waiters import Waiters
from accord.sync.actor import Actor, ActorStatistics, Handled, Handlings, actor_statistics
from accord.sync.gather import Group


class Team:
    """The actors of one block. Answers in the block, and after it."""

    def __init__(self, scope: Scope, lives: Sequence[_Life]) -> None:
        self._scope = scope
        self._lives = {life.actor.name: life for life in lives}

    def state(self, name: str) -> Any:
        """The state that an actor's last handled message left; recorded as a look."""
        life = self._life(name)
        what = f"state of {name}"
        seen = note(what, lambda scope, _position: Looked(what=what, by=scope.agent))
        return life.state(seen.seq)

    def statistics(self, name: str) -> ActorStatistics:
        """How it stands. For people: it is not recorded, so no flow may depend on it."""
        self._life(name)
        return actor_statistics(self._scope.execution.log, name)

    def _life(self, name: str) -> _Life:
        if name not in self._lives:
            raise UsageError(f"no actor {name!r} here; there are {list(self._lives)}")
        return self._lives[name]


@asynccontextmanager
async def actors(*members: Actor, drain_s: float | None = None) -> AsyncGenerator[Team]:
    """Let actors live beside the block of an ``async with``, which gets the :class:`Team`.

    When the block ends, they handle all that waits; after ``drain_s`` (0: at once), what they are
    at is cancelled, and the rest is left as dead letters.
    """
    _check(members, drain_s)
    scope = own_scope("actors", "actors")
    with Fork("actors", len(members)) as fork, scope.execution.hearing():
        block = _Block(scope, fork, members)
        try:
            try:
                async with Group() as group:
                    block.start(group)
                    await asyncio.sleep(0)  # they open their mailboxes
                    try:
                        yield Team(scope, block.lives)
                    except Suspended as error:
                        block.suspended.append(error)
                        await block.drained()  # the others go on
                        group.drop()
                    except Exception as error:
                        block.failure = block.failure or error
                        raise
                    else:
                        await block.end(group, drain_s)
            except BaseExceptionGroup:
                # The first failure is raised in its place, outside of here: with its own causes.
                if block.failure is None and not block.suspended:
                    raise
            if block.failure is not None:
                raise block.failure
            if block.suspended:
                raise fork.suspended(block.suspended)
        finally:
            if block.failure is not None or not block.suspended:
                block.join()
        block.close_dropped()


class _Block:
    """Actors at work beside the code of a block."""

    def __init__(self, scope: Scope, fork: Fork, members: Sequence[Actor]) -> None:
        self.failure: Exception | None = None
        self.suspended: list[Suspended] = []
        self.news = Waiters()
        """An actor has nothing to do, or has ended."""
        self.ending: int | None = None
        """The event from which on they end as soon as nothing waits for them."""
        self.is_over = fork.is_over
        self.lives = [_Life(each, fork.place(i), scope, self) for i, each in enumerate(members)]
        self._scope = scope
        self._fork = fork
        self._last: tuple[int, ...] | None = None

    def start(self, group: Group) -> None:
        for index in range(len(self.lives)):
            if not self._fork.was_dropped(index):
                group.start(self._branch(index), self._fork.context(index))

    async def end(self, group: Group, drain_s: float | None) -> None:
        """Let the actors end: when all is handled, or in the middle of it."""
        left_s = None if drain_s is None else self._left_s(drain_s)
        if self._fork.has_met or not await self.drained(left_s):
            left = [index for index, life in enumerate(self.lives) if not life.has_ended]
            self.join(dropped=left)
            group.drop()
        elif self.suspended:
            group.drop()
        else:
            drained = note("end of actors", lambda _scope, _position: Looked(what="end of actors"))
            self.ending = drained.seq
            for life in self.lives:
                life.wake()

    def join(self, *, dropped: Iterable[int] = ()) -> None:
        """What comes next follows from what the actors did, and from what the block did."""
        if self._last is None:
            self._last = self._scope.take_causes()
        self._fork.join("fail_fast", dropped=dropped)
        for seq in self._last:
            self._scope.follow(seq)

    def close_dropped(self) -> None:
        """Senders need not wait for those that were cancelled."""
        for index, life in enumerate(self.lives):
            if self._fork.was_dropped(index) or not life.has_closed:
                close_mailbox(life.actor.name)

    async def drained(self, left_s: float | None = None) -> bool:
        """Wait until all has been handled; False if that takes longer."""
        if self._scope.place in self._scope.execution.replay.notes:
            return True
        limit = asyncio.timeout(left_s)
        try:
            async with limit:
                while not all(life.is_idle for life in self.lives):
                    await self.news.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True

    def _left_s(self, drain_s: float) -> float:
        """Of ``drain_s`` since the block ended: before a crash, perhaps."""
        ended = note("end of a block", lambda _scope, _position: Looked(what="end of a block"))
        return drain_s - (self._scope.execution.log.now() - ended.at) / NANOSECONDS

    async def _branch(self, index: int) -> None:
        life = self.lives[index]
        self._fork.begin(index)
        try:
            await life.live()
            self._fork.check_complete(index)
            return
        except Suspended as error:
            self._fork.failed(error)
            self.suspended.append(error)
        except BaseException as error:
            self._fork.failed(error)
            if isinstance(error, Exception):
                self.failure = self.failure or error
            raise
        finally:
            life.has_ended = True
            self.news.wake()
        await self._standstill()

    async def _standstill(self) -> None:
        """The others go on, until all that they do is wait: for this actor, as like as not.

        To end a wait loses nothing: it is made again when the run is resumed with the answer.
        """
        log = self._scope.execution.log
        seen = -1
        while seen != len(log.envelopes) or log.fold(Work).open:
            seen = len(log.envelopes)
            if log.fold(Work).open:
                await log.changed(seen)
            else:
                await asyncio.sleep(0)
        raise _StandstillError


class _Life:
    """One actor at work, in a branch of its own."""

    def __init__(self, actor: Actor, place: str, scope: Scope, block: _Block) -> None:
        self.actor = actor
        self.has_ended = False
        self.has_closed = False
        self._place = place
        self._block = block
        self._log = scope.execution.log
        self._notes = scope.execution.replay.notes
        self._first = self._log.values.encode(actor.state, f"the state of actor {actor.name!r}")
        self._waits = False

    @property
    def is_idle(self) -> bool:
        """It does nothing, and nothing waits for it."""
        return self.has_ended or (self._waits and not self._box.waiting)

    def wake(self) -> None:
        """Let it look whether it is to end."""
        if not self.has_ended:
            self._box.changed.wake()

    def state(self, position: int) -> Any:
        """What the last message that was handled before ``position`` left."""
        decode = self._log.values.decode
        left = self._log.fold(Handlings).state(self._place, position, decode)
        return decode(self._first) if left is msgspec.UNSET else left

    async def live(self) -> None:
        """Handle what comes, until told to end."""
        actor = self.actor
        Mailbox[Any](actor.name, topics=actor.topics, capacity=actor.capacity)
        scope = own_scope(actor.name, actor.name)
        while await self._something_waits(scope):
            if await self._handle(take(actor.name)):
                break
        if self._block.ending is not None:
            scope.follow(self._block.ending)
        close_mailbox(actor.name)
        self.has_closed = True

    @property
    def _box(self) -> Box:
        return self._log.fold(Post).boxes[self.actor.name]

    async def _something_waits(self, scope: Scope) -> bool:
        """Wait for a message; False if there will be none.

        Not a call: nobody can cancel the wait but the block, and then nothing follows it.
        """
        box, block = self._box, self._block
        while (recorded := self._notes.get(scope.place)) is None:
            if not block.is_over and (box.waiting or block.ending is not None):
                return bool(box.waiting)
            self._waits = True
            block.news.wake()
            await box.changed.wait()
            self._waits = False
        return not isinstance(recorded.event, MailboxClosed)

    async def _handle(self, message: Message[Any]) -> bool:
        """Whether the actor is to stop."""
        actor = self.actor

        async def body(scope: CallScope) -> Any:
            scope.agent = actor.name
            scope.askers = lambda: self._askers(scope, message.id)
            return await with_attempts(
                scope,
                lambda _inner: actor.handler(self.state(scope.start), message),
                lambda attempt: 0.0 if attempt <= actor.restarts else None,
            )

        try:
            made = await call("handle", actor.name, [message.body], body)
        except Exception as error:
            if actor.on_failure == "stop" or is_final(error):
                raise
            failure = error  # dealt with outside of here: the actor goes on past it
        else:
            if not isinstance(made, Handled):
                return False
            if made.reply is not msgspec.UNSET and message.asks:
                await reply(message, made.reply, sender=actor.name)
            return made.stop
        await send(f"{actor.name}/dead", message.body, sender=message.sender)
        if message.asks:
            await reply(message, failure, sender=actor.name)
        return False

    def _askers(self, scope: CallScope, handled: int) -> list[Scope]:
        """Who waits for what the actor does now: also those who have to wait until it is done."""
        askers = scope.execution.askers
        return [askers[each] for each in (handled, *self._box.waiting) if each in askers]


class _StandstillError(Exception):
    """Lets go of a block that waits for an actor that waits for a person."""


class Work:
    """Calls that do more than wait for others: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        match envelope.event:
            case CallStarted(kind="request" | "step" | "tool" | "sleep" | "search"):
                self.open.add(envelope.seq)
            case CallFinished(call=call) | CallFailed(call=call) | CallCancelled(call=call):
                self.open.discard(call)
            case _:
                pass


def _check(members: Sequence[Actor], drain_s: float | None) -> None:
    names = [each.name for each in members]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not members or twice:
        what = f"two are called {twice[0]!r}" if twice else "there is none"
        raise UsageError(f"actors: at least one, each with a name of its own; {what}")
    if drain_s is not None and not drain_s >= 0:
        raise UsageError(f"actors: drain_s is a time of at least 0 or None, not {drain_s!r}")
