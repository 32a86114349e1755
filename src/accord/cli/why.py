"""``accord why``: what an event followed from, back to the run's beginning."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from accord.cli.failures import SUCCESS
from accord.cli.render import clean, columns, heading, seconds, styled
from accord.cli.stores import begun, reading
from accord.cli.streams import Answer
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
from accord.log.fold import index_calls
from accord.log.log import Log
from accord.observe.critical import latest_cause
from accord.observe.places import who

SHOWN_CHARACTERS = 80
NAMED = 2
"""The most of the other causes that are told by name."""


def why_command(options: argparse.Namespace) -> int:
    """``accord why``."""
    answer = Answer()
    with reading(options.log) as store:
        log = begun(store, options.run)
        chain = list(chain_of(log.envelopes, _number(log, options.event)))
        if options.json:
            answer.document([_plain(log, envelope) for envelope in chain])
        else:
            titles = heading("event", "at", "place", "what happened", "because of")
            answer.show(*columns([titles, *(_row(log, each) for each in chain)], ">><<<"))
    return SUCCESS


def _number(log: Log, event: str) -> int:
    """The event that was meant: by its number, or the last one of the calls of that name."""
    last = len(log.envelopes) - 1
    if event.isdecimal() and int(event[:19]) <= last:
        return int(event[:19])
    named = {
        call.started.name: call.last
        for call in sorted(index_calls(log.envelopes).by_start.values(), key=lambda it: it.last)
        if call.started.kind != "request"  # those have the names of their agents
    }
    if event in named:
        return named[event]
    what = f"no {event}" if event.isdecimal() else f"no call named {event!r}"
    raise UsageError(
        f"run {log.run!r} has the events 0 to {last}, and {what}; "
        f"`accord show {log.run}` tells them"
    )


def chain_of(envelopes: list[Envelope], seq: int) -> Iterator[Envelope]:
    """The event, the latest of its causes, the latest of that one's, and so on."""
    envelope = envelopes[seq]
    yield envelope
    while envelope.seq:
        envelope = latest_cause(envelopes, envelope)
        yield envelope


def _row(log: Log, envelope: Envelope) -> list[str]:
    shown = str(max(envelope.causes, default=""))
    if others := _others(log, envelope):
        named = [clean(name, 24) for name in others[:NAMED]]
        more = [f"{len(others) - NAMED} more"] if len(others) > NAMED else []
        shown += f", also: {', '.join([*named, *more])}"
    what = clean(_what(log, envelope.event), SHOWN_CHARACTERS)
    place = clean(envelope.scope) or "the run"
    return [str(envelope.seq), seconds(envelope.at), place, what, styled(shown, "dim")]


def _others(log: Log, envelope: Envelope) -> list[str]:
    """Whose the other causes are, the latest first; a place where the flow's own code was it."""
    events = log.envelopes
    others = sorted(envelope.causes, reverse=True)[1:]
    return [who(events, seq) or events[seq].scope or "the run" for seq in others]


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
        "also": _others(log, envelope),
    }
