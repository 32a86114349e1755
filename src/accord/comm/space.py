"""What has been written in a run, as a fold of its log: keys, their versions, what changed when.

Every question is asked as of a position in the log, so it has one answer for ever. Versions are
positions: the number of the event that wrote last. What branches added side by side is put
together in the order of the program, not of time: which of them was faster changes nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from accord.log.events import Envelope, Reducer, Space, Value, Written

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
    seqs: list[int] = field(default_factory=list[int])
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
        self.seqs.append(seq)
        return write

    def value(self, position: int, decode: Decode) -> Any:
        """What the writes before ``position`` add up to, or :data:`MISSING`."""
        end = begin = bisect_left(self.seqs, position)
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
        begin, end = bisect_left(self.seqs, since), bisect_left(self.seqs, position)
        new = self.writes[begin:end]
        if not begin or any(write.late or _is_base(write.written) for write in new):
            return None
        return in_program_order(new)

    def appended(self, since: int, position: int) -> list[Write] | None:
        """The items that came from ``since`` on; None if anything but appending was done."""
        new = self.writes[bisect_left(self.seqs, since) : bisect_left(self.seqs, position)]
        if any(write.written.how != "append" for write in new):
            return None
        return in_program_order(new)

    def last(self, position: int) -> Write | None:
        """The last write before ``position``."""
        index = bisect_left(self.seqs, position)
        return self.writes[index - 1] if index else None


class SpaceState:
    """The keys of one space."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self.writes: list[Write] = []
        self.seqs: list[int] = []
        self._recent: dict[str, int] = {}
        """Keys by their last write, the latest last."""
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Who waits for a key, or for keys of a pattern."""
        self._patterns: set[str] = set()
        """The patterns among them, in which a sign stands for others."""

    def add(self, seq: int, path: str, written: Written) -> None:
        """Take in the next write, and wake who waits for its key."""
        key = self.keys.get(written.key)
        if key is None:
            key = self.keys[written.key] = Key()
        self.writes.append(key.add(seq, path, written))
        self.seqs.append(seq)
        self._recent.pop(written.key, None)
        self._recent[written.key] = seq
        self._wake(written.key)

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

    def names(self, patterns: Iterable[str], position: int) -> list[str]:
        """The keys that match one of ``patterns`` and have a value, in alphabetical order."""
        wanted = tuple(patterns)
        there = self.keys if any(map(is_pattern, wanted)) else self.keys.keys() & {*wanted}
        return sorted(key for key in there if matches(key, wanted) and self.version(key, position))

    def since(self, since: int, position: int) -> list[Write]:
        """The writes with numbers from ``since`` on, before ``position``, in order."""
        return self.writes[bisect_left(self.seqs, since) : bisect_left(self.seqs, position)]

    def changed(self, since: int, position: int) -> list[str]:
        """The keys written from ``since`` on and before ``position``, oldest change first."""
        if not self.seqs or position > self.seqs[-1]:
            # As of now: costs as much as there are changed keys, however often they changed.
            found: list[str] = []
            for key in reversed(self._recent):
                if self._recent[key] < since:
                    break
                found.append(key)
            return found[::-1]
        return list(dict.fromkeys(write.written.key for write in self.since(since, position)))

    def first(self, pattern: str, since: int) -> int | None:
        """The number of the first write from ``since`` on to a key that matches."""
        if not is_pattern(pattern):
            key = self.keys.get(pattern)
            index = bisect_left(key.seqs, since) if key is not None else 0
            return key.seqs[index] if key is not None and index < len(key.seqs) else None
        for write in self.writes[bisect_left(self.seqs, since) :]:
            if matches(write.written.key, (pattern,)):
                return write.seq
        return None

    async def written(self, patterns: Iterable[str]) -> None:
        """Return when a key that matches one of ``patterns`` is written."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted = tuple(patterns)
        for pattern in wanted:
            self._waiting.setdefault(pattern, []).append(waiter)
            if is_pattern(pattern):
                self._patterns.add(pattern)
        try:
            await waiter
        finally:
            for pattern in wanted:
                waiters = self._waiting.get(pattern, [])
                if waiter in waiters:
                    waiters.remove(waiter)

    def _wake(self, key: str) -> None:
        patterns = [key] if key in self._waiting else []
        patterns += [each for each in self._patterns if each != key and fnmatchcase(key, each)]
        for pattern in patterns:
            for waiter in self._waiting.pop(pattern):
                if not waiter.done():
                    waiter.set_result(None)
            self._patterns.discard(pattern)


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
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.split("/"))


def is_pattern(key: str) -> bool:
    """Whether ``key`` may stand for several keys."""
    return any(sign in key for sign in "*?[")


def matches(key: str, patterns: Iterable[str]) -> bool:
    """Whether ``key`` is one of ``patterns``, in which ``*`` and ``?`` stand for anything."""
    return any(key == each or (is_pattern(each) and fnmatchcase(key, each)) for each in patterns)
