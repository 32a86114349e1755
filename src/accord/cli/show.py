"""``accord show`` and ``accord tax``: one run, read off its log."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from accord.cli.failures import FAILED, SUCCESS
from accord.cli.stores import reading, status_of, when
from accord.cli.streams import next_command, print_document, show
from accord.cli.tree import Node, flatten, tree_of, usage_below
from accord.clock import WallClock
from accord.errors import AccordError, UsageError
from accord.log.events import RunEnded, RunFailed
from accord.log.fold import Calls, index_calls
from accord.log.log import Log, read_log
from accord.log.store.base import RunInfo, Store
from accord.observe.render import clean, count, seconds, tax_view
from accord.observe.tax import tax_of, usage_of

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {
    "failed": "red",
    "cancelled": "dim",
    "unfinished": "yellow",
    "running": "bold",
}


def tax_command(options: argparse.Namespace) -> int:
    """``accord tax``."""
    with reading(options.log) as store:
        tax = tax_of(_begun(store, options.run))
    if options.json:
        print_document(tax.to_dict())
    else:
        show(tax_view(tax))
    return SUCCESS if tax.closes else FAILED


def show_command(options: argparse.Namespace) -> int:
    """``accord show``."""
    with reading(options.log) as store:
        log = _begun(store, options.run)
        info = store.info(options.run)
        calls = index_calls(log.envelopes)
        status = _status(store, log, info)
        nodes = tree_of(calls, _critical(log), live=status == "running")
    if options.json:
        print_document(_plain(log, calls, status, info, nodes))
    else:
        now = log.envelopes[-1].at
        show(_head(log, calls, status, info), *_body(nodes, now), *_foot(calls, status, options))
    return SUCCESS


def _begun(store: Store, run: str) -> Log:
    log = read_log(store, run, WallClock())
    if not log.envelopes:
        msg = f"run {run!r} has no events yet: it stopped, or is only starting"
        raise UsageError(msg)
    return log


def _status(store: Store, log: Log, info: RunInfo) -> str:
    last = log.envelopes[-1]
    if isinstance(last.event, RunEnded):
        return status_of(last, held=False)
    if info.held:
        return "running"
    # It may have ended between our two looks.
    fresh = read_log(store, log.run, WallClock()).envelopes
    return status_of(fresh[-1], held=False)


def _critical(log: Log) -> set[str]:
    try:
        return {segment.scope for segment in tax_of(log).critical_path}
    except AccordError:  # a class of the user's cannot be imported here: the tree stands without
        return set()


def _plain(
    log: Log, calls: Calls, status: str, info: RunInfo, nodes: list[Node]
) -> dict[str, object]:
    return {
        "run": log.run,
        "flow": calls.run.flow if calls.run else None,
        "engine": calls.run.engine if calls.run else None,
        "status": status,
        "started": when(info.created_at_s),
        "events": len(log.envelopes),
        "duration_ns": log.envelopes[-1].at,
        "usage": usage_of(calls),
        "calls": flatten(nodes),
    }


def _head(log: Log, calls: Calls, status: str, info: RunInfo) -> RenderableType:
    from rich.text import Text

    usage = usage_of(calls)
    started = calls.run
    text = Text()
    text.append(f"run {clean(log.run)}", "bold")
    text.append(f"  {status}", STYLES.get(status, ""))
    text.append(
        f", {seconds(log.envelopes[-1].at)}, {len(calls.by_scope)} calls, "
        f"{count(usage.prompt)}+{count(usage.completion)} tokens ({count(usage.cached)} cached)\n"
    )
    if started is not None:
        text.append(f"{clean(started.flow)} on {clean(started.engine)}, ", "dim")
    text.append(f"started {when(info.created_at_s)}\n", "dim")
    return text


def _body(nodes: list[Node], now_ns: int) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if not nodes:
        yield Text("no calls")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("call", no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("state", "tokens", "time", "event ← causes"):
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    for node, guide in _walk(nodes, ""):
        table.add_row(*_cells(node, guide, now_ns))
        for line in [*node.attempts, *([node.error] if node.error else [])]:
            table.add_row(Text(f"  {' ' * len(guide)}  {clean(line, 200)}", style="red"))
    table.expand = True
    yield table


def _walk(nodes: list[Node], above: str) -> Iterator[tuple[Node, str]]:
    """Each node with the lines that lead to it."""
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        yield node, f"{above}{'└ ' if last else '├ '}"
        yield from _walk(node.children, f"{above}{'  ' if last else '│ '}")


def _cells(node: Node, guide: str, now_ns: int) -> list[RenderableType]:
    from rich.text import Text

    label = Text()
    label.append("● " if node.critical else "  ", "bold")
    label.append(guide, "dim")
    label.append(_title(node), "bold" if node.critical else "")
    if node.preview:
        label.append(f" {' '.join(clean(node.preview).split())}", "dim")
    usage = usage_below(node)
    tokens = f"{count(usage.prompt)}+{count(usage.completion)}" if usage.prompt else ""
    if usage.cached:
        tokens += f" ({count(usage.cached)} c.)"
    return [
        label,
        Text(node.state, STYLES.get(node.state, "")),
        Text(tokens),
        Text(_took(node, now_ns)),
        Text(_why(node), "dim"),
    ]


def _title(node: Node) -> str:
    match node.kind:
        case "agent":
            return clean(node.name)
        case "request" | "sleep":
            return node.kind
        case _:
            return f"{node.kind} {clean(node.name)}"


def _took(node: Node, now_ns: int) -> str:
    if node.start_ns is None:
        return ""
    if node.end_ns is None:
        return f"{seconds(now_ns - node.start_ns)}+" if node.state else ""
    return seconds(node.end_ns - node.start_ns)


def _why(node: Node) -> str:
    if node.seq is None:
        return ""
    named = [str(cause) for cause in node.causes[:3]]
    more = f"+{len(node.causes) - 3}" if len(node.causes) > 3 else ""
    return f"{node.seq} ← {','.join(named)}{more}"


def _foot(calls: Calls, status: str, options: argparse.Namespace) -> Iterator[RenderableType]:
    from rich.text import Text

    if calls.by_scope:
        yield Text("\n● on the critical path; c. = cached", "dim")
    if isinstance(calls.ended, RunFailed):
        error = calls.ended.error
        name = error.type.rpartition(":")[2]
        yield Text(f"\nfailed: {name}: {clean(error.message, 500)}", "red")
    if status in ("failed", "interrupted", "stopped"):
        yield Text(f"go on with: {next_command('resume', options.run, options.log)}")
