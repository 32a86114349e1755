"""Where an agent's answer is put, for others to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast, get_args

from accord.agent.reading import MAIL
from accord.comm.put import Put, put
from accord.errors import UsageError
from accord.flow.scope import Scope
from accord.log.events import Reducer, Space

REDUCERS: tuple[Reducer, ...] = get_args(Reducer)


class Write(NamedTuple):
    """A key, in which space, and how an answer meets what is there."""

    key: str
    space: Space
    how: Reducer

    def put(self, answer: Any, scope: Scope) -> None:
        """Write ``answer``; raises :class:`accord.errors.ConflictError`."""
        put(Put(key=self.key, make=lambda _: answer, how=self.how, space=self.space), scope)


def destinations(
    writes: str | Iterable[str] | Mapping[str, Reducer], who: str
) -> tuple[Write, ...]:
    """What ``writes`` means: keys of the board, or ``@name`` for messages sent there."""
    if isinstance(writes, Mapping):
        pairs = cast("Mapping[str, str]", writes)
        return tuple(_write(key, how, who) for key, how in pairs.items())
    keys = (writes,) if isinstance(writes, str) else writes
    return tuple(_write(key, "replace", who) for key in keys)


def _write(key: str, how: str, who: str) -> Write:
    if key.startswith(MAIL):
        return Write(key.removeprefix(MAIL), "mail", "append")
    known: Reducer | None = next((each for each in REDUCERS if each == how), None)
    if known is None or known == "remove" or "*" in key:
        raise UsageError(
            f"{who}: it writes one key with one of {REDUCERS[:-1]}, not {key!r}, {how!r}"
        )
    return Write(key, "board", known)
