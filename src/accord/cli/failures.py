"""Errors as a user sees them: one short message, an exit code, never a bare traceback.

====  =================================================================================
 0    success
 1    the run failed, or a fault was found
 2    the command asked for something that cannot be
 3    the run waits for an answer
130   interrupted
====  =================================================================================
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accord
from accord.cli.render import clean
from accord.cli.streams import next_command, say
from accord.errors import (
    AccordError,
    FlowChangedError,
    RunLockedError,
    RunNotFoundError,
    RunSuspendedError,
    UnknownOutcomeError,
    UsageError,
)

SUCCESS, FAILED, USAGE, WAITING, INTERRUPTED = 0, 1, 2, 3, 130
FRAMES = 3
_LIBRARIES = tuple(
    {
        str(Path(accord.__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    }
)


class Interrupted(BaseException):
    """The user asked to stop, and the work has stopped. No error, so nothing may swallow it."""


class FlowFileError(UsageError):
    """The user's file could not be loaded; its cause is what the file raised."""


class FlowExitedError(AccordError):
    """The flow, or its file, called ``sys.exit``."""


def tell(
    error: BaseException, *, debug: bool, run: str | None = None, log: str | None = None
) -> int:
    """Say on stderr what happened and what to do next; gives the exit code."""
    if isinstance(error, KeyboardInterrupt | Interrupted):
        if run is None:
            say("interrupted; no run had begun")
        else:
            say(f"run {run} was interrupted; go on with: {next_command('resume', run, log)}")
        return INTERRUPTED
    if isinstance(error, RunSuspendedError):
        say(*(clean(line) for line in f"accord: {error}".split("\n")))
        return WAITING
    if debug or os.environ.get("ACCORD_DEBUG") == "1":
        say("".join(traceback.format_exception(error)).rstrip())
    for line in message_of(error, run, log):
        say(*(clean(part) for part in line.split("\n")))  # a server's words may be in it
    return USAGE if isinstance(error, UsageError | RunNotFoundError) else FAILED


def message_of(error: BaseException, run: str | None = None, log: str | None = None) -> list[str]:
    """The lines of the message."""
    if isinstance(error, FlowFileError):
        return [f"accord: {error}", *_frames(error.__cause__)]
    head = "accord: " if run is None else f"accord: run {run} failed: "
    lines = [f"{head}{brief(error)}", *_shown_frames(error)]
    if run is not None and not _says_what_to_do(error):
        lines.append(f"when the cause is mended, go on with: {next_command('resume', run, log)}")
    return lines


def brief(error: BaseException) -> str:
    """An error in one line, or in its own lines if it is one of ours."""
    if isinstance(error, AccordError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    causes = list(_leaves(error))
    shown = "; ".join(_one(cause) for cause in causes[:3])
    return shown if len(causes) <= 3 else f"{shown}; and {len(causes) - 3} more"


def describe(error: BaseException) -> dict[str, Any]:
    """An error in a JSON document."""
    return {"type": type(error).__name__, "message": brief(error)}


def _one(error: BaseException) -> str:
    if isinstance(error, AccordError):
        return brief(error)
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What a task group's failure is made of."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
            yield from _leaves(each)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def _says_what_to_do(error: BaseException) -> bool:
    return isinstance(error, FlowChangedError | RunLockedError | UnknownOutcomeError)


def _shown_frames(error: BaseException) -> list[str]:
    """Our own errors say all in their message; one of the flow's needs its place."""
    for cause in _leaves(error):
        if not isinstance(cause, AccordError | OSError) or isinstance(cause, FlowExitedError):
            return _frames(cause.__cause__ if isinstance(cause, FlowExitedError) else cause)
    return []


def _frames(error: BaseException | None) -> list[str]:
    """The last places in the user's own files that ``error`` came through."""
    if error is None:
        return []
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<frozen"))]
    return [line.rstrip() for frame in own[-FRAMES:] for line in traceback.format_list([frame])]
