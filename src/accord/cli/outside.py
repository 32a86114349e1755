"""``accord signal``: a message to a run from outside of it."""

from __future__ import annotations

import argparse

import msgspec

from accord.cli.failures import SUCCESS
from accord.cli.stores import reading
from accord.cli.streams import next_command, say
from accord.clock import WallClock
from accord.comm.mailbox import check_address
from accord.errors import UsageError
from accord.flow.suspend import questions_of
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.log.store.base import Store


def signal_command(options: argparse.Namespace) -> int:
    """``accord signal``."""
    check_address(options.name)
    with reading(options.log) as store:
        _check(store, options)
        held = store.info(options.run).held
        store.post(options.run, options.name, msgspec.json.encode(options.value))
    if held:
        say(f"sent to {options.name}: run {options.run} takes it when it looks for messages")
    else:
        again = next_command("resume", options.run, options.log)
        say(f"kept for {options.name}; run {options.run} takes it when it goes on: {again}")
    return SUCCESS


def _check(store: Store, options: argparse.Namespace) -> None:
    """An answer must be to an open question; any other name may be listened to later."""
    log = read_log(store, options.run, WallClock())
    calls = index_calls(log.envelopes)
    asked = calls.by_scope.get(options.name)
    if asked is None or asked.started.kind != "interrupt":
        return
    if options.name not in _open(log) or options.name in _sent(store, options.run):
        raise UsageError(
            f"question {options.name!r} of run {options.run!r} has been answered already; "
            f"it waits for {_open(log) or 'no answer'}"
        )


def _open(log: Log) -> list[str]:
    calls = index_calls(log.envelopes)
    return [each.id for each in questions_of(log.envelopes, calls, log.values)]


def _sent(store: Store, run: str) -> set[str]:
    return {name for _, name, _ in store.posted(run)}
