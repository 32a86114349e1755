"""``pipeline``: items through stages, each stage at work on another item.

Choose it when many items go through the same steps, one after the other: read, draft, proofread.
Overlapped, ``n`` items take as long as the slowest stage does for all of them, and the rest of the
way for one: with equal stages (n + stages - 1) times a stage. Strict (``overlapped=False``), a
stage begins when the one before has done all items, which takes the sum; choose that for stages
that must see what the one before has made of everything. It costs one note and one join, and a task
for each item at each stage.

A stage begins items in their order, works on ``width`` of them at a time, and hands them on in
order. At most ``width`` + ``buffer`` items wait between it and the next: a slow stage holds back
those before it, up to the source, which is asked for an item when there is room for one.

Places come from the program: stage by stage (the source is stage 0), and in each, item by item. So
whichever stage is faster, calls have the same keys, and what is written is read in the same order.
The source and stages that are plain functions run again on a replay: what they give must follow
from the calls that they make. A plain sync function runs on the loop, so make what takes long a
step.

Policies, when a stage fails on an item:

``fail_fast``   all that runs is cancelled, and the failure is raised
``isolate``     that item skips the stages that are left, and its exception is its result

A source that fails ends the pipeline under either. With ``Stage(function, streams=True)`` a stage
reads the replies of the agent before it while they are being written: see
:mod:`accord.sync.stream`. That saves the wait for the end of each reply. A reply that is begun anew
and goes otherwise fails its reader: what that did with the beginning was for nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import KW_ONLY, dataclass
from typing import Any

from accord.errors import UsageError
from accord.flow.fork import Fork
from accord.flow.function import RecordedFunction
from accord.flow.note import note
from accord.flow.scope import Scope, enter, leave
from accord.flow.suspend import Suspended
from accord.log.events import Looked
from accord.sync.gather import Group, Policy
from accord.sync.stream import Stream

PIPELINE = "pipeline: "
ARROW = " → "


@dataclass(frozen=True)
class Stage:
    """``function`` at work on ``width`` items at a time.

    ``streams``   the function takes an async iterator over the text that the agent before it
                  writes, instead of its answer
    ``name``      for reports; the function's own if it is empty
    """

    function: Callable[[Any], Any]
    _: KW_ONLY
    width: int = 1
    streams: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(
                f"a stage of a pipeline is an agent, a step or a function, not {self.function!r}"
            )
        if not self.name:
            own = getattr(self.function, "name", "") or getattr(self.function, "__name__", "")
            object.__setattr__(self, "name", own or type(self.function).__name__)
        if self.width < 1:
            raise UsageError(
                f"stage {self.name!r} works on at least 1 item at a time, not {self.width}"
            )
        if self.streams and (
            isinstance(self.function, RecordedFunction) or hasattr(self.function, "not_streamed")
        ):
            raise UsageError(
                f"stage {self.name!r} is one recorded call, and a text that is being written is no "
                "input for that; stream to an async function that makes calls of what it reads"
            )


async def pipeline(
    items: Iterable[Any] | AsyncIterable[Any],
    *stages: Stage | Callable[[Any], Any],
    overlapped: bool = True,
    buffer: int = 1,
    policy: Policy = "fail_fast",
) -> list[Any]:
    """What the last stage made of each of ``items``, in their order.

    Raises :class:`accord.errors.UsageError` for stages that cannot work, before any item is taken.
    """
    lined_up = [each if isinstance(each, Stage) else Stage(each) for each in stages]
    source = _Source(items)
    _check(lined_up, buffer, policy)
    names = ARROW.join(stage.name.replace(ARROW, " ") for stage in lined_up)
    what = f"{PIPELINE}{names}"
    note(what, lambda scope, _: Looked(what=what, by=scope.agent))
    lanes = [Stage(source.draw, name="source"), *lined_up]
    with Fork("pipeline", len(lanes)) as fork:
        line = _Line(fork, source, lanes, policy=policy, room=buffer if overlapped else None)
        return await line.run()


def _check(stages: list[Stage], buffer: int, policy: str) -> None:
    if not stages:
        raise UsageError("a pipeline needs at least one stage: pipeline(items, first, second)")
    if buffer < 1:
        raise UsageError(f"a pipeline needs a buffer of at least 1 item, not {buffer}")
    if policy not in ("fail_fast", "isolate"):
        raise UsageError(f"pipeline knows the policies 'fail_fast' and 'isolate', not {policy!r}")
    for before, stage in zip([None, *stages], stages, strict=False):
        if stage.streams and (why := _why_not(before)):
            raise UsageError(
                f"stage {stage.name!r} reads what an agent before it writes, and {why}; "
                "give it the whole text (streams=False)"
            )


def _why_not(before: Stage | None) -> str:
    """Why nothing can be read of a stage that is at work; empty if it can."""
    if before is None:
        return "it is the first"
    unknown = "that is no agent"
    why = unknown if before.streams else getattr(before.function, "not_streamed", unknown)
    return f"before it comes {before.name!r}: {why}" if why else ""


class _Source:
    """Where the items come from; each is drawn when there is room for it."""

    def __init__(self, items: Any) -> None:
        self._is_async = hasattr(items, "__aiter__")
        if not self._is_async and not hasattr(items, "__iter__"):
            raise UsageError(f"a pipeline takes an iterable of items, async or not, not {items!r}")
        self._items: Any = aiter(items) if self._is_async else iter(items)

    async def draw(self, _: Any) -> Any:
        """The next item, or :data:`_END`."""
        if self._is_async:
            return await anext(self._items, _END)
        return next(self._items, _END)

    async def close(self) -> None:
        """Let a generator that was left in the middle clean up."""
        if inspect.isasyncgen(self._items):
            await self._items.aclose()
        elif inspect.isgenerator(self._items):
            self._items.close()


_END: Any = object()


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
        self, line: _Line, lane: _Lane, path: str, before: tuple[int, ...], index: int
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


class _Line:
    """The lanes of one pipeline, and the items on their way. What can begin, begins at once."""

    def __init__(
        self, fork: Fork, source: _Source, stages: list[Stage], *, policy: Policy, room: int | None
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
        elif item.value is _END:
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
