"""The state that a node sees: what its own ancestors in the graph wrote, and nothing else.

So it depends on the graph and on what nodes return, never on which of them was faster. A state is
a set of cells, one a key; a cell is what its writes add up to. Where branches meet, cells that
differ are merged: what was written on each side since the last common cell is put on
that, branch by branch, in the order of the program. Of a key without a reducer, both sides must
have written the same, or lists, which are put one after the other; else they are in conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from accord.errors import StateConflictError
from accord.graph.schema import Key, Overwrite, Schema
from accord.log.blobs import digest_of

_CHANGEABLE = (list, dict, set)
Digest = Callable[[Any], bytes]


@dataclass(eq=False, slots=True)
class Cell:
    """The value of one key at one point of the graph.

    ``written`` is what was written last, ``by`` whom; a merged cell has none. ``digest`` stands for
    the value: it is a hash of what was written, and of what that was put on; empty where nobody
    asks. ``depth`` grows from each cell to those made from it.
    """

    value: Any
    digest: str
    depth: int
    before: tuple[Cell, ...] = ()
    written: Any = None
    by: str = ""
    is_base: bool = False
    """Whatever was there before is gone."""


class State:
    """Cells by key. ``digest`` stands for all of them: it tells how they came to be."""

    __slots__ = ("cells", "digest", "schema")

    def __init__(self, schema: Schema, cells: dict[str, Cell], digest: bytes) -> None:
        self.schema = schema
        self.cells = cells
        self.digest = digest

    @property
    def values(self) -> dict[str, Any]:
        """The values of the keys that have one; lists, dicts and sets are the reader's own."""
        return {
            name: cell.value.copy() if type(cell.value) in _CHANGEABLE else cell.value
            for name, cell in self.cells.items()
        }

    def digest_of(self, keys: Iterable[str]) -> bytes:
        """Stands for the values of ``keys`` alone. Their cells must have digests."""
        cells = self.cells
        return "\0".join([f"{key}\0{cells[key].digest}" for key in keys if key in cells]).encode()

    def write(
        self,
        update: Mapping[str, Any],
        *,
        by: str,
        depth: int,
        digest: bytes = b"",
        of_value: Digest | None = None,
    ) -> State:
        """The state after ``by`` has written ``update``; ``digest`` stands for it.

        ``of_value`` is given if the digests of single keys will be asked for.
        """
        cells = self.cells.copy()
        for name, written in update.items():
            key, before = self.schema.keys[name], cells.get(name)
            cells[name] = _write(key, before, written, by=by, depth=depth, of_value=of_value)
        return State(self.schema, cells, digest)


def merge(states: Sequence[State], where: str) -> State:
    """The state where branches meet at ``where``; ``states`` in the order of the program.

    Raises :class:`accord.errors.StateConflictError`.
    """
    first = states[0]
    if all(state is first for state in states):
        return first
    cells: dict[str, Cell] = {}
    for name, key in first.schema.keys.items():
        differing: dict[int, Cell] = {}
        for state in states:
            cell = state.cells.get(name)
            if cell is not None:
                differing[id(cell)] = cell
        if differing:
            found = [*differing.values()]
            cells[name] = found[0] if len(found) == 1 else _merge(key, found, where)
    digest = digest_of(b"\0".join([state.digest for state in states])).encode()
    return State(first.schema, cells, digest)


def written_since(key: str, state: State, before: State) -> list[Cell]:
    """The writes that made ``key`` of ``state`` from what it was in ``before``."""
    cell, base = state.cells.get(key), before.cells.get(key)
    if cell is None or cell is base:
        return []
    known: set[int] = set() if base is None else {id(base)}
    return [each for each in _in_order([cell], known) if each.by]


def _write(
    key: Key, before: Cell | None, written: Any, *, by: str, depth: int, of_value: Digest | None
) -> Cell:
    there = () if before is None else (before,)
    if key.reducer is None or isinstance(written, Overwrite):
        value = written.value if isinstance(written, Overwrite) else written
        put = "" if of_value is None else digest_of(of_value(value))
        return Cell(value, put, depth, there, written, by, is_base=True)
    value = written if before is None else key.reduce(before.value, written, by)
    put = ""
    if of_value is not None:
        base = b"" if before is None else before.digest.encode()
        put = digest_of(b"%b\0%b" % (base, of_value(written)))
    return Cell(value, put, depth, there, written, by)


