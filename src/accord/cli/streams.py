"""What goes where: the answer to stdout, everything else to stderr.

A command whose answer is the output of a flow *claims* stdout: from then on whatever prints
(the user's file, a library, a child process) prints to stderr, and only the :class:`Answer`
reaches the real stdout. Progress is a courtesy: a stderr that cannot be written ends no run.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from shlex import quote
from typing import IO, TYPE_CHECKING, Any

from accord.cli.document import document
from accord.observe.render import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


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
    """The real stdout, kept for the one thing that belongs there."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def write(self, data: bytes) -> None:
        """Write all of it. Raises ``OSError`` if stdout is closed or full."""
        _write_all(self._descriptor, data)

    def show(self, *parts: RenderableType) -> None:
        """Print ``parts`` for people."""
        with open(self._descriptor, "w", encoding="utf-8", closefd=False) as file:
            console(file).print(*parts, sep="\n")

    def text(self, text: str) -> None:
        """``text`` as it stands, on lines of its own."""
        end = "" if text.endswith("\n") else "\n"
        self.write((text + end).encode("utf-8", "backslashreplace"))


def say(*lines: str) -> None:
    """Lines on stderr, if it can be written."""
    with suppress(OSError, ValueError):
        for line in lines:
            print(line, file=sys.stderr)
        sys.stderr.flush()


def next_command(verb: str, run: str, log: str | None) -> str:
    """What to type to do ``verb`` with this run: it names the log if the user named one."""
    named = f" --log {quote(log)}" if log else ""
    return f"accord {verb} {quote(clean(run))}{named}"


def console(file: IO[str]) -> Console:
    """A console that prints data as it is: no markup, no guesses about colour, no emoji."""
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, emoji=False)


def show(*parts: RenderableType, stderr: bool = False) -> None:
    """Print ``parts`` for people."""
    if not stderr:
        console(sys.stdout).print(*parts, sep="\n")
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        console(sys.stderr).print(*parts, sep="\n")


def print_document(value: Any) -> None:
    """``value`` as the one JSON document of this command."""
    sys.stdout.flush()
    _write_all(1, document(value))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def silence_stdout() -> None:
    """Nobody reads any more: what is still buffered must not raise again at exit."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
