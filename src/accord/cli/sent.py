"""``accord tax FILE``: what the messages of another system cost to send, and what they might."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from accord.cli.failures import SUCCESS
from accord.cli.render import clean, columns, cost, count, heading, share, styled
from accord.cli.stores import log_path, reading
from accord.cli.streams import Answer
from accord.errors import AccordError, UsageError
from accord.observe.messages import MessageLog, Skipped, read_messages
from accord.observe.sent import PromptCost, VisibilityReport, sent_of
from accord.observe.whatif import Visibility

SHOWN: tuple[Visibility, ...] = ("full", "diff", "summary", "keys", "last")
MOST_EDGES = 12
MOST_SKIPPED = 20

_LEGEND = (
    "sent: prompt tokens, estimated. new: those that the engine doesn't hold from the",
    "agent's last prompt. full: all there is, before each turn. diff: each piece once,",
    "behind what was seen before. summary: as diff, and what was seen gives way to a",
    "bounded summary where that pays. keys: handles and sizes. What these don't show",
    "is recalled by its handle. last: the newest piece alone.",
)


def file_of(options: argparse.Namespace) -> Path | None:
    """The file that is meant, if it is one: a run of that name in the log comes first."""
    named: str = options.run
    if not os.path.exists(named):  # noqa: PTH110  # Path.exists raises for some names
        if os.sep in named or Path(named).suffix in (".json", ".jsonl"):
            raise UsageError(f"there is no file {named!r}")
        return None
    if os.sep not in named and log_path(options.log).exists():
        with suppress(AccordError), reading(options.log) as store:
            store.info(named)
            return None
    return Path(named)


def sent_command(options: argparse.Namespace, path: Path) -> int:
    """The report on a file of messages."""
    answer = Answer()
    log = read_messages(path)
    report = sent_of(log.conversations, options.prices)
    if options.json:
        answer.document(_plain(path, log, report))
    else:
        answer.show(*_lines(path, log, report))
    return SUCCESS


def _plain(path: Path, log: MessageLog, report: VisibilityReport) -> dict[str, object]:
    return {
        "file": str(path),
        "formats": log.formats,
        "estimated": True,
        **report.to_dict(),
        "counted_by_engines": log.usage,
        "parts_not_counted": log.not_counted,
        "skipped": {
            "count": len(log.skipped),
            "first": [each._asdict() for each in log.skipped[:MOST_SKIPPED]],
        },
    }


def _lines(path: Path, log: MessageLog, report: VisibilityReport) -> Iterator[str]:
    conversations = f"{count(report.conversations)} conversation{'s' * (report.conversations != 1)}"
    yield styled(f"Messages of {clean(str(path))}", "bold")
    yield (
        f"{' and '.join(log.formats)}: {conversations}, {count(report.turns)} turns, "
        f"{count(report.written)} tokens written"
    )
    yield ""
    yield from _policies(report)
    yield ""
    yield from _agents(report)
    yield ""
    yield from _edges(report)
    yield ""
    yield from (styled(line, "dim") for line in _LEGEND)
    yield from _notes(log)


def _policies(report: VisibilityReport) -> list[str]:
    unit = "priced" if report.unit == "dollars" else "priced (cached: 1/10)"
    rows = [heading("policy", "sent", "of written", "new", unit, "of full")]
    for policy in SHOWN:
        spent, full = report.policies[policy], report.policies["full"]
        ratio = f"{spent.sent / report.written:.1f}x" if report.written else "–"
        priced = cost(spent.priced) if report.unit == "dollars" else count(round(spent.priced))
        of_full = share(spent.priced, full.priced)
        rows.append([policy, count(spent.sent), ratio, count(spent.new), priced, of_full])
    return columns(rows, "<>>>>>")


def _agents(report: VisibilityReport) -> list[str]:
    rows = [heading("agent", "turns", *_TITLES)]
    for name, agent in report.agents.items():
        rows.append([clean(name, 16), count(agent.turns), *_cells(agent.policies)])
    return columns(rows, "<>>>>>>>")


def _edges(report: VisibilityReport) -> list[str]:
    rows = [heading("written by", "read by", *_TITLES)]
    for edge in report.edges[:MOST_EDGES]:
        names = clean(edge.writer, 16) or "(headings)", clean(edge.reader, 16)
        rows.append([*names, *_cells(edge.policies)])
    lines = columns(rows, "<<>>>>>>")
    rest = len(report.edges) - MOST_EDGES
    return [*lines, f"and {count(rest)} more; --json shows all"] if rest > 0 else lines


_TITLES = ("full", "diff: new", "summary", "new", "keys", "last")


def _cells(policies: dict[Visibility, PromptCost]) -> list[str]:
    summary = policies["summary"]
    numbers = (
        policies["full"].sent,
        policies["diff"].new,
        summary.sent,
        summary.new,
        policies["keys"].sent,
        policies["last"].sent,
    )
    return [count(number) for number in numbers]


def _notes(log: MessageLog) -> Iterator[str]:
    if log.usage is not None:
        usage = log.usage
        yield (
            f"The engines counted {count(usage.prompt)} prompt tokens ({count(usage.cached)} "
            f"cached) and {count(usage.completion)} of replies."
        )
    for kind, number in log.not_counted.items():
        yield styled(
            f"not counted: {count(number)} parts that are no text ({clean(kind)})", "yellow"
        )
    for why, number in Counter(each.why for each in log.skipped).most_common(MOST_SKIPPED):
        first = next(each for each in log.skipped if each.why == why)
        yield styled(f"skipped: {_where(first, number)}, {clean(why)}", "yellow")


def _where(first: Skipped, number: int) -> str:
    where = first.where or "1 value"
    return where if number == 1 else f"{where} and {count(number - 1)} more"
