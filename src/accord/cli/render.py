"""Reports for people: numbers with their units, aligned columns, the tax report.

Everything here gives plain lines for :mod:`accord.cli.streams` to print. A style is part of the
text and taken out where it is not for a terminal, so each line can be searched and cut by other
programs. Text of a model, a file or a flow passes through :func:`clean` first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from accord.clock import NANOSECONDS
from accord.engine.base import Usage
from accord.log.events import ErrorRecord
from accord.observe.critical import PARTS, Segment
from accord.observe.tax import Tax
from accord.result import Result

SHORTEST = 0.005
"""Stretches of the critical path below this share of the makespan are told together."""
LONGEST_PATH = 24

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}
_STYLED = re.compile(r"\x1b\[\d+m")


def clean(text: str, limit: int | None = None) -> str:
    """``text`` on one line, without anything that a terminal obeys; cut to ``limit`` signs."""
    flat = _CONTROL.sub(" ", text)
    return flat if limit is None or len(flat) <= limit else flat[: limit - 1] + "…"


def styled(text: str, style: str) -> str:
    """``text`` in a style, if one is named."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text


def plain(text: str) -> str:
    """``text`` without its styles."""
    return _STYLED.sub("", text)


def columns(rows: Iterable[Sequence[str]], sides: str, gap: int = 2) -> list[str]:
    """Rows as aligned lines; ``sides`` has ``<`` or ``>`` for each column."""
    listed = list(rows)
    sizes = [[_width(cell) for cell in row] for row in listed]
    widths = [max(column) for column in zip(*sizes, strict=True)]
    lines: list[str] = []
    for row, taken in zip(listed, sizes, strict=True):
        line = ""
        for cell, size, width, side in zip(row, taken, widths, sides, strict=True):
            room = " " * (width - size)
            line += (cell + room if side == "<" else room + cell) + " " * gap
        lines.append(line.rstrip())
    return lines


def _width(text: str) -> int:
    """The columns that ``text`` takes on a terminal."""
    from rich.cells import cell_len

    bare = plain(text)
    return len(bare) if bare.isascii() else cell_len(bare)


def needed(result: Result[Any]) -> int:
    """The tokens that a run takes where nothing is cached yet."""
    return total(result.usage) + result.tax.reuse.cached.tokens


def heading(*titles: str) -> list[str]:
    """The first row of a table."""
    return [styled(title, "dim") for title in titles]


