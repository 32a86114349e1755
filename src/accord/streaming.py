"""A run as a stream: its log as it grows, with passing news of requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from accord.flow.execution import Listener, Sent, Token
from accord.log.cursor import Cursor
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
        if relay.failure is not None:
            raise relay.failure
    finally:
        relay.left = True
        run.cancel()
        await asyncio.wait([run])


class _Relay:
    """Carries items from the run to the queue, the log's events before the news they precede."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Item | None] = asyncio.Queue(BUFFER)
        self.failure: BaseException | None = None
        self.left = False
        """The consumer has gone: nobody takes from the queue any more."""
        self._cursor: Cursor | None = None
        self._one_at_a_time = asyncio.Lock()

    async def run(self, start: Start) -> None:
        """Run to the end, whatever it is; the last item is None."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._run(start, group)
        except BaseException as error:  # noqa: BLE001  # raised again where the consumer is
            self.failure = error
        if not self.left:
            await self._drain()
            await self.queue.put(None)

    async def _run(self, start: Start, group: asyncio.TaskGroup) -> None:
        pumps: list[asyncio.Task[None]] = []

        def opened(log: Log) -> None:
            self._cursor = Cursor(log)
            pumps.append(group.create_task(self._pump(self._cursor)))

        try:
            await start(self._news, opened)
        except Exception as error:  # noqa: BLE001  # not wrapped in a group
            self.failure = error
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(self, cursor: Cursor) -> None:
        while True:
            await cursor.ready()
            await self._drain()

    async def _news(self, news: Sent | Token) -> None:
        await self._drain()
        await self.queue.put(news)

    async def _drain(self) -> None:
        async with self._one_at_a_time:
            for envelope in self._cursor or ():
                await self.queue.put(envelope)