def _merge(key: Key, cells: list[Cell], where: str) -> Cell:
    base = _common(cells)
    known: set[int] = set() if base is None else {id(base)}
    writes = [cell for cell in _in_order(cells, known) if cell.by]
    last = _maximal(writes)
    if len(last) == 1:
        return last[0]
    if key.reducer is None or any(cell.is_base for cell in writes):
        if key.is_list and key.reducer is None and not _agree(last):
            return _in_a_row(last, base)
        return _agreed(key, last, where)
    first, *rest = writes
    value = first.written if base is None else base.value
    digest = first.digest if base is None else base.digest
    for cell in rest if base is None else writes:
        value = key.reduce(value, cell.written, cell.by)
        digest = digest and digest_of(f"{digest}\0{cell.digest}".encode())
    depth = max(cell.depth for cell in cells) + 1
    return Cell(value, digest, depth, tuple(cells))


def _agreed(key: Key, last: list[Cell], where: str) -> Cell:
    """Branches that replaced the value must have written the same."""
    if _agree(last):
        return last[0]
    sides = " and ".join(f"{_short(cell.value)} by {cell.by}" for cell in last[:3])
    raise StateConflictError(
        f"branches that meet at {where} wrote {key.name!r} without knowing of each other: {sides}. "
        f"Give {key.name!r} a reducer (Annotated[{getattr(key.type, '__name__', key.type)}, "
        "reducer]), or let one node write it",
        key=key.name,
        nodes=tuple(cell.by for cell in last),
        values=tuple(cell.value for cell in last),
    )


def _common(cells: list[Cell]) -> Cell | None:
    """The last cell that all of ``cells`` were made from, if there is one such.

    As the merge base of version control: back from all sides, deepest first, until what is left is
    one cell that every side has come by.
    """
    base = cells[0].before
    if len(base) == 1 and all(cell.before == base for cell in cells):
        return base[0]  # each branch wrote once: the most frequent case
    sides: dict[int, int] = {}
    waiting: list[tuple[int, int, Cell]] = []
    everybody = (1 << len(cells)) - 1
    for index, cell in enumerate(cells):
        sides[id(cell)] = sides.get(id(cell), 0) | 1 << index
        heappush(waiting, (-cell.depth, index, cell))
    count = len(cells)
    seen: set[int] = set()
    while waiting:
        _, _, cell = heappop(waiting)
        if id(cell) in seen:
            continue
        seen.add(id(cell))
        reached = sides[id(cell)]
        if reached == everybody and all(each[2] is cell for each in waiting):
            return cell
        for before in cell.before:
            sides[id(before)] = sides.get(id(before), 0) | reached
            count += 1
            heappush(waiting, (-before.depth, count, before))
    return None


def _in_order(cells: Iterable[Cell], known: set[int]) -> Iterator[Cell]:
    """The cells behind ``cells``, each after those that it was made from; not those ``known``."""
    seen = set(known)
    for cell in cells:
        stack: list[tuple[Cell, bool]] = [(cell, False)]
        while stack:
            top, done = stack.pop()
            if done:
                yield top
                continue
            if id(top) in seen:
                continue
            seen.add(id(top))
            stack.append((top, True))
            stack.extend((each, False) for each in reversed(top.before))


def _maximal(writes: list[Cell]) -> list[Cell]:
    """Those that no other of ``writes`` was made from."""
    behind: set[int] = set()
    stack = [before for cell in writes for before in cell.before]
    while stack:
        cell = stack.pop()
        if id(cell) not in behind:
            behind.add(id(cell))
            if not cell.by:
                stack.extend(cell.before)
    return [cell for cell in writes if id(cell) not in behind]


def _agree(cells: list[Cell]) -> bool:
    return all(_equal(cell.value, cells[0].value) for cell in cells)


def _in_a_row(lists: list[Cell], base: Cell | None) -> Cell:
    """Lists that branches wrote, one after the other; what they all began with, once."""
    begun: list[Any] = [] if base is None else base.value
    kept = bool(begun) and all(cell.value[: len(begun)] == begun for cell in lists)
    start = len(begun) if kept else 0
    value = begun[:start] + [item for cell in lists for item in cell.value[start:]]
    digest = lists[0].digest and digest_of("\0".join(cell.digest for cell in lists).encode())
    return Cell(value, digest, max(cell.depth for cell in lists) + 1, tuple(lists))


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001  # an == of the user's own
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
