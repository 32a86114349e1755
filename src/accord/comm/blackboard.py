"""The blackboard: versioned keys that all code of a run can read and write.

Choose it for what many need to know. A write is one event, is seen by whoever looks next, and
costs as much as what was added. There is no lock: what runs between two ``await`` is one moment.
Where branches write side by side, reducers (:meth:`Blackboard.append`, ``merge``, ...) put together
what each of them adds; a plain write over what another branch has just written is a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from accord.comm.put import Put, put, space_of
from accord.comm.space import MISSING, SpaceState, matches, put_on
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.note import note
from accord.flow.scope import CallScope, current_scope
from accord.log.events import Looked, Reducer, Value


@dataclass(frozen=True, kw_only=True)
class BoardStatistics:
    """Keys that hold a value, writes ever made, and the version of the last one."""

    keys: int
    writes: int
    version: int


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What changed on a board between two positions of the log.

    ``values`` holds each changed key's value; of keys that were only added to since, ``added``
    holds what was added, as ``(reducer, what)`` in the order of the program.
    """

    since: int
    position: int
    values: dict[str, Any]
    added: dict[str, list[tuple[Reducer, Any]]]
    removed: tuple[str, ...]

    def apply(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The board at ``position``, given the board at ``since``."""
        result = {key: item for key, item in state.items() if key not in self.removed}
        result.update(self.values)
        for key, additions in self.added.items():
            value = deepcopy(result[key])
            for how, item in additions:
                value = put_on(value, how, item)
            result[key] = value
        return result


class Blackboard:
    """The board of the run, or the part of it below ``name/``. Holds no state of its own.

    Methods belong inside a flow, on its event loop. Keys are texts; patterns may have ``*``.
    """

    def __init__(self, name: str = "") -> None:
        if not name.isprintable() or "*" in name:
            raise UsageError(f"a board is named by printable text without *, not {name!r}")
        self._prefix = f"{name}/" if name else ""

    def read(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default``. Changing what comes back changes no board."""
        value = _look(f"key {self._prefix}{key}").value(self._prefix + key)
        return default if value is MISSING else value

    def version(self, key: str) -> int:
        """The version of ``key``: the number of its last write; 0 if it holds nothing."""
        view = _look(f"version of {self._prefix}{key}")
        return view.state.version(self._prefix + key, view.position)

    def keys(self, pattern: str = "*") -> list[str]:
        """The keys that match, in alphabetical order."""
        return list(self._matching(_look(f"keys {self._prefix}{pattern}"), pattern))

    def snapshot(self, pattern: str = "*") -> dict[str, Any]:
        """All matching keys with their values, in alphabetical order."""
        view = _look(f"all {self._prefix}{pattern}")
        found = self._matching(view, pattern)
        return {name: view.value(self._prefix + name) for name in found}

    def diff(self, since: int = 0, pattern: str = "*") -> Diff:
        """What has changed since position ``since``: an earlier diff's ``position``.

        Costs as much as there are changed keys, not as there are keys.
        """
        if since < 0:
            raise UsageError(f"diff counts from a position of the log, not from {since}")
        view = _look(f"changes of {self._prefix}{pattern}")
        wanted = self._prefix + pattern
        values: dict[str, Any] = {}
        added: dict[str, list[tuple[Reducer, Any]]] = {}
        removed: list[str] = []
        for key in view.state.changed(since, view.position):
            if not matches(key, wanted):
                continue
            name = key.removeprefix(self._prefix)
            additions = view.state.keys[key].additions(since, view.position)
            if additions is not None:
                writes = [write.written for write in additions]
                added[name] = [(write.how, view.decode(write.value)) for write in writes]
            elif (value := view.value(key)) is MISSING:
                removed.append(name)
            else:
                values[name] = value
        return Diff(
            since=since,
            position=view.position,
            values=values,
            added=added,
            removed=tuple(removed),
        )

    def write(self, key: str, value: Any, *, if_version: int | None = None) -> int:
        """Put ``value`` at ``key`` and return its version. An unchanged value is no write.

        ``if_version`` writes only over that version (0: only where there is nothing). Raises
        :class:`accord.errors.ConflictError` if there is another; and, without ``if_version``, if
        the key was written by code that runs beside this, and not before it.
        """
        return self._put(key, value, "replace", if_version)

    def remove(self, key: str, *, if_version: int | None = None) -> None:
        """Take ``key`` off the board, on the same terms as :meth:`write`."""
        self._put(key, None, "remove", if_version)

    def append(self, key: str, item: Any) -> int:
        """Add ``item`` to the list at ``key``."""
        return self._put(key, item, "append")

    def merge(self, key: str, part: Mapping[str, Any]) -> int:
        """Update the dict at ``key``."""
        return self._put(key, dict(part), "merge")

    def union(self, key: str, members: Iterable[Any]) -> int:
        """Add ``members`` to the set at ``key``."""
        return self._put(key, set(members), "union")

    def maximum(self, key: str, value: Any) -> int:
        """Put ``value`` at ``key`` unless what is there is larger."""
        return self._put(key, value, "maximum")

    def update(self, key: str, function: Callable[[Any], Any], default: Any = None) -> Any:
        """Put ``function(value)`` at ``key`` and return it: reading and writing are one moment.

        ``function`` must do the same given the same, as a resume asks it again.
        """
        new: Any = None

        def make(value: Any) -> Any:
            nonlocal new
            new = function(default if value is MISSING else value)
            return new

        put(Put(key=self._name(key), function=make))
        return new

    async def wait_for(self, pattern: str = "*", *, after: int = 0) -> int:
        """Wait until a matching key is written after version ``after``; its version.

        Wait on after what it returned, and no write is missed.
        """
        wanted = self._prefix + pattern

        async def body(scope: CallScope) -> int:
            state = space_of(scope.execution.log, "board")
            seen = after
            while (found := state.first(wanted, seen)) is None:
                seen = max(after, state.version_of_all)
                await state.written(wanted)
            scope.follow(found)
            return found

        found: int = await call("watch", wanted, [after], body, pure=True)
        return found

    def statistics(self) -> BoardStatistics:
        """How much there is by now. For people: it is not recorded, so no flow may depend on it."""
        log = current_scope("board.statistics()").execution.log
        view = _View(space_of(log, "board"), len(log.envelopes), log.values.decode)
        writes = [w for w in view.state.writes if w.written.key.startswith(self._prefix)]
        return BoardStatistics(
            keys=sum(1 for _ in self._matching(view, "*")),
            writes=len(writes),
            version=writes[-1].seq if writes else 0,
        )

    def _put(self, key: str, value: Any, how: Reducer, if_version: int | None = None) -> int:
        return put(Put(key=self._name(key), value=value, how=how, if_version=if_version))

    def _name(self, key: str) -> str:
        if not key.strip() or not key.isprintable() or "*" in key:
            raise UsageError(f"a key of the board is printable text without *, not {key!r}")
        return self._prefix + key

    def _matching(self, view: _View, pattern: str) -> Iterable[str]:
        found = view.state.names(self._prefix + pattern, view.position)
        return (key.removeprefix(self._prefix) for key in found)


class _View(NamedTuple):
    """The board as of a position."""

    state: SpaceState
    position: int
    decode: Callable[[Value], Any]

    def value(self, key: str) -> Any:
        return self.state.value(key, self.position, self.decode)


def _look(what: str) -> _View:
    envelope = note(what, lambda scope, _: Looked(what=what, by=scope.agent))
    log = current_scope(what).execution.log
    return _View(space_of(log, "board"), envelope.seq, log.values.decode)
