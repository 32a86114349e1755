"""The result cache: what was answered once, exactly as it was asked, is not computed again.

Only complete successes are kept, under all that they depend on (:mod:`accord.reuse.key`). Of equal
calls at the same time one is made, and the others wait for what it gives. A hit costs nothing, and
says what it saved.

Whatever is wrong with the file, the run goes on without it, and says so once.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import msgspec

from accord.clock import WallClock
from accord.engine.base import Request, Usage
from accord.errors import UsageError
from accord.log.waiters import Waiters
from accord.reuse.store import ResultStore, Row, StoreBusyError, StoreError

Mode = Literal["off", "read", "write", "on"]
"""``read`` uses what is kept and keeps nothing new, ``write`` the other way round."""

MODES: tuple[Mode, ...] = get_args(Mode)
DAY_S = 86_400.0
TTL_S = 30 * DAY_S
"""Models change behind their names."""
MOST_BYTES = 1 << 30
MEMORY_BYTES = 64 << 20
SKEW_S = 60.0
"""Clocks of machines differ by so much."""


class UnusableError(ValueError):
    """A result that another could use, and this one cannot: it is made anew."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result, and what it cost to compute."""

    result: msgspec.Raw
    usage: Usage | None = None
    cost: float | None = None
    took_ns: int = 0


entry_of = msgspec.json.Decoder(Entry).decode
_mode: ContextVar[Mode | None] = ContextVar("accord_cache_mode", default=None)
_races: ContextVar[bool] = ContextVar("accord_cache_races", default=False)


@contextmanager
def caching(mode: Mode) -> Generator[None]:
    """Calls made in this block use the cache so, whatever their agents and the run say but ``off``.

    ``on``, ``read`` and ``write`` also for replies that are drawn by chance.
    """
    token = _mode.set(checked(mode, "caching()"))
    try:
        yield
    finally:
        _mode.reset(token)


@contextmanager
def racing() -> Generator[None]:
    """Calls made in this block wait for no equal one: they are to be there before it."""
    token = _races.set(True)
    try:
        yield
    finally:
        _races.reset(token)


def checked(mode: Any, where: str) -> Mode:
    """``mode``, if it is one."""
    if mode not in MODES:
        raise UsageError(f"{where}: cache is one of {', '.join(MODES)}, not {mode!r}")
    return mode


def mode_for(agent: Mode | None, run: Mode | None) -> Mode | None:
    """What was asked for: of this call, else of its agent, else of the run; None for nothing.

    ``off`` is a veto, whoever says it.
    """
    given = _mode.get(), agent, run
    return "off" if "off" in given else next(filter(None, given), None)


def repeats(request: Request) -> bool:
    """The engine would answer the same again: nothing is drawn, or from a seed."""
    seed = request.extra.get("seed", request.seed)
    temperature = request.extra.get("temperature", request.temperature)
    return seed is not None or (temperature is not None and temperature == 0)


