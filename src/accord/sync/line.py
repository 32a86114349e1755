"""A pipeline at work: which stage begins which item when.

Decided in one place, :meth:`Line._begin`, whenever something has ended: nothing waits for a queue.
What begins follows from the end of the stage before on that item, and from what made way for it.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from accord.flow.fork import Fork
from accord.flow.scope import Scope, enter, leave
from accord.flow.suspend import Suspended
from accord.sync.gather import Group, Policy
from accord.sync.stage import END, Source, Stage
from accord.sync.stream import Stream


@dataclass(eq=False)
class _Item:
    ends: tuple[int, ...]
    """The last events of what was done for it."""
    value: Any = None
    passed: int = 0
    """The lanes that have ended with it."""
    failure: BaseException | None = None
    stream: Stream | None = None
    """What its present lane reads while the one before writes."""


@dataclass(eq=False)
class _Lane:
    """A stage at work."""

    number: int
    stage: Stage
    scope: Scope
    begun: int = 0
    running: int = 0
    ended: int = 0
    freed: int = 0
    """The last event that made way for another item here."""

    @property
    def is_full(self) -> bool:
        return self.running == self.stage.width


class _Place(Scope):
    """The place of one item in one lane."""

    __slots__ = ("before", "index", "lane", "line", "stream")

    def __init__(
        self, line: Line, lane: _Lane, path: str, before: tuple[int, ...], index: int
    ) -> None:
        super().__init__(path, before, lane.scope.execution, None, lane.scope)
        self.handling = lane.scope.handling
        self.before = before
        self.line, self.lane, self.index = line, lane, index
        self.stream: Stream | None = None

    @property
    def is_reading(self) -> bool:
        """It has not come to the end of what the lane before writes."""
        return self.stream is not None and not self.stream.read_to_its_end

    def knows(self, path: str, seq: int) -> bool:
        """As for any scope. Whether it came before is a matter of stages and items, not of time."""
        below = self.line.place_of(path)
        if below is None or self.outer is None:
            return self.outer is None or self.outer.knows(path, seq)
        return self.line.precedes(below, self)


class Line:
    """The lanes of one pipeline, and the items on their way. What can begin, begins at once."""

    def __init__(
        self, fork: Fork, source: Source, stages: list[Stage], *, policy: Policy, room: int | None
    ) -> None:
        self._fork = fork
        self._source = source
        self._policy: Policy = policy
        self._room = room
        """How many items may wait behind a stage; None for a strict pipeline."""
        self._lanes = [
            _Lane(number, stage, fork.scope(number)) for number, stage in enumerate(stages)
        ]
        self._path = self._lanes[0].scope.path.rpartition("/")[0]
        self._drawn = self._lanes[0].scope.take_causes()
        """The last events of the source."""
        self._items: list[_Item] = []
        self._all_drawn = False
        self._group = Group()
        self._context: Context = copy_context()
        self._failure: Exception | None = None
        self._suspended: list[Suspended] = []

    async def run(self) -> list[Any]:
        try:
            async with self._group:
                self._advance()
            if self._failure is not None:
                raise self._failure
            if self._suspended:
                self._lead_on()
                raise self._fork.suspended(self._suspended)
            for lane in self._lanes:
                self._fork.check_complete(lane.number)
        finally:
            if not self._all_drawn:
                await self._close_source()
            if not self._suspended:
                self._lead_on()
                self._fork.join(self._policy)
        return [each.value if each.failure is None else each.failure for each in self._items]

    def _lead_on(self) -> None:
        """What comes after the pipeline follows from all that was done in it."""
        ends = set(self._drawn).union(*(item.ends for item in self._items))
        for lane in self._lanes:
            lane.scope.frontier = tuple(sorted(ends))

    # ---------------------------------------------------------------------- what can begin

    def _advance(self) -> None:
        """Begin all that can; later stages first, for what they take makes room."""
        while self._failure is None and any(map(self._begin, reversed(self._lanes))):
            pass

    def _begin(self, lane: _Lane) -> bool:
        """Begin the next item in ``lane``, if it can."""
        if not self._is_ready(lane):
            return False
        item = self._items[lane.begun] if lane.number else _Item(self._drawn)
        before = tuple(sorted({*item.ends, lane.freed} if lane.freed else item.ends))
        if lane.number and not self._has_room(source := self._lanes[lane.number - 1]):
            source.freed = max(source.freed, before[-1])  # what is begun here made way there
        place = _Place(self, lane, lane.scope.next_path(), before, lane.begun)
        lane.begun += 1
        if item.failure is not None:
            self._passed(lane, item)
            return True
        lane.running += 1
        self._connect(lane, item, place)
        context = self._context.copy()
        context.run(enter, place)
        self._group.start(self._work(lane, item, place), context)
        return True

    def _is_ready(self, lane: _Lane) -> bool:
        if lane.is_full or not self._has_room(lane):
            return False
        if not lane.number:
            return not self._all_drawn
        before = self._lanes[lane.number - 1]
        if lane.begun == len(self._items):
            return False
        if self._room is None and not (self._all_drawn and before.ended == len(self._items)):
            return False
        passed = self._items[lane.begun].passed
        return passed == lane.number or (lane.stage.streams and before.begun > lane.begun)

    def _has_room(self, lane: _Lane) -> bool:
        """Behind it, for one more item."""
        if self._room is None or lane.number == len(self._lanes) - 1:
            return True
        waiting = lane.begun - self._lanes[lane.number + 1].begun
        return waiting < lane.stage.width + self._room

    def _connect(self, lane: _Lane, item: _Item, place: _Place) -> None:
        """To the lane that writes what is read here, and to the one that reads what is written."""
        if lane.stage.streams:
            place.stream = item.stream
            writer = f"{self._lanes[lane.number - 1].scope.path}/{place.index}/0"
            place.execution.replay.reads_at(place.path, writer)
        following = self._lanes[lane.number + 1 : lane.number + 2]
        if following and following[0].stage.streams:
            place.tap = item.stream = Stream(lane.stage.name)

    # ---------------------------------------------------------------------- at work

    async def _work(self, lane: _Lane, item: _Item, place: _Place) -> None:
        place.task = asyncio.current_task()
        written = item.stream if place.tap is not None else None
        try:
            value = await self._value(lane, item, place)
        except BaseException as error:
            self._saw_ends(lane, item, place)
            self._failed(lane, item, place, error)
            if written is not None:
                written.fail(error)
            if not isinstance(error, Exception | Suspended):
                raise
        else:
            self._saw_ends(lane, item, place)
            item.value = value
            if written is not None:
                written.finish(value, item.ends)
        self._ended(lane, item)

    async def _value(self, lane: _Lane, item: _Item, place: _Place) -> Any:
        """What the stage makes of the item. Who reads ends after who writes, and as badly."""
        stream = place.stream
        try:
            value = lane.stage.function(item.value if stream is None else stream.read(place))
            if inspect.isawaitable(value):
                value = await value
        except (Exception, Suspended):
            if stream is not None:
                await stream.whole()
            raise
        if stream is not None:
            await stream.whole()
        place.execution.replay.check_complete(place)
        return value

    def _saw_ends(self, lane: _Lane, item: _Item, place: _Place) -> None:
        ends = place.take_causes()
        if place.stream is not None:
            ends = tuple(sorted({*ends, *item.ends} - place.stream.attempts))
        if ends != place.before:
            item.ends = ends
        if not lane.number:
            self._drawn = item.ends

    def _failed(self, lane: _Lane, item: _Item, place: _Place, error: BaseException) -> None:
        self._fork.failed(error)
        if item.failure is not None or not isinstance(error, Exception | Suspended):
            return
        item.failure = error
        if isinstance(error, Suspended):
            self._suspended.append(error)  # the others go on
            self._all_drawn = self._all_drawn or not lane.number
            return
        error.add_note(f"in stage {lane.stage.name!r} of a pipeline, item {place.index}")
        if (self._policy == "fail_fast" or not lane.number) and self._failure is None:
            self._failure = error
            self._group.drop()  # now, so that no other fails in the same turn

    def _ended(self, lane: _Lane, item: _Item) -> None:
        was_full = lane.is_full
        lane.running -= 1
        if was_full:
            lane.freed = max(lane.freed, *item.ends)
        if lane.number:
            self._passed(lane, item)
        elif item.value is END:
            self._all_drawn = True
        elif item.failure is None:
            self._items.append(item)
            self._passed(lane, item)
        self._advance()

    def _passed(self, lane: _Lane, item: _Item) -> None:
        item.passed += 1
        lane.ended += 1
        if self._room is None and lane.number < len(self._lanes) - 1:
            following = self._lanes[lane.number + 1]
            following.freed = max(following.freed, *item.ends)

    async def _close_source(self) -> None:
        lane = self._lanes[0]
        place = _Place(self, lane, f"{lane.scope.path}/~close", self._drawn, lane.begun)
        place.task = asyncio.current_task()
        token = enter(place)
        try:
            await self._source.close()
        finally:
            leave(token)
            self._drawn = place.take_causes()

    # ---------------------------------------------------------------------- what came before what

    def place_of(self, path: str) -> tuple[int, int] | None:
        """The lane and the item of a place within the pipeline."""
        if not path.startswith(f"{self._path}/"):
            return None
        lane, _, rest = path[len(self._path) + 1 :].partition("/")
        index = rest.partition("/")[0]
        return int(lane), int(index) if index.isdigit() else -1

    def precedes(self, below: tuple[int, int], place: _Place) -> bool:
        """Whether what was done in one lane for one item came before what is done at ``place``."""
        number, index = below
        lane = place.lane.number
        if number > lane:
            return False
        if self._room is None and number < lane:
            return True
        if index == place.index:
            return number < lane - place.is_reading or number == lane
        in_turn = any(each.stage.width == 1 for each in self._lanes[number : lane + 1])
        return index < place.index and in_turn
