"""Ctrl-C and SIGTERM.

The first one cancels the work, so that the run records that it was interrupted. The second
leaves at once: what the log holds by then was written in whole transactions, so it is sound.
Plain signal handlers, not the loop's: a loop that a flow keeps busy must still be left.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from accord.cli.failures import INTERRUPTED, Interrupted

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def treat_sigterm_as_ctrl_c() -> None:
    """Outside of a loop, both raise ``KeyboardInterrupt``."""

    def raise_interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, raise_interrupt)


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run(work)``; raises :class:`Interrupted` if a signal, or itself, cancelled it."""
    # The handlers outlive the loop's end, where it waits for its threads.
    with _Stopper() as stopper, asyncio.Runner() as runner:
        stopper.loop = runner.get_loop()
        try:
            return runner.run(stopper.watched(work))
        except asyncio.CancelledError:
            raise Interrupted from None


class _Stopper:
    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    async def watched(self, work: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        if self._asked:
            work.close()
            raise asyncio.CancelledError
        return await work

    def __enter__(self) -> Self:
        for number in SIGNALS:
            # Started in the background, or under nohup: the user wants it to go on.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            _leave_at_once()
        self._asked = True
        # Through the file descriptor: Python's own buffer may be in use right here.
        with suppress(OSError):
            os.write(2, b"\ninterrupted; ending cleanly (once more leaves at once)\n")
        if self.loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop has closed: all is done
                self.loop.call_soon_threadsafe(self._task.cancel)


def _leave_at_once() -> NoReturn:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\x1b[?25h\n")  # the live view hides the cursor
    os._exit(INTERRUPTED)
