"""``accord signal``: a message to a run from outside of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import msgspec

from accord.cli.failures import SUCCESS
from accord.cli.render import clean
from accord.cli.stores import info_of, reading
from accord.cli.streams import next_command, say
from accord.clock import WallClock
from accord.comm.mailbox import check_address
from accord.comm.post import Post
from accord.errors import UsageError
from accord.flow.suspend import questions_of
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.log.store.base import Store


def signal_command(options: argparse.Namespace) -> int:
    """``accord signal``."""
    check_address(options.name)
    with reading(options.log) as store:
        held = info_of(store, options.run).held
        log = read_log(store, options.run, WallClock())
        asks = _check(store, log, options.name)
        store.post(options.run, options.name, msgspec.json.encode(options.value))
    if not asks:
        say(*_no_mailbox(log, options.name))
    if held:
        say(f"sent to {options.name}: run {options.run} takes it when it looks for messages")
    else:
        again = next_command("resume", options.run, options.log)
        say(f"kept for {options.name}; run {options.run} takes it when it goes on: {again}")
    return SUCCESS


def open_questions(store: Store, log: Log) -> list[str]:
    """The ids of the questions to which no answer has been sent."""
    sent = {name for _, name, _ in store.posted(log.run)}
    asked = questions_of(log.envelopes, index_calls(log.envelopes), log.values)
    return [each.id for each in asked if each.id not in sent]


def _check(store: Store, log: Log, name: str) -> bool:
    """Whether it is a question, which must be open; any other name may be listened to later."""
    asked = index_calls(log.envelopes).by_scope.get(name)
    if asked is None or asked.started.kind != "interrupt":
        return False
    waiting = open_questions(store, log)
    if name not in waiting:
        raise UsageError(
            f"question {name!r} of run {log.run!r} has been answered already; "
            f"it waits for {waiting or 'no answer'}"
        )
    return True


def _no_mailbox(log: Log, name: str) -> Iterator[str]:
    """What to say if nobody takes messages of that name so far."""
    asked = index_calls(log.envelopes).by_scope
    boxes = [box for box in log.fold(Post).boxes.values() if not box.is_closed]
    if any(name in box.addresses for box in boxes):
        return
    names = sorted(box.opened.name for box in boxes if box.opened.name not in asked)
    there = f"open: {', '.join(map(clean, names))}" if names else "none is open"
    yield (
        f"run {log.run} has no mailbox {name!r} so far ({there}); "
        "the message is kept, for one may be opened later"
    )
