"""The live view of a run, on stderr.

On a terminal: a table of who is at work, redrawn at most eight times a second by a timer of the
run's own loop (no thread, so no lock; a redraw costs a few milliseconds, a token almost nothing).
Elsewhere: one line for each agent that has finished. A stderr that cannot be written ends the
view, not the run.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from accord.cli.progress import Progress, State, Work
from accord.cli.render import clean, count, seconds
from accord.cli.streams import say
from accord.flow.execution import Listener, Sent, Token
from accord.log.cursor import Cursor
from accord.log.events import Envelope
from accord.log.log import Log

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

REDRAW_S = 0.125
STILL_S = 0.5
"""How long the picture may stand when only time has passed."""
MOST_ROWS = 20
_ORDER: tuple[State, ...] = ("writing", "reading prompt", "working", "retrying", "queued")


class View:
    """Shows nothing: for ``--json`` into a pipe. The others differ in what they show."""

    listener: Listener | None = None

    def opened(self, log: Log) -> None:
        """The run has begun, or goes on."""

    def close(self) -> None:
        """Show the end."""


@contextmanager
def watching(*, quiet: bool, title: str = "") -> Generator[View]:
    """The view that fits this stderr, until the block ends."""
    if sys.stderr.isatty():
        view: View = TableView(title)
    else:
        view = View() if quiet else LineView()
    try:
        yield view
    finally:
        view.close()


class _Following(View, ABC):
    """A place in the log, and a timer on the run's loop that shows what came since."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._log: Log | None = None
        self._cursor: Iterable[Envelope] = ()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, log: Log) -> None:
        resumed = any(envelope.seq for envelope in log.envelopes)
        say(f"run {clean(log.run)}{' goes on' if resumed else ''}")
        self._log, self._cursor = log, Cursor(log)
        self._look()
        self._tick()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> list[Work]:
        """Take in what came since; gives the work that it ended."""
        return [work for each in self._cursor if (work := self._progress.take(each)) is not None]

    def _tick(self) -> None:
        with suppress(OSError, ValueError):
            self._show()
            self._timer = asyncio.get_running_loop().call_later(REDRAW_S, self._tick)

    @abstractmethod
    def _show(self) -> None:
        """Say what there is to say."""


class LineView(_Following):
    """A line for each agent, step or tool that has ended."""

    def close(self) -> None:
        super().close()
        self._show()

    def _show(self) -> None:
        say(*map(line_of, self._look()))


class TableView(_Following):
    """A table of who is at work, in place."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.listener = self._hear
        self._title = title
        self._live: Live | None = None
        self._heard = 0
        self._drawn = self._drawn_ns = 0

    def close(self) -> None:
        super().close()
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.stop()

    async def _hear(self, news: Sent | Token) -> None:
        self._look()
        self._progress.hear(news)
        self._heard += 1

    def _show(self) -> None:
        assert self._log is not None
        self._look()
        now, news = self._log.now(), len(self._log.envelopes) + self._heard
        if news == self._drawn and now - self._drawn_ns <= STILL_S * 1e9:
            return
        self._drawn, self._drawn_ns = news, now
        live = self._live or self._begin()
        room = min(MOST_ROWS, max(1, live.console.height - 3))
        picture = picture_of(self._progress, now, self._title or self._log.run, room)
        live.update(picture, refresh=True)

    def _begin(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        # Data is drawn as it is: no markup, no guesses about colour, no emoji.
        console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        return self._live


def line_of(work: Work) -> str:
    """``[12.3s] writer finished: 210+96 tokens``."""
    assert work.ended_ns is not None
    if work.state == "done":
        took = seconds(work.ended_ns - work.started_ns)
        what = f"{work.prompt}+{work.completion} tokens" if work.kind == "agent" else took
        if work.reused:
            what += ", from the cache" if work.prompt else ""
            what = what if work.prompt else "from the cache"
        said = f"finished: {what}"
    else:
        said = f"{work.state}: {clean(work.error, 200)}" if work.error else work.state
    return f"[{work.ended_ns / 1e9:.1f}s] {clean(work.name)} {said}"


def picture_of(progress: Progress, now_ns: int, title: str, room: int = MOST_ROWS) -> Group:
    """The table, of at most ``room`` rows, and the line of totals."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    rows, rest = visible(progress, room)
    for work in rows:
        table.add_row(*_cells(work, now_ns))
    streaming = sum(work.streaming for work in progress.active.values())
    totals = (
        f"{clean(title)}: {len(progress.active)} at work, {progress.ended} ended"
        + (f" ({progress.failed} failed)" if progress.failed else "")
        + f", {count(progress.tokens + streaming)} tokens, {seconds(now_ns)}"
    )
    return Group(table, *([Text(f"… and {rest}", style="dim")] if rest else []), Text(totals))


def visible(progress: Progress, room: int) -> tuple[list[Work], str]:
    """The rows to draw, and in words what has no room."""
    active = sorted(progress.active.values(), key=lambda work: _ORDER.index(work.state))
    shown, hidden = active[:room], active[room:]
    recent = list(progress.recent)[-max(0, room - len(shown)) :] if len(shown) < room else []
    counts = {state: sum(work.state == state for work in hidden) for state in _ORDER}
    rest = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    return [*recent, *shown], rest


def _cells(work: Work, now_ns: int) -> list[Any]:
    from rich.text import Text

    style = {"done": "dim", "failed": "red", "cancelled": "dim", "writing": "bold"}.get(
        work.state, ""
    )
    took = (work.ended_ns or now_ns) - work.started_ns
    tokens = f"{count(work.tokens)} tokens" if work.tokens else ""
    texts = (clean(work.name, 30), work.state, tokens, seconds(took))
    return [Text(text, style=style) for text in texts]
