"""``accord signal``: a message to a run from outside of it."""

from __future__ import annotations

import argparse

from accord.cli.failures import SUCCESS
from accord.cli.stores import reading
from accord.cli.streams import next_command, say
from accord.clock import WallClock
from accord.flow.suspend import check_signal, plain_json


def signal_command(options: argparse.Namespace) -> int:
    """``accord signal``."""
    with reading(options.log) as store:
        check_signal(store, options.run, options.name, WallClock())
        held = store.info(options.run).held
        store.post(options.run, options.name, plain_json(options.value, "the message"))
    if held:
        say(f"sent to {options.name}: run {options.run} takes it when it looks for messages")
    else:
        again = next_command("resume", options.run, options.log)
        say(f"kept for {options.name}; run {options.run} takes it when it goes on: {again}")
    return SUCCESS
