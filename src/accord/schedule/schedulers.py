"""The schedulers of a runtime, one in front of each engine; limits count over all of them."""

from __future__ import annotations

from contextlib import AsyncExitStack

from accord.engine.base import Engine
from accord.schedule.limits import Limits
from accord.schedule.scheduler import Scheduler
from accord.schedule.settings import Settings


class Schedulers:
    """Those of a runtime: in front of its own engine, and of those that agents bring along."""

    def __init__(self, engine: Engine, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._book = (self._settings.limits or Limits()).book
        self._own = self._in_front_of(engine)
        self._others: dict[int, Scheduler] = {}

    @property
    def tenant(self) -> str:
        """For whom all of this is."""
        return self._settings.tenant

    @property
    def engine(self) -> Engine:
        """The runtime's own engine."""
        return self._own.engine

    def of(self, engine: Engine | None) -> Scheduler:
        """The scheduler in front of ``engine``, or of the runtime's own."""
        if engine is None or engine is self._own.engine:
            return self._own
        # By identity: engines need not be hashable. The scheduler keeps its engine alive.
        if id(engine) not in self._others:
            self._others[id(engine)] = self._in_front_of(engine)
        return self._others[id(engine)]

    def lift(self) -> None:
        """Somebody who waits for others has become more urgent."""
        for each in self._all():
            each.lift()

    def ended(self, run: str) -> None:
        """``run`` asks no more."""
        self._book.ended(run)
        for each in self._all():
            each.ended(run)

    async def close(self) -> None:
        """Close all engines behind them."""
        async with AsyncExitStack() as stack:  # all of them, even if one fails
            for each in self._all():
                stack.push_async_callback(each.engine.close)

    def _all(self) -> list[Scheduler]:
        return [self._own, *self._others.values()]

    def _in_front_of(self, engine: Engine) -> Scheduler:
        return Scheduler(engine, self._settings)