@dataclass(frozen=True, kw_only=True)
class ResultStatistics:
    """Counts since the cache was opened.

    ``joined`` calls waited for an equal one that was under way, and are hits, too. ``faults`` are
    uses that the file did not allow.
    """

    hits: int
    misses: int
    joined: int
    kept: int
    faults: int


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Who waits for an equal call: its scope, until when (the loop's time), and whom to tell."""

    scope: Any = None
    until_s: float | None = None
    begins: Callable[[], object] = lambda: None


class Flight:
    """A call that is under way, and the scopes of those who wait for an equal one."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.entry: Entry | None = None
        self.is_over = False
        """It gave something, or failed: else the next of those who wait makes the call."""
        self._news = Waiters()

    async def wait(self, wait: Wait) -> bool:
        """Whether it has ended, one way or the other, in time."""
        self.scopes.append(wait.scope)
        limit = asyncio.timeout_at(wait.until_s)
        try:
            wait.begins()
            async with limit:
                await self._news.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        finally:
            self.scopes.remove(wait.scope)
        return True

    def land(self) -> None:
        """It has ended."""
        self._news.wake()


@dataclass
class Turn:
    """A call's turn at a key: it has found an ``entry``, or is the one to make it.

    ``value`` is the result in it.
    """

    entry: Entry | None = None
    value: Any = None
    waited: bool = False
    flight: Flight | None = None

    def made(self, entry: Entry | None) -> None:
        """The call was made and gave ``entry``, or nothing that others could use."""
        if self.flight is not None:
            self.flight.entry, self.flight.is_over = entry, True


class ResultCache:
    """Results in memory (``"memory"``, None), or at a ``path`` in a file that processes may share.

    ``ttl_s``       how long a result is of use, in seconds, 30 days by default; None for ever
    ``most_bytes``  what it may take, 1 GiB by default, 64 MiB in memory; what was used longest ago
                    goes first

    Of equal calls at the same time, those of one loop on one of these are one.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        ttl_s: float | None = TTL_S,
        most_bytes: int | None = None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        path = _path(path)
        if ttl_s is not None and not (type(ttl_s) in (int, float) and ttl_s > 0):
            raise UsageError(f"a cache's ttl_s is a time above 0 or None, not {ttl_s!r}")
        if most_bytes is None:
            most_bytes = MEMORY_BYTES if path is None else MOST_BYTES
        if type(most_bytes) is not int or most_bytes < 1:
            raise UsageError(f"a cache's most_bytes is a whole number above 0, not {most_bytes!r}")
        self.store = ResultStore(path, most_bytes)
        self._ttl_s = ttl_s
        self._now_s = now_s or WallClock().epoch_s
        self._counts: Counter[str] = Counter()
        self._off = False
        """The file is of no use: it is not tried again."""
        self._warned: set[str] = set()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bytes, Flight]] = (
            WeakKeyDictionary()
        )

    def look(self, key: bytes) -> Entry | None:
        """What is kept under ``key``, if it is still of use."""
        row = self._using(lambda: self.store.get(key))
        if row is None:
            return None
        age_s = self._now_s() - row.made_s
        if age_s < -SKEW_S:
            self._say(
                "results in the cache are of later than now: this machine's clock has gone back. "
                "They are not used; set the clock, or `accord cache clear`"
            )
            return None
        if self._ttl_s is not None and age_s >= self._ttl_s:
            return None
        try:
            return entry_of(row.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.poisoned(key)
            return None

    def poisoned(self, key: bytes) -> None:
        """What is kept under ``key`` is not what it should be: it goes, and is made anew."""
        self._counts["faults"] += 1
        self._say("a result in the cache was not what was kept there: it is made anew")
        self._using(lambda: self.store.drop(key))

    def keep(self, key: bytes, entry: Entry, *, tenant: str, kind: str, name: str) -> bool:
        """Keep a complete success; whether that could be done."""
        try:
            body = msgspec.json.encode(entry)
        except UnicodeEncodeError:
            return False
        row = Row(key, tenant, kind, name, float(self._now_s()), body)
        kept = bool(self._using(lambda: self.store.put(row)))
        self._counts["kept"] += kept
        return kept

    @asynccontextmanager
    async def turn(
        self, key: bytes, mode: Mode, unpack: Callable[[Entry], Any], wait: Wait | None = None
    ) -> AsyncGenerator[Turn]:
        """Find what is kept under ``key``; else wait for who makes it, or be the one.

        ``unpack`` gives the result in an entry, or raises ``ValueError`` if it is none, and
        :class:`UnusableError` if it is none for this one. Should a maker be cancelled, the next who
        waits makes the call; should it fail, all others do so at once: what fails once a time would
        fail as often as they are.
        """
        flights = self._flights.setdefault(asyncio.get_running_loop(), {})
        turn = Turn()
        if mode in ("read", "on"):
            await self._find(turn, flights, key, unpack, wait or Wait())
        hit = turn.entry is not None
        self._counts["hits"] += hit
        self._counts["joined"] += hit and turn.waited
        self._counts["misses"] += not hit
        if hit or mode != "on" or key in flights:
            yield turn
            return
        turn.flight = flights[key] = Flight()
        try:
            yield turn
        except Exception:
            turn.made(None)
            raise
        finally:
            del flights[key]
            turn.flight.land()

    async def _find(
        self,
        turn: Turn,
        flights: dict[bytes, Flight],
        key: bytes,
        unpack: Callable[[Entry], Any],
        wait: Wait,
    ) -> None:
        """What is kept under a key, or what the calls give that are under way."""
        while not self._take(turn, key, unpack):
            flight = None if _races.get() else flights.get(key)
            if flight is None:
                return
            turn.waited = True
            landed = await flight.wait(wait)
            if flight.entry is not None:
                with suppress(ValueError):  # of no use to this one's agent
                    turn.value = unpack(flight.entry)
                    turn.entry = flight.entry
                    return
            if flight.is_over or not landed:
                return

    def _take(self, turn: Turn, key: bytes, unpack: Callable[[Entry], Any]) -> bool:
        """Whether there is a result under ``key``, which is then the turn's."""
        entry = self.look(key)
        if entry is None:
            return False
        try:
            turn.value = unpack(entry)
        except UnusableError:
            return False
        except ValueError:
            self.poisoned(key)
            return False
        turn.entry = entry
        return True

    def statistics(self) -> ResultStatistics:
        """How it has been used."""
        return ResultStatistics(
            **{each.name: self._counts[each.name] for each in fields(ResultStatistics)}
        )

    def close(self) -> None:
        """Let go of the file; a later use opens it again."""
        self.store.close()

    def _using(self, work: Callable[[], Any]) -> Any:
        """``work()``, or None where the file does not allow it."""
        if self._off:
            self._counts["faults"] += 1
            return None
        try:
            return work()
        except StoreBusyError:
            self._counts["faults"] += 1
        except StoreError as fault:
            self._counts["faults"] += 1
            self._off = True
            self._say(f"the result cache is not used: {fault}")
        except UnicodeEncodeError:
            pass  # a name that UTF-8 cannot hold: it is not kept
        except ValueError:
            self._counts["faults"] += 1
            self._say("a result in the cache had been changed or damaged: it is made anew")
        return None

    def _say(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(what, stacklevel=2)


def _path(path: Any) -> Path | None:
    if path is None or path == "memory":
        return None
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise UsageError(f"a result cache is at a path, or in 'memory', not at {path!r}")
    return Path(path)
