"""``accord runs``, ``accord prune``, ``accord delete``: what the log keeps."""

from __future__ import annotations

import argparse
from itertools import starmap
from typing import Any

from accord.cli.failures import SUCCESS
from accord.cli.render import clean, columns, count, heading, styled
from accord.cli.stores import forked_from, log_path, reading, status_of_listed, when
from accord.cli.streams import Answer, say
from accord.errors import UsageError
from accord.log.store.base import Pruned, RunInfo

STYLES = {
    "failed": "red",
    "unreadable": "red",
    "stopped": "yellow",
    "running": "bold",
    "waiting": "yellow",
}
DAY_S = 24 * 3600


def runs_command(options: argparse.Namespace) -> int:
    """``accord runs``."""
    answer = Answer()
    path = log_path(options.log)
    infos: list[tuple[RunInfo, str]] = []
    if options.log is not None or path.exists():
        with reading(options.log) as store:
            infos = [(info, forked_from(store, info)) for info in store.runs(limit=options.limit)]
    if options.json:
        answer.document(list(starmap(_plain, infos)))
    elif not infos:
        say(f"no runs yet in {path}; start one with accord demo, or accord run FILE.py")
    else:
        titles = heading("run", "flow", "status", "started", "events")
        answer.show(*columns([titles, *starmap(_row, infos)], "<<<<>"))
        if len(infos) == options.limit:
            say(f"the newest {options.limit} of {path}; more with --limit N")
    return SUCCESS


def _row(info: RunInfo, fork_of: str) -> list[str]:
    status = status_of_listed(info)
    flow = clean(f"{info.flow}, fork of {fork_of}" if fork_of else info.flow)
    named = clean(info.run), flow, styled(status, STYLES.get(status, ""))
    return [*named, when(info.created_at_s), count(info.records)]


def _plain(info: RunInfo, fork_of: str) -> dict[str, Any]:
    return {
        "run": info.run,
        "flow": info.flow,
        "forked_from": fork_of or None,
        "status": status_of_listed(info),
        "started": when(info.created_at_s),
        "started_s": info.created_at_s,
        "updated_s": info.updated_at_s,
        "events": info.records,
    }


def prune_command(options: argparse.Namespace) -> int:
    """``accord prune``."""
    if options.keep is None and options.older_than is None:
        raise UsageError(
            "accord prune needs to know what may go: --keep N (all but the newest N runs), "
            "--older-than DAYS, or both (then only what neither keeps)"
        )
    older_s = None if options.older_than is None else options.older_than * DAY_S
    with reading(options.log) as store:
        return _tell(store.prune(keep_latest=options.keep, older_than_s=older_s))


def delete_command(options: argparse.Namespace) -> int:
    """``accord delete``."""
    with reading(options.log) as store:
        return _tell(store.delete(options.run))


def _tell(pruned: Pruned) -> int:
    runs = "1 run" if pruned.runs == 1 else f"{pruned.runs} runs"
    say(f"removed {runs} ({pruned.records} events, {pruned.blobs} blobs)")
    return SUCCESS
