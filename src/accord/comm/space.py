"""What has been written in a run, as a fold of its log: keys, their versions, what changed when.

Every question is asked as of a position in the log, so it has one answer for ever. Versions are
positions: the number of the event that wrote last. What branches added side by side is put
together in the order of the program, not of time: which of them was faster changes nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from accord.log.events import Envelope, Reducer, Space, Value, Written
from accord.log.waiters import Waiters, wait_for_any

EVERYBODY = "*"
"""The address of messages to all mailboxes."""

Decode = Callable[[Value], Any]
Order = tuple[tuple[int, int, str], ...]


class Write(NamedTuple):
    """One write: its number in the log, its place in the flow, and what it says.

    ``late`` if something that comes later in the program had been added to the key before.
    """

    seq: int
    path: str
    written: Written
    late: bool


class Missing:
    """Stands where there is no value."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = Missing()


@dataclass(slots=True)
class Key:
    """All writes of one key, in the order of the log."""

    writes: list[Write] = field(default_factory=list[Write])
    held: tuple[int, Any] = (-1, None)
    """What the writes add up to that end with this number: for whoever writes next, not to read."""
    _latest: Order = ()
    """The place of what comes last in the program, of all that was added since the last base."""

    def add(self, seq: int, path: str, written: Written) -> Write:
        """Take in the next write."""
        order = order_of(path)
        late = not _is_base(written) and order < self._latest
        if not late:
            self._latest = order
        write = Write(seq, path, written, late)
        self.writes.append(write)
        return write

    def value(self, position: int, decode: Decode) -> Any:
        """What the writes before ``position`` add up to, or :data:`MISSING`."""
        end = begin = _index(self.writes, position)
        while begin and not _is_base(self.writes[begin - 1].written):
            begin -= 1
        value: Any = MISSING
        if begin:
            value = apply(MISSING, self.writes[begin - 1].written, decode)
        for write in in_program_order(self.writes[begin:end]):
            value = apply(value, write.written, decode)
        return value

    def additions(self, since: int, position: int) -> list[Write] | None:
        """What was put on the value at ``since`` to make the one at ``position``.

        None if it takes the whole value to tell.
        """
        last, new = self.last(since), self.between(since, position)
        if last is None or last.written.how == "remove":
            return None
        if any(write.late or _is_base(write.written) for write in new):
            return None
        return new

    def appended(self, since: int, position: int) -> list[Write] | None:
        """The items that came from ``since`` on; None if anything but appending was done."""
        new = self.between(since, position)
        if any(write.written.how != "append" for write in new):
            return None
        return in_program_order(new)

    def between(self, since: int, position: int) -> list[Write]:
        """The writes from ``since`` on, before ``position``, in the order of the log."""
        return self.writes[_index(self.writes, since) : _index(self.writes, position)]

    def last(self, position: int) -> Write | None:
        """The last write before ``position``."""
        index = _index(self.writes, position)
        return self.writes[index - 1] if index else None


