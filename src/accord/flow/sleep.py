"""A pause that survives a crash: what was waited before need not be waited again."""

from __future__ import annotations

import asyncio

from accord.clock import NANOSECONDS
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.scope import CallScope


async def sleep(seconds: float) -> None:
    """Wait ``seconds`` on the run's clock, recorded; the tax report calls it waiting."""
    if not seconds >= 0:
        msg = f"sleep needs a time that is not negative, not {seconds!r}"
        raise UsageError(msg)

    async def body(scope: CallScope) -> None:
        log = scope.execution.log
        began_ns = log.envelopes[scope.start].at
        await asyncio.sleep(max(0.0, seconds - (log.now() - began_ns) / NANOSECONDS))

    await call("sleep", "sleep", [seconds], body, pure=True)
