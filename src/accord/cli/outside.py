"""``accord signal``: a message to a run from outside of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from accord.cli.failures import SUCCESS
from accord.cli.render import clean
from accord.cli.stores import info_of, reading
from accord.cli.streams import next_command, say
from accord.clock import WallClock
from accord.comm.mailbox import check_address
from accord.comm.post import Post
from accord.flow.suspend import check_signal, plain_json, questions_of
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.log.store.base import Store


def signal_command(options: argparse.Namespace) -> int:
    """``accord signal``."""
    with reading(options.log) as store:
        held = info_of(store, options.run).held
        log = read_log(store, options.run, WallClock())
        check_address(options.name)
        check_signal(log, options.name, {name for _, name, _ in store.posted(options.run)})
        asks = options.name in open_questions(store, log)
        store.post(options.run, options.name, plain_json(options.value, "the message"))
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
