"""``accord show RUN EVENT``: what one call was sent and what it gave, in full."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from accord.cli.document import document
from accord.cli.render import clean, failure, styled
from accord.errors import LogError, UsageError
from accord.log.events import (
    NOTHING,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Guessed,
    Value,
)
from accord.log.fold import Call, index_calls
from accord.log.log import Log
from accord.observe.exchanges import Exchange, exchanges_of
from accord.observe.places import who


def call_at(log: Log, options: argparse.Namespace) -> Call:
    """The call whose event was named."""
    number: int = options.event
    events = log.envelopes
    if number >= len(events) or not isinstance(events[number].event, CallStarted):
        raise UsageError(
            f"event {number} of run {log.run!r} is not the start of a call; "
            f"`accord show {log.run}` gives their numbers"
        )
    return index_calls(events).by_start[number]


def call_document(log: Log, call: Call) -> dict[str, Any]:
    """The call as plain data: its exchanges with the engine, and its own input and output."""
    return {
        "run": log.run,
        "event": call.start.seq,
        "kind": call.started.kind,
        "name": call.started.name,
        "input": _value(log, call.started.input),
        "output": _output(log, call),
        "exchanges": [msgspec.to_builtins(each) for each in exchanges_of(log, call.scope)],
    }


def guess_document(log: Log, guessed: Guessed) -> dict[str, Any]:
    """A guess as plain data."""
    return {
        "run": log.run,
        "kind": "guess",
        "name": guessed.site,
        "by": guessed.by or None,
        "guess": _value(log, guessed.value),
        "followed": guessed.followed,
    }


def guess_lines(told: dict[str, Any]) -> Iterator[str]:
    """A guess for people."""
    yield styled(f"guess of what {clean(told['name'])} would give", "bold")
    yield from _block("by", told["by"] or "an earlier result")
    yield from _block("guess", _text(told["guess"]))
    if not told["followed"]:
        yield "not followed: guesses there had not paid"


def call_lines(log: Log, call: Call) -> Iterator[str]:
    """The call for people."""
    exchanges = exchanges_of(log, call.scope)
    for exchange in exchanges:
        yield from _exchange_lines(exchange)
    if not exchanges:
        yield styled(f"{call.started.kind} {clean(call.started.name)}", "bold")
        yield from _input_lines(log, call)
        yield from _end_lines(log, call)


def _end_lines(log: Log, call: Call) -> Iterator[str]:
    match call.ended:
        case CallFinished():
            yield from _block("output", _text(_output(log, call)))
        case CallFailed(error=error):
            yield from _block("failed", failure(error))
        case CallCancelled(suspended=True):
            yield "no output yet: it waits for an answer"
        case CallCancelled():
            yield "no output: it was cancelled"
        case None:
            yield "no output yet"


def _input_lines(log: Log, call: Call) -> Iterator[str]:
    """In full where it is kept; else its beginning, what a node reads, or where that came from."""
    started = call.started
    if started.input != NOTHING:
        given = _value(log, started.input)
        alone = isinstance(given, list) and len(cast("list[Any]", given)) == 1
        yield from _block("input", _text(given[0] if alone else given))
    elif started.preview:
        title = "input" if started.kind == "node" else "input, its beginning"
        yield from _block(title, started.preview)
    elif started.kind == "node":
        came = (f"{who(log.envelopes, seq)} (event {seq})" for seq in call.start.causes)
        yield from _block("input", f"the graph's state, as left by {', '.join(came)}")


def _exchange_lines(exchange: Exchange) -> Iterator[str]:
    yield styled(f"{clean(exchange.agent)} at {clean(exchange.scope)}", "bold")
    for message in exchange.messages:
        yield from _block(message.role, message.content)
        for asked in message.tool_calls:
            yield from _block(f"asked for {clean(asked.name)}", asked.arguments)
    if exchange.tools:
        yield f"tools: {clean(', '.join(exchange.tools))}"
    reply = exchange.reply
    if reply is None:
        yield "no reply"
        return
    cut = " (cut at max_tokens)" if exchange.was_cut else ""
    yield from _block(f"reply{cut}", reply.text)
    for asked in reply.tool_calls:
        yield from _block(f"asks for {clean(asked.name)}", asked.arguments)


def _block(title: str, text: str) -> Iterator[str]:
    yield styled(f"--- {title}", "dim")
    for line in text.split("\n"):
        yield clean(line)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else document(value).decode().rstrip("\n")


def _output(log: Log, call: Call) -> Any:
    return _value(log, call.ended.output) if isinstance(call.ended, CallFinished) else None


def _value(log: Log, value: Value) -> Any:
    try:
        return log.values.decode(value)
    except LogError as error:
        return getattr(error, "payload", str(error))  # of a class that is not at hand here
