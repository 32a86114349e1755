"""What an agent reads of what others wrote: as declared, and as of a position of the log.

An :class:`Item` is what stands for one piece of writing in a prompt. Its handle is the place in the
flow where it was written (``#3/1``): the same on every run and in whatever order branches
finish, and good for fetching the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from accord.comm.put import space_of
from accord.comm.space import EVERYBODY, MISSING, Order, Write, is_pattern, matches, order_of
from accord.errors import UnserializableError, UsageError
from accord.log.events import Space, Written
from accord.log.log import Log
from accord.tokens.count import estimate
from accord.tokens.diff import diff, written
from accord.tokens.encode import encode, plain

if TYPE_CHECKING:
    from accord.comm.memory import Found, Memory

Visibility = Literal["nothing", "keys", "last", "diff", "summary", "full"]
"""How much an agent sees of what it reads.

``nothing``  none of it
``keys``     what there is, with sizes and handles
``last``     the newest piece
``diff``     each piece once: what is new comes after what was seen before
``summary``  as ``diff``, and what was seen before gives way to a bounded summary where that pays
``full``     all there is, every time
"""

VISIBILITIES: tuple[Visibility, ...] = get_args(Visibility)
MAIL = "@"


class Read(NamedTuple):
    """A pattern of keys that an agent reads, in which space, and with which visibility."""

    pattern: str
    space: Space
    visibility: Visibility

    @property
    def keeps_history(self) -> bool:
        """What was seen before stays in the prompt."""
        return self.visibility in ("diff", "summary")


def declared(reads: Any, sees: Visibility, who: str) -> tuple[Read, ...]:
    """What ``reads`` means: keys of the board, or ``@name`` for messages sent there.

    Single keys come before patterns: a key falls under the first that it matches.
    """
    if not isinstance(reads, str | Iterable):
        raise UsageError(f"{who}: it reads keys of the board or @names, not {reads!r}")
    if isinstance(reads, Mapping):
        pairs: Mapping[str, str] = cast("Mapping[str, str]", reads)
    else:
        patterns = (reads,) if isinstance(reads, str) else cast("Iterable[str]", reads)
        pairs = dict.fromkeys(patterns, sees)
    found = [_read(pattern, visibility, who) for pattern, visibility in pairs.items()]
    return tuple(sorted(found, key=lambda read: is_pattern(read.pattern)))


def _read(pattern: Any, visibility: str, who: str) -> Read:
    if not isinstance(pattern, str) or not pattern.strip() or not pattern.isprintable():
        raise UsageError(f"{who}: it reads keys of the board or @names, not {pattern!r}")
    known: Visibility | None = next((each for each in VISIBILITIES if each == visibility), None)
    if known is None:
        raise UsageError(f"{who}: sees one of {', '.join(VISIBILITIES)}, not {visibility!r}")
    space: Space = "mail" if pattern.startswith(MAIL) else "board"
    return Read(pattern.removeprefix(MAIL), space, known)


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of writing: where it was written, by whom, and how a prompt shows it."""

    order: Order
    seq: int
    handle: str
    title: str
    writer: str
    text: str
    tokens: int = field(init=False)
    """What it takes to show it in full, by estimate."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", estimate(self.shown))

    @property
    def shown(self) -> str:
        return f"{self.title}:\n{self.text}" if self.title else self.text


def place_of(item: Item) -> tuple[Order, int]:
    """Sorts items as the program has them."""
    return item.order, item.seq


def items_of(
    log: Log, read: Read, position: int, since: int = 0, but: Iterable[Read] = ()
) -> list[Item]:
    """What was written under ``read`` from ``since`` on and before ``position``.

    In the order of the program; without keys that fall under one of ``but``. A key that was seen
    before ``since`` shows what changed in it.
    """
    others = [other.pattern for other in but if other.space == read.space]
    state = space_of(log, read.space)
    changed = set(state.changed(since, position)) if since else None
    found: list[Item] = []
    names = state.names(read.pattern, position)
    if read.space == "mail" and state.version(EVERYBODY, position):
        names = [*dict.fromkeys((*names, EVERYBODY))]
    for key in names:
        if (changed is None or key in changed) and not any(matches(key, each) for each in others):
            found += _items(log, read.space, key, since, position)
    return sorted(found, key=place_of)


async def search_items(memory: Memory, asked: str, limit: int, log: Log) -> list[Item]:
    """What a memory holds that goes best with what is asked, the best first."""
    if not asked.strip():
        return []
    found = await memory.search(asked, limit)
    return [_found(log, each) for each in found]


def _found(log: Log, found: Found) -> Item:
    envelope = log.envelopes[found.version]
    assert isinstance(envelope.event, Written)
    write = Write(envelope.seq, envelope.scope, envelope.event, late=False)
    return _item("memory", write, found.key, found.text)


def _items(log: Log, space: Space, key: str, since: int, position: int) -> list[Item]:
    """A list's new items one by one, anything else as it is by now."""
    decode = log.values.decode
    state = space_of(log, space)
    found = state.keys[key]
    last, writes = found.last(position), found.appended(since, position)
    assert last is not None
    if writes is not None:
        for write in writes:
            if write.seq not in state.rendered:
                text = encode(decode(write.written.value))
                state.rendered[write.seq] = _item(space, write, key, text)
        return [state.rendered[write.seq] for write in writes]
    whole = state.rendered.get(-last.seq)
    if whole is None:
        text = encode(found.value(position, decode))
        whole = state.rendered[-last.seq] = _item(space, last, key, text)
    before = found.value(since, decode) if since else MISSING
    if before is not MISSING:
        changes = _changes(before, found.value(position, decode), key)
        if changes and estimate(changes) < whole.tokens:
            return [_item(space, last, "", changes)]
    return [whole]


def _changes(before: Any, value: Any, key: str) -> str | None:
    try:
        return written(diff(plain(before), plain(value)), key)
    except UnserializableError:
        return None


def _item(space: Space, write: Write, key: str, text: str) -> Item:
    writer = write.written.by
    if space == "mail":
        title = f"message from {writer}" if writer else "message"
    else:
        title = f"{key} ({writer})" if key and writer else key
    order = order_of(write.path)
    return Item(order, write.seq, handle_of(write), title, writer, text)


def handle_of(write: Write) -> str:
    """What an agent wrote as its reply goes by the place of its call."""
    path = write.path
    return f"#{path.rpartition('/')[0] if write.written.by else path}"