class SpaceState:
    """The keys of one space."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.writes: list[Write] = []
        self._recent: dict[str, int] = {}
        """Keys by their last write, the latest last."""
        self.rendered: dict[int, Any] = {}
        """What readers have made of a write, or (below 0) of a value as of it; never stale."""
        self._waiting: dict[str, Waiters] = {}
        """Who waits for a key."""
        self._patterns: dict[str, Waiters] = {}
        """Who waits for any key of a pattern."""

    @property
    def version_of_all(self) -> int:
        """The number of the last write of any key; 0 if there is none."""
        return self.writes[-1].seq if self.writes else 0

    def add(self, seq: int, path: str, written: Written) -> None:
        """Take in the next write, and wake who waits for its key."""
        key = self.keys.get(written.key)
        if key is None:
            key = self.keys[written.key] = Key()
        self.writes.append(key.add(seq, path, written))
        self._recent.pop(written.key, None)
        self._recent[written.key] = seq
        if (waiters := self._waiting.get(written.key)) is not None:
            waiters.wake()
        for pattern in [each for each in self._patterns if matches(written.key, each)]:
            self._patterns[pattern].wake()

    def last(self, key: str, position: int) -> Write | None:
        """The last write of ``key`` before ``position``."""
        found = self.keys.get(key)
        return None if found is None else found.last(position)

    def version(self, key: str, position: int) -> int:
        """The number of the last write of ``key`` before ``position``; 0 if it holds nothing."""
        last = self.last(key, position)
        return 0 if last is None or last.written.how == "remove" else last.seq

    def value(self, key: str, position: int, decode: Decode) -> Any:
        """The value of ``key`` as of ``position``, or :data:`MISSING`."""
        found = self.keys.get(key)
        return MISSING if found is None else found.value(position, decode)

    def held(self, key: str, position: int, decode: Decode) -> Any:
        """As :meth:`value`, for who writes on: it may be changed, and is not folded again."""
        found = self.keys.get(key)
        if found is None or (last := found.last(position)) is None:
            return MISSING
        number, value = found.held
        return value if number == last.seq and not last.late else found.value(position, decode)

    def hold(self, key: str, number: int, value: Any) -> None:
        """Remember what the write that gets this number makes of ``key``."""
        if (found := self.keys.get(key)) is not None:
            found.held = (number, value)

    def names(self, pattern: str, position: int) -> list[str]:
        """The keys that match ``pattern`` and have a value, in alphabetical order."""
        there = self.keys if is_pattern(pattern) else self.keys.keys() & {pattern}
        return sorted(key for key in there if matches(key, pattern) and self.version(key, position))

    def changed(self, since: int, position: int) -> list[str]:
        """The keys written from ``since`` on and before ``position``, oldest change first."""
        if position <= self.version_of_all:
            new = self.writes[_index(self.writes, since) : _index(self.writes, position)]
            return list(dict.fromkeys(write.written.key for write in new))
        # As of now: costs as much as there are changed keys, however often they changed.
        found: list[str] = []
        for key in reversed(self._recent):
            if self._recent[key] < since:
                break
            found.append(key)
        return found[::-1]

    def first(self, pattern: str, after: int) -> int | None:
        """The number of the first write after number ``after`` to a key that matches."""
        if is_pattern(pattern):
            writes = self.writes
        else:
            key = self.keys.get(pattern)
            writes = key.writes if key is not None else []
        for write in writes[_index(writes, after + 1) :]:
            if matches(write.written.key, pattern):
                return write.seq
        return None

    async def written(self, pattern: str) -> None:
        """Return when a key that matches ``pattern`` is written."""
        await any_written([(self, pattern)])

    def waiters(self, pattern: str) -> Waiters:
        """Who waits for a key that matches ``pattern``."""
        return self._of(pattern).setdefault(pattern, Waiters())

    def forget(self, pattern: str) -> None:
        """Nobody may be waiting any more."""
        waiting = self._of(pattern)
        if not waiting.get(pattern):
            waiting.pop(pattern, None)

    def _of(self, pattern: str) -> dict[str, Waiters]:
        return self._patterns if is_pattern(pattern) else self._waiting


class Spaces:
    """The spaces of a run: a :class:`accord.log.log.Fold`."""

    def __init__(self) -> None:
        self._spaces: dict[Space, SpaceState] = {}

    def add(self, envelope: Envelope) -> None:
        """Take in the next event."""
        event = envelope.event
        if isinstance(event, Written):
            self.of(event.space).add(envelope.seq, envelope.scope, event)

    def of(self, space: Space) -> SpaceState:
        """The state of one space."""
        state = self._spaces.get(space)
        if state is None:
            state = self._spaces[space] = SpaceState()
        return state


async def any_written(wanted: Sequence[tuple[SpaceState, str]]) -> None:
    """Return when a key that matches one of the patterns is written, each in its space."""
    try:
        await wait_for_any([state.waiters(pattern) for state, pattern in wanted])
    finally:
        for state, pattern in wanted:
            state.forget(pattern)


def apply(value: Any, written: Written, decode: Decode) -> Any:
    """What ``written`` makes of ``value``, which may be changed in place; MISSING at first."""
    return put_on(value, written.how, decode(written.value))


def put_on(value: Any, how: Reducer, added: Any) -> Any:
    """``added`` put on ``value``, which may be changed in place; MISSING at first.

    Raises :class:`TypeError` if the reducer does not go with what is there.
    """
    match how:
        case "append":
            items = _as(list, value, how)
            items.append(added)
            return items
        case "merge":
            mapping = _as(dict, value, how)
            mapping.update(added)
            return mapping
        case "union":
            members = _as(set, value, how)
            members.update(added)
            return members
        case "maximum":
            return added if value is MISSING else max(value, added)
        case "remove":
            return MISSING
        case "replace":
            return added


def _as(kind: type[Any], value: Any, how: Reducer) -> Any:
    if value is MISSING:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"cannot {how} to a {type(value).__name__}")
    return value


def in_program_order(writes: list[Write]) -> list[Write]:
    """By their place in the flow."""
    if not any(write.late for write in writes):
        return writes
    return sorted(writes, key=lambda write: order_of(write.path))


def _is_base(written: Written) -> bool:
    """Whatever was there before, it is gone."""
    return written.how in ("replace", "remove")


def order_of(path: str) -> Order:
    """Sorts places as the program has them; tasks that the flow started come last, by name."""
    return tuple(
        (0, int(part), "") if part.isascii() and part.isdigit() else (1, 0, part)
        for part in path.split("/")
    )


def is_pattern(key: str) -> bool:
    """Whether ``key`` stands for all keys that it matches."""
    return "*" in key


def matches(key: str, pattern: str) -> bool:
    """Whether ``key`` is ``pattern``, in which ``*`` stands for any text."""
    return key == pattern or ("*" in pattern and _compiled(pattern).fullmatch(key) is not None)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _index(writes: Sequence[Write], position: int) -> int:
    """Where in ``writes`` the first is that has not a number below ``position``."""
    if not writes or position > writes[-1].seq:
        return len(writes)
    return bisect_left(writes, position, key=lambda write: write.seq)
