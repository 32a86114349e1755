"""``accord show`` and ``accord tax``: one run, read off its log, or a file of messages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from accord.cli.exchange import (
    call_at,
    call_document,
    call_lines,
    guess_document,
    guess_lines,
)
from accord.cli.failures import FAILED, SUCCESS
from accord.cli.render import (
    clean,
    columns,
    count,
    failure,
    heading,
    plain,
    seconds,
    styled,
    tax_lines,
)
from accord.cli.sent import file_of, sent_command
from accord.cli.stores import begun, info_of, reading, status_of, when
from accord.cli.streams import Answer, next_command
from accord.cli.tree import Node, cut_replies, flatten, tree_of
from accord.errors import UnknownOutcomeError
from accord.flow.suspend import questions_of, shown
from accord.log.events import CallFinished, Guessed, RunFailed
from accord.log.fold import Calls, index_calls
from accord.log.log import Log
from accord.log.store.base import RunInfo
from accord.observe.critical import critical_path
from accord.observe.guesses import Guesses
from accord.observe.tax import tax_of, usage_of

_UNKNOWN = f":{UnknownOutcomeError.__name__}"

STYLES = {
    "cut": "yellow",
    "failed": "red",
    "cancelled": "dim",
    "dropped": "dim",
    "unfinished": "yellow",
    "running": "bold",
    "waiting": "yellow",
}


def tax_command(options: argparse.Namespace) -> int:
    """``accord tax``."""
    if (path := file_of(options)) is not None:
        return sent_command(options, path)
    answer = Answer()
    with reading(options.log) as store:
        log = begun(store, options.run)
        tax = tax_of(log, options.prices)
        if options.json:
            answer.document(tax.to_dict())
        else:
            answer.show(*tax_lines(tax, len(cut_replies(log))))
    return SUCCESS if tax.closes else FAILED


def show_command(options: argparse.Namespace) -> int:
    """``accord show``."""
    answer = Answer()
    with reading(options.log) as store:
        info = info_of(
            store, options.run
        )  # before the events: a run that ends now has ended in both
        log = begun(store, options.run)
        if options.event is not None:
            _show_event(log, options, answer)
            return SUCCESS
        calls = index_calls(log.envelopes)
        cut = cut_replies(log)
    status = status_of(log.envelopes[-1], held=info.held)
    critical = {segment.scope for segment in critical_path(log.envelopes, calls, {})}
    guesses = log.fold(Guesses)
    nodes = tree_of(calls, critical, cut, guesses, live=status == "running")
    if options.json:
        answer.document(_plain(log, calls, status, info, nodes))
    else:
        body = _body(nodes, log.envelopes[-1].at, answer.width)
        legend = _legend(calls, cut)
        foot = _foot(log, calls, status, options)
        answer.show(*_head(log, calls, status, info), *body, *legend, *foot)
    return SUCCESS


def _plain(
    log: Log, calls: Calls, status: str, info: RunInfo, nodes: list[Node]
) -> dict[str, object]:
    return {
        "run": log.run,
        "flow": calls.run.flow if calls.run else None,
        "engine": calls.run.engine if calls.run else None,
        "forked_from": (calls.run.forked_from or None) if calls.run else None,
        "status": status,
        "started": when(info.created_at_s),
        "events": len(log.envelopes),
        "duration_ns": log.envelopes[-1].at,
        "usage": usage_of(calls),
        "calls": list(flatten(nodes)),
    }


def _head(log: Log, calls: Calls, status: str, info: RunInfo) -> Iterator[str]:
    usage = usage_of(calls)
    yield (
        f"{styled(f'run {clean(log.run)}', 'bold')}  {styled(status, STYLES.get(status, ''))}, "
        f"{seconds(log.envelopes[-1].at)}, {len(calls.by_scope)} calls, "
        f"{count(usage.prompt)}+{count(usage.completion)} tokens ({count(usage.cached)} cached)"
    )
    what = f"{clean(calls.run.flow)} on {clean(calls.run.engine)}, " if calls.run else ""
    if calls.run and calls.run.forked_from:
        what = f"fork of {clean(calls.run.forked_from)}, {what}"
    yield styled(f"{what}started {when(info.created_at_s)}", "dim")
    yield ""


def _body(nodes: list[Node], now_ns: int, width: int | None) -> Iterator[str]:
    """A line for each place, cut to ``width`` by the beginnings of inputs that it shows."""
    if not nodes:
        yield "no calls"
        return
    placed = list(_walk(nodes, ""))
    titles = heading("state", "tokens", "time", "event ← causes")
    facts = columns([titles, *(_facts(node, now_ns) for node, _ in placed)], "<>>>")
    room = None if width is None else width - 2 - max(len(plain(each)) for each in facts)
    labels = [*heading("call"), *(_label(node, guide, room) for node, guide in placed)]
    first, *lines = columns(zip(labels, facts, strict=True), "<<")
    yield first
    for (node, guide), line in zip(placed, lines, strict=True):
        yield line
        for fault in filter(None, [*node.attempts_failed, node.error]):
            yield styled(f"    {' ' * len(guide)}{clean(fault, 200)}", "red")


def _walk(nodes: list[Node], above: str) -> Iterator[tuple[Node, str]]:
    """Each node with the lines that lead to it."""
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        yield node, f"{above}{'└ ' if last else '├ '}"
        yield from _walk(node.children, f"{above}{'  ' if last else '│ '}")


def _label(node: Node, guide: str, room: int | None) -> str:
    title = _title(node)
    left = None if room is None else max(1, room - len(guide) - len(title) - 3)
    preview = clean(" ".join(clean(node.preview).split()), left)
    mark, weight = ("● ", "bold") if node.critical else ("  ", "")
    shown = f" {styled(preview, 'dim')}" if preview else ""
    return f"{styled(mark, weight)}{styled(guide, 'dim')}{styled(title, weight)}{shown}"


def _title(node: Node) -> str:
    match node.kind:
        case "agent":
            title = clean(node.name)
        case "request" | "sleep" | "actors":
            title = node.kind
        case _:
            title = f"{node.kind} {clean(node.name)}"
    return f"{node.place}: {title}" if node.place else title


def _facts(node: Node, now_ns: int) -> list[str]:
    usage = node.usage_below
    tokens = f"{count(usage.prompt)}+{count(usage.completion)}" if usage.prompt else ""
    if usage.cached:
        tokens += f" ({count(usage.cached)} c.)"
    state = styled(node.state, STYLES.get(node.state, ""))
    return [state, tokens, _took(node, now_ns), styled(_why(node), "dim")]


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


def _show_event(log: Log, options: argparse.Namespace, answer: Answer) -> None:
    number: int = options.event
    event = log.envelopes[number].event if number < len(log.envelopes) else None
    if isinstance(event, Guessed):
        told = guess_document(log, event)
        answer.document(told) if options.json else answer.show(*guess_lines(told))
        return
    call = call_at(log, options)
    if options.json:
        answer.document(call_document(log, call))
    else:
        answer.show(*call_lines(log, call))


def _legend(calls: Calls, cut: set[str]) -> Iterator[str]:
    if calls.by_scope:
        yield ""
        more = "; cut = the reply reached its limit of tokens, and is not kept" if cut else ""
        ends = (call.ended for call in calls.by_scope.values())
        if any(isinstance(end, CallFinished) and end.saved is not None for end in ends):
            more += "; reused = answered by an equal call of before"
        yield styled(f"● on the critical path; c. = cached{more}", "dim")
        yield styled("accord show RUN EVENT: what that call was sent, and what it gave", "dim")


def _foot(log: Log, calls: Calls, status: str, options: argparse.Namespace) -> Iterator[str]:
    if isinstance(calls.ended, RunFailed):
        yield ""
        yield styled(f"failed: {clean(failure(calls.ended.error), 500)}", "red")
    if status in ("failed", "interrupted", "stopped"):
        again = next_command("resume", options.run, options.log)
        if isinstance(calls.ended, RunFailed) and calls.ended.error.type.endswith(_UNKNOWN):
            yield f"if it is to be made again: {again} --repeat-unknown"
        else:
            yield f"go on with: {again}"
    if status == "waiting":
        yield ""
        yield "waits for answers:"
        for asked in questions_of(log.envelopes, calls, log.values):
            answer = f"{next_command('resume', options.run, options.log)} --answer {asked.id}=VALUE"
            yield from (f"  {clean(line)}" for line in shown(asked, log.run).split("\n"))
            yield f"    {styled(answer, 'dim')}"
