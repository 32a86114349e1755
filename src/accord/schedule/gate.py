"""The way to an engine: who may ask now.

The most urgent first, and of those the first to come, up to the engine's own concurrency; and with
one cool-down for all: when the engine tells one caller to wait, everybody waits, instead of each
finding out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from heapq import heappop, heappush

from accord.engine.base import Capabilities, Engine

DEFAULT_CONCURRENCY = 64


@dataclass(frozen=True, kw_only=True)
class GateStatistics:
    """Requests at the engine and waiting for it, and the cool-down left, in seconds."""

    active: int
    waiting: int
    cool_down_s: float


class Gate:
    """Stands in front of one engine, for all agents of all runs of a runtime."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.capabilities = Capabilities()
        self._started = False
        self._starting = asyncio.Lock()
        self._places = 0
        self._active = self._count = 0
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        """Who waits for a place: a heap, the most urgent first."""
        self._cool_until_s = 0.0

    async def start(self) -> Capabilities:
        """Start the engine once, and learn what it can do."""
        async with self._starting:
            if not self._started:
                self.capabilities = await self.engine.start()
                self._places = self.capabilities.concurrency or DEFAULT_CONCURRENCY
                self._started = True
        return self.capabilities

    @asynccontextmanager
    async def place(self, priority: int = 0) -> AsyncGenerator[None]:
        """Wait for a free place and for any cool-down to pass, and hold the place.

        A larger ``priority`` is more urgent.
        """
        await self.start()
        if self._active < self._places:
            self._active += 1
        else:
            await self._turn(priority)
        try:
            await self._cooled_down()
            yield
        finally:
            self._leave()

    async def _turn(self, priority: int) -> None:
        """Wait for a place that another hands on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heappush(self._queue, (-priority, self._count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it had been handed a place in the same moment
            raise

    def _leave(self) -> None:
        """Hand the place on, or give it back."""
        while self._queue:
            _, _, turn = heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self._active -= 1

    def cool_down(self, seconds: float) -> None:
        """Nobody asks for ``seconds`` from now."""
        until = asyncio.get_running_loop().time() + seconds
        self._cool_until_s = max(self._cool_until_s, until)

    def statistics(self) -> GateStatistics:
        """How things stand."""
        left = self._cool_until_s - asyncio.get_running_loop().time()
        return GateStatistics(
            active=self._active,
            waiting=sum(1 for _, _, turn in self._queue if not turn.done()),
            cool_down_s=max(0.0, left),
        )

    async def _cooled_down(self) -> None:
        loop = asyncio.get_running_loop()
        # Another caller may prolong the cool-down meanwhile, so look again.
        while (left := self._cool_until_s - loop.time()) > 0:  # noqa: ASYNC110  # time, not a flag
            await asyncio.sleep(left)


class Gates:
    """The gates of a runtime: in front of its own engine, and of those that agents bring along."""

    def __init__(self, engine: Engine) -> None:
        self._own = Gate(engine)
        self._others: dict[int, Gate] = {}

    @property
    def engine(self) -> Engine:
        """The runtime's own engine."""
        return self._own.engine

    def of(self, engine: Engine | None) -> Gate:
        """The gate in front of ``engine``, or of the runtime's own."""
        if engine is None or engine is self._own.engine:
            return self._own
        # By identity: engines need not be hashable. The gate keeps its engine alive.
        return self._others.setdefault(id(engine), Gate(engine))

    async def close(self) -> None:
        """Close all engines behind them."""
        async with AsyncExitStack() as stack:  # all of them, even if one fails
            for gate in (self._own, *self._others.values()):
                stack.push_async_callback(gate.engine.close)
