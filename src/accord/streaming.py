"""A run as a stream: its log as it grows, with passing news of requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from accord.flow.execution import Listener, Sent, Token
from accord.log.events import Envelope
from accord.log.log import Log

BUFFER = 256
"""Items that may wait for the consumer. When they do, the run waits for it, too."""

Item = Envelope | Sent | Token
Start = Callable[[Listener, Callable[[Log], None]], Awaitable[Any]]


async def stream_of(start: Start) -> AsyncGenerator[Item]:
    """The items of the run that ``start(listener, opened)`` runs.

    Raises what the run raises, after its last event. Closing the iterator cancels the run.
    """
    relay = _Relay()
    # A TaskGroup must not span a yield; this task ends in the finally below, whatever happens.
    run = asyncio.create_task(relay.run(start))  # noqa: TID251
    try:
        while (item := await relay.queue.get()) is not None:
            yield item
    finally:
        run.cancel()
        await asyncio.wait([run])
    if relay.failure is not None:
        raise relay.failure


class _Relay:
    """Carries items from the run to the queue, the log's events before the news they precede."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Item | None] = asyncio.Queue(BUFFER)
        self.failure: Exception | None = None
        self._log: Log | None = None
        self._passed_on = 0
        self._turn = asyncio.Lock()

    async def run(self, start: Start) -> None:
        async with asyncio.TaskGroup() as group:
            pump: list[asyncio.Task[None]] = []

            def opened(log: Log) -> None:
                self._log = log
                pump.append(group.create_task(self._pump(log)))

            try:
                await start(self._news, opened)
            except Exception as error:  # noqa: BLE001  # raised again where the consumer is
                self.failure = error
            for task in pump:
                task.cancel()
        await self._drain()
        await self.queue.put(None)

    async def _pump(self, log: Log) -> None:
        while True:
            await log.changed(self._passed_on)
            await self._drain()

    async def _news(self, news: Sent | Token) -> None:
        await self._drain()
        await self.queue.put(news)

    async def _drain(self) -> None:
        async with self._turn:
            log = self._log
            while log is not None and self._passed_on < len(log.envelopes):
                # Counted only once it is there: cancelled in between, it is passed on later.
                await self.queue.put(log.envelopes[self._passed_on])
                self._passed_on += 1