def count(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


def total(usage: Usage) -> int:
    """All tokens, in and out."""
    return usage.prompt + usage.completion


def seconds(ns: float) -> str:
    """Nanoseconds as a time with a unit: ``350 ms``, ``12.3 s``, ``2 min 05 s``."""
    if ns < NANOSECONDS:
        ms = ns / 1e6
        return f"{ms:.1f} ms" if 0 < ms < 10 else f"{ms:.0f} ms"
    if ns < 120 * NANOSECONDS:
        return f"{ns / NANOSECONDS:.1f} s"
    minutes, rest = divmod(round(ns / NANOSECONDS), 60)
    return f"{minutes} min {rest:02d} s"


def share(part: float, whole: float) -> str:
    """``34%``, or ``<1%`` for what is there but small."""
    if part <= 0 or whole <= 0:
        return "0%"
    percent = 100 * part / whole
    return "<1%" if percent < 0.5 else f"{percent:.0f}%"


def times(ratio: float | None) -> str:
    """``3.4x``."""
    return "unknown" if ratio is None else f"{ratio:.2f}x"


def cost(dollars: float | None) -> str:
    """US dollars; a dash where a price is unknown."""
    if dollars is None:
        return "–"
    return "$0" if dollars == 0 else f"${dollars:.4f}" if dollars < 1 else f"${dollars:,.2f}"


def failure(record: ErrorRecord) -> str:
    """``ValueError: not yet``, in the words of the user's program: not cleaned."""
    return f"{record.type.rpartition(':')[2]}: {record.message}"


def summary_lines(tax: Tax) -> list[str]:
    """The report in a few lines."""
    tokens, whole = tax.tokens, tax.time.makespan
    calls = sum(agent.calls for agent in tax.agents.values())
    counted = f"{count(tokens.prompt)} + {count(tokens.completion)} tokens"
    details = [f"{count(tokens.cached)} cached", f"{count(tokens.repeats)} repeated"]
    if tokens.estimated:
        details.append("estimated in part")
    took = seconds(whole * NANOSECONDS)
    lines = [f"run {clean(tax.run)}: {took}, {calls} agent calls, {counted} ({', '.join(details)})"]
    parts = sorted(((getattr(tax.time, part), part) for part in PARTS), reverse=True)
    shown = [f"{part} {share(value, whole)}" for value, part in parts if value >= 0.01 * whole]
    if shown and whole:
        lines.append(f"time: {', '.join(shown)}")
    lines += reuse_lines(tax)
    if tokens.amplification is not None:
        lines.append(
            f"amplification: {times(tokens.amplification)} the tokens of one agent "
            f"({count(tokens.baseline or 0)})"
        )
    return lines


def tax_lines(tax: Tax, cut_replies: int) -> list[str]:
    """The whole report, made for 80 columns."""
    sides = zip_longest(_tokens(tax, cut_replies), _time(tax), fillvalue="")
    lines = [styled(f"Tax of run {clean(tax.run)}", "bold"), "", *columns(sides, "<<", gap=4)]
    if tax.agents:
        lines += ["", *_agents(tax)]
    if tax.edges:
        lines += ["", *_edges(tax)]
    if tax.waits:
        lines += ["", *_waits(tax)]
    if reused := reuse_lines(tax):
        lines += ["", *reused]
    if tax.critical_path:
        lines += ["", *_path(tax)]
    return [*lines, "", styled(_closing(tax), "" if tax.closes else "red")]


def _closing(tax: Tax) -> str:
    """Whether the report adds up, and what its counts are worth."""
    if not tax.closes:
        return (
            "DOES NOT CLOSE: the parts do not add up to the engine's count and the makespan. "
            "This is a bug in Accord; please report it with the output of accord tax --json"
        )
    counts = "estimates, where the engine gave none" if tax.tokens.estimated else "the engine's own"
    return f"Closes: the parts add up exactly. Token counts are {counts}."


def _tokens(tax: Tax, cut_replies: int) -> list[str]:
    tokens = tax.tokens

    def row(name: str, number: int, whole: int) -> tuple[str, str, str]:
        return name, count(number), share(number, whole)

    rows = [heading("tokens", "", "share")]
    rows += [row(f"  {origin}", n, tokens.prompt) for origin, n in tokens.by_origin.items()]
    rows += [
        row("prompt", tokens.prompt, tokens.total),
        row("completion", tokens.completion, tokens.total),
        (styled("total", "bold"), styled(count(tokens.total), "bold"), ""),
        row("cached prompt", tokens.cached, tokens.prompt),
        row("repeats", tokens.repeats, tokens.prompt),
        row("coordination", tokens.coordination, tokens.total),
    ]
    if tokens.wasted:
        rows.append(row("wasted", tokens.wasted, tokens.total))
    if tax.edges:
        rows.append(row("saved by policy", tokens.saved, tokens.saved + tokens.prompt))
    if tokens.baseline is not None:
        rows.append(("one agent needs", count(tokens.baseline), ""))
    amplification = times(tokens.amplification)
    rows.append((styled("amplification", "bold"), styled(amplification, "bold"), ""))
    if cut_replies:
        rows.append((styled("replies cut", "yellow"), styled(count(cut_replies), "yellow"), ""))
    return columns(rows, "<>>")


def _time(tax: Tax) -> list[str]:
    whole = tax.time.makespan
    rows = [heading("time, critical path", "", "share")]
    for part in PARTS:
        value = getattr(tax.time, part)
        rows.append([f"  {part}", seconds(value * NANOSECONDS), share(value, whole)])
    makespan = seconds(whole * NANOSECONDS)
    rows.append([styled("makespan", "bold"), styled(makespan, "bold"), ""])
    return columns(rows, "<>>")


EDGES_SHOWN = 20


def _edges(tax: Tax) -> list[str]:
    """Who read whose writing, and what the policy kept back; the most saved first."""
    titles = "written by", "read by", "policy", "in full", "sent", "new", "saved", "in money"
    rows = [heading(*titles)]
    ordered = sorted(tax.edges, key=lambda edge: (edge.saved, edge.full), reverse=True)
    for edge in ordered[:EDGES_SHOWN]:
        names = clean(edge.writer or "(flow)", 16), clean(edge.reader, 16), edge.policy
        counts = map(count, (edge.full, edge.sent, edge.new, edge.saved))
        rows.append([*names, *counts, cost(edge.saved_dollars)])
    lines = columns(rows, "<<<>>>>>")
    if len(ordered) > EDGES_SHOWN:
        lines.append(f"and {len(ordered) - EDGES_SHOWN} more; --json shows all")
    return lines


def reuse_lines(tax: Tax) -> list[str]:
    """What the run got for nothing, or early; no lines where there was nothing of it."""
    cached, ahead = tax.reuse.cached, tax.reuse.prefetched
    lines: list[str] = []
    if cached.requests or cached.tools:
        made = sum(agent.requests for agent in tax.agents.values())
        what = [f"{count(cached.requests)} of {count(made)} requests"] if cached.requests else []
        what += [f"{count(cached.tools)} tool calls"] if cached.tools else []
        money = f", {cost(cached.dollars)}" if cached.dollars else ""
        took = seconds(cached.seconds * NANOSECONDS)
        saved = f"saved {count(cached.tokens)} tokens, {took} of calls{money}"
        lines.append(f"cache: {' and '.join(what)}, {saved}")
    if ahead.requests:
        who = ", ".join(clean(agent, 16) for agent in ahead.agents[:4])
        gave_way = f", {count(ahead.preempted)} preempted" if ahead.preempted else ""
        read = f"{count(ahead.read)} of {count(ahead.prompt)} tokens read"
        lines.append(f"prefetch: {count(ahead.requests)} ({who}){gave_way}, {read}; in no total")
    return [*lines, *_speculation(tax)]


def _speculation(tax: Tax) -> list[str]:
    told = tax.reuse.speculated
    parts: list[str] = []
    if told.predicted:
        gained, lost = (seconds(each * NANOSECONDS) for each in (told.gained, told.lost))
        parts.append(f"{count(told.committed)} of {count(told.predicted)} guesses right")
        parts.append(f"{gained} of work early, {lost} and {count(told.wasted)} tokens wasted")
    if told.stopped:
        parts.append(f"{count(told.stopped)} right, and stopped by what cannot be held back")
    if told.rested:
        parts.append(f"{count(told.rested)} not followed, as that had not paid")
    return [f"speculation: {', '.join(parts)}"] if parts else []


WAITS_SHOWN = 8
_NAMELESS = {"sleep": "the time"}


def _waits(tax: Tax) -> list[str]:
    """Who and what was waited for, the longest together first."""
    rows = [heading("waits, all branches", "for", "times", "p50", "p99", "together")]
    for wait in tax.waits[:WAITS_SHOWN]:
        times_s = wait.p50_s, wait.p99_s, wait.total_s
        taken = (seconds(time_s * NANOSECONDS) for time_s in times_s)
        name = clean(wait.name, 24) or _NAMELESS.get(wait.kind, "(the flow)")
        rows.append([f"  {wait.kind}", name, count(wait.count), *taken])
    lines = columns(rows, "<<>>>>")
    if len(tax.waits) > WAITS_SHOWN:
        lines.append(f"and {len(tax.waits) - WAITS_SHOWN} more; --json shows all")
    return lines


def _agents(tax: Tax) -> list[str]:
    titles = "agent", "calls", "failed", "p50", "p99", "prompt", "cached", "repeats", "reply"
    rows = [heading(*titles, "cost")]
    for name, agent in tax.agents.items():
        times_s = agent.p50_s, agent.p99_s
        counts = agent.prompt, agent.cached, agent.repeats, agent.completion
        rows.append(
            [
                clean(name, 16),
                *map(count, (agent.calls, agent.failures)),
                *(seconds(time_s * NANOSECONDS) for time_s in times_s),
                *map(count, counts),
                cost(agent.cost),
            ]
        )
    return columns(rows, "<>>>>>>>>>")


@dataclass
class Stretch:
    """Neighbouring segments of the critical path with one agent or step at work."""

    name: str
    start_ns: int
    end_ns: int
    parts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def length_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


def stretches(path: Iterable[Segment]) -> list[Stretch]:
    """The critical path with segments of the same agent or step joined."""
    found: list[Stretch] = []
    for segment in path:
        if not found or found[-1].name != segment.name:
            found.append(Stretch(segment.name, segment.start_ns, segment.end_ns))
        last = found[-1]
        last.end_ns = segment.end_ns
        for part, ns in segment.parts.items():
            last.parts[part] = last.parts.get(part, 0) + ns
    return found


def _path(tax: Tax) -> list[str]:
    return columns([heading("critical path", "", "", ""), *_path_rows(tax)], "><><")


def _path_rows(tax: Tax) -> Iterator[list[str]]:
    """Start, who, how long, what it was. What is short is summed."""
    whole_ns = tax.time.makespan * NANOSECONDS
    found = stretches(tax.critical_path)
    long = [each for each in found if each.length_ns >= SHORTEST * whole_ns]
    kept = sorted(long, key=lambda each: -each.length_ns)[:LONGEST_PATH]
    for each in sorted(kept, key=lambda each: each.start_ns):
        what = ", ".join(
            f"{part} {seconds(ns)}"
            for part, ns in sorted(each.parts.items(), key=lambda item: -item[1])
            if ns >= 0.05 * each.length_ns
        )
        first, *more = wrap(what, 36) or [""]
        who = clean(each.name, 24) or "(the flow)"
        yield [f"at {seconds(each.start_ns)}", who, seconds(each.length_ns), first]
        yield from (["", "", "", line] for line in more)
    rest = [each for each in found if each not in kept]
    if rest:
        yield ["", f"{len(rest)} shorter", seconds(sum(each.length_ns for each in rest)), ""]
