"""Logs to look at. Looking never makes a file: a mistyped path is an error, not a new log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from accord.clock import WallClock
from accord.errors import LogCorruptError, RunNotFoundError, UsageError
from accord.log.codec import decode_envelope
from accord.log.events import (
    CheckpointSaved,
    Envelope,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunStarted,
    WritesSaved,
)
from accord.log.log import Log, read_log
from accord.log.store.base import RunInfo, Store
from accord.log.store.open import default_path, open_store

THREAD = "thread:"
"""How the runs are named that threads of LangGraph are kept as: see :mod:`accord.langgraph`."""


def log_path(log: str | None) -> Path:
    """Where the log is that ``--log`` names."""
    return default_path() if log is None else Path(log)


@contextmanager
def reading(log: str | None) -> Generator[Store]:
    """The store that ``--log`` names, which must be there."""
    path = log_path(log)
    if not path.exists():
        msg = f"there is no log at {path}; name one with --log PATH, or make one with accord run"
        raise UsageError(msg)
    store = open_store(path, clock=WallClock(), durability="async")
    try:
        yield store
    finally:
        store.close()


def info_of(store: Store, run: str) -> RunInfo:
    """The listing's line of ``run``; the error for one that is missing says what may be meant."""
    try:
        return store.info(run)
    except RunNotFoundError as error:
        thread = f"{THREAD}{run}"
        with suppress(RunNotFoundError):
            store.info(thread)
            msg = f"there is no run {run!r}, but a LangGraph thread: {thread!r}"
            raise UsageError(msg) from error
        raise


def begun(store: Store, run: str) -> Log:
    """The log of a run that has events."""
    info_of(store, run)
    log = read_log(store, run, WallClock())
    if not log.envelopes:
        msg = f"run {run!r} has no events yet: it stopped, or is only starting"
        raise UsageError(msg)
    return log


def forked_from(store: Store, info: RunInfo) -> str:
    """The run that this one is a fork of; empty if it is none, or cannot be read."""
    with suppress(LogCorruptError):
        for record in store.read(info.run, limit=1):
            started = decode_envelope(record).event
            return started.forked_from if isinstance(started, RunStarted) else ""
    return ""


def status_of(last: Envelope | None, *, held: bool) -> str:
    """finished, failed, interrupted, waiting, running, or stopped: it ended without saying so.

    A thread of another framework, which never ends, is saved.
    """
    match last.event if last is not None else None:
        case RunFinished():
            return "finished"
        case RunFailed():
            return "failed"
        case RunInterrupted(waits_for=waits_for):
            return "waiting" if waits_for else "interrupted"
        case CheckpointSaved() | WritesSaved():
            return "saved"
        case _:
            return "running" if held else "stopped"


def status_of_listed(info: RunInfo) -> str:
    """As :func:`status_of`, or ``unreadable``."""
    try:
        last = decode_envelope(info.last) if info.last else None
    except LogCorruptError:
        return "unreadable"
    return status_of(last, held=info.held)


def when(epoch_s: float) -> str:
    """A moment in the user's own time."""
    return dt.datetime.fromtimestamp(epoch_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
