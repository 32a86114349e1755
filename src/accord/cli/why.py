"""``accord why``: what an event followed from, back to the run's beginning."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from accord.cli.failures import SUCCESS
from accord.cli.render import clean, columns, heading, seconds, styled
from accord.cli.stores import reading
from accord.cli.streams import Answer
from accord.clock import WallClock
from accord.errors import UsageError
from accord.flow.replay import describe, describe_note
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Event,
    Joined,
    Note,
    Written,
)
from accord.log.log import Log, read_log
from accord.observe.critical import latest_cause

SHOWN_CHARACTERS = 80


def why_command(options: argparse.Namespace) -> int:
    """``accord why``."""
    answer = Answer()
    with reading(options.log) as store:
        log = read_log(store, options.run, WallClock())
        if options.event >= len(log.envelopes):
            raise UsageError(
                f"run {options.run!r} has the events 0 to {len(log.envelopes) - 1}, and no "
                f"{options.event}; `accord show {options.run}` tells them"
            )
        chain = list(chain_of(log.envelopes, options.event))
        if options.json:
            answer.document([_plain(log, envelope) for envelope in chain])
        else:
            titles = heading("event", "at", "place", "what happened", "because of")
            answer.show(*columns([titles, *(_row(log, each) for each in chain)], ">><<<"))
    return SUCCESS


def chain_of(envelopes: list[Envelope], seq: int) -> Iterator[Envelope]:
    """The event, the latest of its causes, the latest of that one's, and so on."""
    envelope = envelopes[seq]
    yield envelope
    while envelope.seq:
        envelope = latest_cause(envelopes, envelope)
        yield envelope


def _row(log: Log, envelope: Envelope) -> list[str]:
    causes = sorted(envelope.causes, reverse=True)
    shown = ", ".join(map(str, causes[:4])) + (f" +{len(causes) - 4}" if len(causes) > 4 else "")
    what = clean(_what(log, envelope.event), SHOWN_CHARACTERS)
    place = clean(envelope.scope) or "the run"
    return [str(envelope.seq), seconds(envelope.at), place, what, styled(shown, "dim")]


def _what(log: Log, event: Event) -> str:
    match event:
        case CallStarted():
            return f"{describe(event)} began"
        case CallFinished() | CallFailed() | CallCancelled() | AttemptFailed():
            started = log.envelopes[event.call].event
            assert isinstance(started, CallStarted)
            return f"{started.kind} {started.name} {_how(event)}"
        case Joined():
            without = f" without {len(event.dropped)} of them" if event.dropped else ""
            return f"{event.branches} branches met{without}"
        case Written() if event.post:
            return f"a message from outside to {event.key}"
        case Note():
            return describe_note(event)
        case _:
            return type(event).__name__


def _how(event: Any) -> str:
    match event:
        case CallFailed() | AttemptFailed():
            return f"failed: {event.error.message}"
        case CallCancelled(suspended=True):
            return "waits for an answer"
        case CallCancelled():
            return "was cancelled"
        case _:
            return "finished"


def _plain(log: Log, envelope: Envelope) -> dict[str, Any]:
    return {
        "event": envelope.seq,
        "at_ns": envelope.at,
        "place": envelope.scope,
        "what": _what(log, envelope.event),
        "causes": list(envelope.causes),
    }
