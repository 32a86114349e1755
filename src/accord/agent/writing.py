"""Where an agent's answer is put, for others to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast, get_args

from accord.agent.reading import MAIL
from accord.comm.mailbox import send
from accord.comm.put import Put, put
from accord.errors import UsageError
from accord.log.events import Reducer

REDUCERS: tuple[Reducer, ...] = get_args(Reducer)


class Destination(NamedTuple):
    """A key of the board and how an answer meets what is there, or a name to send it to."""

    key: str
    how: Reducer | None

    async def put(self, answer: Any) -> None:
        """Write or send ``answer``.

        Raises :class:`accord.errors.ConflictError`; waits while a mailbox is full.
        """
        if self.how is None:
            await send(self.key, answer)
        else:
            put(Put(key=self.key, value=answer, how=self.how))


def destinations(
    writes: str | Iterable[str] | Mapping[str, Reducer], who: str
) -> tuple[Destination, ...]:
    """What ``writes`` means: keys of the board, or ``@name`` for messages sent there."""
    if isinstance(writes, Mapping):
        pairs = cast("Mapping[str, str]", writes)
        return tuple(_write(key, how, who) for key, how in pairs.items())
    keys = (writes,) if isinstance(writes, str) else writes
    return tuple(_write(key, "replace", who) for key in keys)


def _write(key: str, how: str, who: str) -> Destination:
    name = key.removeprefix(MAIL)
    if not name.strip() or not name.isprintable():
        raise UsageError(f"{who}: it writes to a name of printable text, not {key!r}")
    if key.startswith(MAIL):
        return Destination(name, None)
    known: Reducer | None = next((each for each in REDUCERS if each == how), None)
    if known is None or known == "remove" or "*" in key:
        raise UsageError(
            f"{who}: it writes one key with one of {REDUCERS[:-1]}, not {key!r}, {how!r}"
        )
    return Destination(key, known)
