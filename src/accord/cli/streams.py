"""What goes where: the answer to stdout, everything else to stderr.

A command *claims* stdout: from then on whatever prints (the user's file, a library, a child
process) prints to stderr, and only the :class:`Answer` reaches the real stdout. Progress is a
courtesy: a stderr that cannot be written ends no run.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from shlex import quote
from typing import Any

from accord.cli.document import document
from accord.cli.render import clean, plain


def open_standard_streams() -> None:
    """Make all three exist (a parent may have closed them) and take any character."""
    for wanted in range(3):
        try:
            os.fstat(wanted)
        except OSError:
            # The lowest free descriptor is this one: no file of ours may be taken for it.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class Answer:
    """The real stdout, kept for the one thing that belongs there.

    Writing raises ``OSError`` if it is closed or full.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def text(self, text: str) -> None:
        """``text`` as it stands, on lines of its own."""
        end = "" if text.endswith("\n") else "\n"
        self._write((text + end).encode("utf-8", "backslashreplace"))

    def show(self, *lines: str) -> None:
        """Lines for people."""
        self.text(_dressed("\n".join(lines), self._descriptor))

    def document(self, value: Any) -> None:
        """``value`` as the one JSON document of the command."""
        self._write(document(value))

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if it is none, and a line may have any length."""
        if not os.isatty(self._descriptor):
            return None
        return os.get_terminal_size(self._descriptor).columns or 80

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


def say(*lines: str) -> None:
    """Lines on stderr, if it can be written."""
    with suppress(OSError, ValueError):
        for line in lines:
            print(_dressed(line, 2), file=sys.stderr)
        sys.stderr.flush()


def _dressed(text: str, descriptor: int) -> str:
    """``text`` with its styles, where they are shown and wanted (https://no-color.org)."""
    shown = os.isatty(descriptor) and os.environ.get("TERM") != "dumb"
    return text if shown and not os.environ.get("NO_COLOR") else plain(text)


def next_command(verb: str, run: str, log: str | None) -> str:
    """What to type to do ``verb`` with this run: it names the log if the user named one."""
    named = f" --log {quote(log)}" if log else ""
    return f"accord {verb} {quote(clean(run))}{named}"


def silence_stdout() -> None:
    """Nobody reads any more: what is still buffered must not raise again at exit."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
