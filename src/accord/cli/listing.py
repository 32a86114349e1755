"""``accord runs``, ``accord prune``, ``accord delete``: what the log keeps."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from accord.cli.stores import log_path, reading, status_of_listed, when
from accord.cli.streams import print_document, say, show
from accord.errors import UsageError
from accord.log.store.base import Pruned, RunInfo
from accord.observe.render import clean, count

STYLES = {"failed": "red", "unreadable": "red", "stopped": "yellow", "running": "bold"}
DAY_S = 24 * 3600


def runs_command(options: argparse.Namespace) -> int:
    """``accord runs``."""
    path = log_path(options.log)
    infos: list[RunInfo] = []
    if options.log is not None or path.exists():
        with reading(options.log) as store:
            infos = store.runs(limit=options.limit)
    if options.json:
        print_document([_plain(info) for info in infos])
    elif not infos:
        say(f"no runs yet in {path}; start one with accord demo, or accord run FILE.py")
    else:
        _print(infos, path, options.limit)
    return 0


def _print(infos: list[RunInfo], path: Path, limit: int) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("run", "flow", "status", "started"):
        table.add_column(title, no_wrap=title != "run", overflow="fold")
    table.add_column("events", justify="right")
    for info in infos:
        status = status_of_listed(info)
        table.add_row(
            Text(clean(info.run)),
            Text(clean(info.flow)),
            Text(status, STYLES.get(status, "")),
            Text(when(info.created_at_s)),
            Text(count(info.records)),
        )
    show(table)
    if len(infos) == limit:
        say(f"the newest {limit} of {path}; more with --limit N")


def _plain(info: RunInfo) -> dict[str, Any]:
    return {
        "run": info.run,
        "flow": info.flow,
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
        _tell(store.prune(keep_latest=options.keep, older_than_s=older_s))
    return 0


def delete_command(options: argparse.Namespace) -> int:
    """``accord delete``."""
    with reading(options.log) as store:
        _tell(store.delete(options.run))
    return 0


def _tell(pruned: Pruned) -> None:
    runs = "1 run" if pruned.runs == 1 else f"{pruned.runs} runs"
    say(f"removed {runs} ({pruned.records} events, {pruned.blobs} blobs)")
