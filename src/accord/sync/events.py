"""Events: what happens is told once, to whoever subscribes; each sees it once, in order.

Choose them where who tells need not know who listens, or where many listen. (To hand work to one
who answers for it, send a message.) Telling costs one event of the log, seeing one costs another,
or three if it had to be waited for, and a subscription two.

::

    with on(Alarm, where=lambda alarm: alarm.level > 3, until=AllClear) as alarms:
        async for alarm in alarms:  # elsewhere: await emit(Alarm(level=5))
            await call_for_help(alarm.value)

A subscription is a place in the log with a filter. It begins at the beginning of the run: so it
misses nothing, however late it is made and whatever else was faster. With ``from_now``, it begins
where it is made. It goes on by itself after each event. What comes after its end (that of its
block, or an event of ``until``) is late: not delivered, and counted. What was seen is recorded, so
a replay sees the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload

from accord.clock import NANOSECONDS
from accord.comm.mailbox import check_address
from accord.comm.put import space_of, writing_scope
from accord.comm.space import SpaceState, any_written
from accord.errors import CallTimeoutError, EventsEndedError, UnknownTypeError, UsageError
from accord.flow.call import call
from accord.flow.note import note, note_when
from accord.flow.scope import CallScope, Scope, current_scope
from accord.log.events import Envelope, Looked, Noted, Reducer, Space, Written
from accord.log.log import Log
from accord.log.types import find_type, type_name

E = TypeVar("E")


@dataclass(frozen=True, kw_only=True)
class Event(Generic[E]):
    """Something that happened: ``id`` is its number in the log.

    ``value`` is what was told or sent; of a key of the board, what was put there, and ``how``.
    """

    id: int
    key: str
    value: E
    how: Reducer
    by: str


@dataclass(frozen=True, kw_only=True)
class SubscriptionStatistics:
    """Events that were delivered, that wait, and that came after the end."""

    delivered: int
    waiting: int
    late: int


async def emit(event: Any) -> int:
    """Tell all who subscribe to the class of ``event``, or to one above it; its number in the log.

    An event is a value that the log can hold, best of a class of its own: a dataclass, a
    msgspec.Struct, a Pydantic model.
    """
    key = type_name(event.__class__)
    what = f"events append {key}"
    scope = writing_scope(what, event)
    log = scope.execution.log

    def decide(scope: Scope, _position: int) -> Noted:
        value = log.values.encode(event, "an event")
        return Written(key=key, value=value, space="events", how="append", by=scope.agent)

    told = note(what, decide, scope)
    space_of(log, "events")  # whoever waits for it wakes
    return told.seq


@overload
def on(
    source: type[E],
    /,
    *,
    where: Callable[[E], bool] | None = None,
    until: type | str | None = None,
    from_now: bool = False,
) -> Subscription[E]: ...
@overload
def on(
    source: str,
    /,
    *,
    where: Callable[[Any], bool] | None = None,
    until: type | str | None = None,
    from_now: bool = False,
) -> Subscription[Any]: ...
@overload
def on(
    *,
    outside: str,
    where: Callable[[Any], bool] | None = None,
    until: type | str | None = None,
    from_now: bool = False,
) -> Subscription[Any]: ...


def on(
    source: type | str | None = None,
    /,
    *,
    outside: str | None = None,
    where: Callable[[Any], bool] | None = None,
    until: type | str | None = None,
    from_now: bool = False,
) -> Subscription[Any]:
    """Subscribe, inside a flow, to one of these.

    ``source``    a class, for what is emitted of it or of a class below it; or a key of the board,
                  in which ``*`` stands for any text, for each write
    ``outside``   a name, for each message from outside of the run (``accord signal RUN NAME
                  VALUE``)

    ``where``     which of them, by their value; it must say the same of the same
    ``until``     a class or a key of the board: an event of it, which is not delivered, is the end
    ``from_now``  leave out what was before
    """
    if (source is None) == (outside is None):
        raise UsageError("on() takes a class, a key of the board, or outside= with a name")
    wanted = _source(source) if outside is None else _outside(outside)
    return Subscription(wanted, where, None if until is None else _source(until), from_now=from_now)


class Subscription(Generic[E]):
    """What :func:`on` gives: ``async for``, or :meth:`next`; best in a ``with``, which ends it.

    Shared by several branches, it gives each event to one of them.
    """

    def __init__(
        self,
        source: _Source,
        where: Callable[[Any], bool] | None,
        until: _Source | None,
        *,
        from_now: bool,
    ) -> None:
        self._source = source
        self._where = where
        self._until = until
        opened = _look(f"subscribe to {source.title}")
        place = self._log.envelopes[opened].scope
        self._what = f"event of {source.title}, subscribed at {place}"
        self._begin = opened if from_now else 0
        self._passed = self._begin
        """Up to here, there is nothing to deliver."""
        self._closed = False
        self._closed_at: int | None = None

    async def next(self, *, timeout_s: float | None = None) -> Event[E]:
        """The next event, as soon as there is one.

        Raises :class:`accord.errors.EventsEndedError` at the end, and
        :class:`accord.errors.CallTimeoutError` after ``timeout_s`` without an event.
        """
        if timeout_s is not None and not timeout_s >= 0:
            raise UsageError(f"next: timeout_s is a time of at least 0 or None, not {timeout_s!r}")
        title = self._source.title
        if self._closed:
            raise EventsEndedError(f"the subscription to {title} has ended; make another with on()")
        hearing = nullcontext()
        if self._source.is_outside:
            hearing = current_scope("next()").execution.hearing()
        try:
            with hearing:
                looked = await note_when(
                    self,
                    self._what,
                    self._decide,
                    kind="watch",
                    name=title,
                    timeout_s=timeout_s,
                )
        except CallTimeoutError as error:
            raise CallTimeoutError(
                f"nothing of {title} has come within {timeout_s or 0:g} s; wait longer, or see "
                "that somebody tells of it"
            ) from error
        assert isinstance(looked.event, Looked)
        if not looked.event.took:
            raise EventsEndedError(f"the subscription to {title} has come to its end")
        return _event(self._log, looked.event.took[0])

    def close(self) -> None:
        """No more events are delivered from here on."""
        if not self._closed:
            self._closed = True
            self._closed_at = _look(f"end of {self._source.title}")

    def statistics(self) -> SubscriptionStatistics:
        """How it stands. For people: it is not recorded, so no flow may depend on it."""
        ends = [end for end in (self._closed_at, self._ends_at()) if end is not None]
        numbers = self._source.numbers(self._log, self._last)
        left = [number for number in numbers if self._is_wanted(number)]
        late = sum(number > min(ends) for number in left) if ends else 0
        delivered = self._log.fold(Deliveries).count[self._what]
        return SubscriptionStatistics(delivered=delivered, waiting=len(left) - late, late=late)

    def met(self) -> bool:
        """There is something to see: an event, or the end."""
        following = self._following()
        return following is not None and following.failure is None

    def changed(self) -> Awaitable[None]:
        """Returns when there may be something to see."""
        following = self._following()
        if following is not None and following.failure is not None:
            raise following.failure
        sources = [self._source] if self._until is None else [self._source, self._until]
        return any_written([(space_of(self._log, each.space), each.pattern) for each in sources])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is None:
            self.close()
        self._closed = True  # of a run that stopped here, nothing is recorded: it goes on

    def __aiter__(self) -> AsyncIterator[Event[E]]:
        return self

    async def __anext__(self) -> Event[E]:
        try:
            return await self.next()
        except EventsEndedError:
            raise StopAsyncIteration from None

    @property
    def _log(self) -> Log:
        return current_scope(f"a subscription to {self._source.title}").execution.log

    @property
    def _last(self) -> int:
        """The number of the event that was delivered last, to whichever branch."""
        return self._log.fold(Deliveries).last.get(self._what, self._begin)

    def _decide(self, scope: Scope, _position: int) -> Noted:
        took: tuple[int, ...] = ()
        following = self._following()
        if following is not None:
            scope.follow(following.number)
            took = () if following.is_end else (following.number,)
        return Looked(what=self._what, by=scope.agent, took=took)

    def _following(self) -> _Following | None:
        """What comes next, if it has come."""
        end = self._ends_at()
        for number in self._source.numbers(self._log, max(self._last, self._passed)):
            if end is not None and number >= end:
                break
            try:
                if self._is_wanted(number):
                    return _Following(number)
            except UsageError as error:
                return _Following(number, failure=error)
            self._passed = number
        return None if end is None else _Following(end, is_end=True)

    def _ends_at(self) -> int | None:
        """The number of the event that is the end, if it has come."""
        if self._until is None:
            return None
        return next(self._until.numbers(self._log, self._begin), None)

    def _is_wanted(self, number: int) -> bool:
        if self._where is None:
            return True
        try:
            return bool(self._where(_event(self._log, number).value))
        except Exception as error:
            raise UsageError(
                f"where= of the subscription to {self._source.title} fails on event {number}: "
                f"{type(error).__name__}: {error}; let it say False of what it does not know"
            ) from error


class _Following(NamedTuple):
    """What a subscription comes to next."""

    number: int
    is_end: bool = False
    failure: UsageError | None = None
    """There is no telling whether it is wanted."""


class Deliveries:
    """What subscriptions have delivered: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.last: dict[str, int] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        if isinstance(event, Looked) and event.took:
            self.count[event.what] += 1
            self.last[event.what] = event.took[-1]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where events come from: the writes of a space that match."""

    title: str
    space: Space
    pattern: str
    kind: type | None = None
    is_outside: bool = False

    def numbers(self, log: Log, after: int) -> Iterator[int]:
        """The events after number ``after``, so far."""
        state: SpaceState = space_of(log, self.space)
        while (number := state.first(self.pattern, after)) is not None:
            if self._takes(log, number):
                yield number
            after = number

    def _takes(self, log: Log, number: int) -> bool:
        if self.kind is None and not self.is_outside:
            return True
        written = log.envelopes[number].event
        assert isinstance(written, Written)
        return written.post != 0 if self.is_outside else self._is_below(written.key)

    def _is_below(self, name: str) -> bool:
        assert self.kind is not None
        try:
            return issubclass(_class(name), self.kind)
        except UnknownTypeError:
            return False  # it has gone: whatever it was, nobody can ask for it


@lru_cache(maxsize=256)
def _class(name: str) -> type:
    return find_type(name, None)


def _source(wanted: object) -> _Source:
    if isinstance(wanted, str):
        if not wanted.strip() or not wanted.isprintable():
            raise UsageError(f"a key of the board is printable text, not {wanted!r}")
        return _Source(title=f"key {wanted}", space="board", pattern=wanted)
    if isinstance(wanted, type):
        return _Source(title=type_name(wanted), space="events", pattern="*", kind=wanted)
    raise UsageError(f"events are of a class, or of a key of the board (a text), not {wanted!r}")


def _outside(name: str) -> _Source:
    check_address(name)
    return _Source(title=f"signal {name}", space="mail", pattern=name, is_outside=True)


def _event(log: Log, number: int) -> Event[Any]:
    written = log.envelopes[number].event
    assert isinstance(written, Written)
    value = log.values.decode(written.value)
    return Event(id=number, key=written.key, value=value, how=written.how, by=written.by)


def _look(what: str) -> int:
    return note(what, lambda scope, _position: Looked(what=what, by=scope.agent)).seq


async def ticks(seconds: float, times: int | None = None) -> AsyncIterator[int]:
    """1, 2, 3, ... every ``seconds`` on the run's clock, ``times`` times; each tick is recorded.

    They do not drift: each is due so long after the one before was, whatever was done in between.
    What has become overdue comes at once.
    """
    if not seconds > 0 or (times is not None and times < 0):
        raise UsageError(f"ticks: a time above 0 and a number from 0, not {seconds!r}, {times!r}")
    due_ns: int | None = None
    number = 0
    while times is None or number < times:
        number += 1
        due_ns = await _tick(seconds, number, due_ns)
        yield number


async def _tick(seconds: float, number: int, last_ns: int | None) -> int:
    """When this tick was due."""

    async def body(scope: CallScope) -> int:
        log = scope.execution.log
        began_ns = log.envelopes[scope.start].at if last_ns is None else last_ns
        due_ns = began_ns + round(seconds * NANOSECONDS)
        await asyncio.sleep(max(0, due_ns - log.now()) / NANOSECONDS)
        return due_ns

    due_ns: int = await call("sleep", "tick", [seconds, number], body, pure=True)
    return due_ns
