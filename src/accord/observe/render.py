"""Reports for people: pure functions from a tax report to numbers with units, and to tables.

Fits 80 columns. Text that came from a model, a file or a flow passes through :func:`clean`
before it reaches a terminal. ``rich`` is imported when something is drawn, not before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from accord.clock import NANOSECONDS
from accord.observe.critical import PARTS, Segment
from accord.observe.tax import Tax

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

SHORTEST = 0.005
"""Stretches of the critical path below this share of the makespan are told together."""
LONGEST_PATH = 24

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def clean(text: str, limit: int | None = None) -> str:
    """``text`` on one line, without anything that a terminal obeys; cut to ``limit`` signs."""
    flat = _CONTROL.sub(" ", text)
    return flat if limit is None or len(flat) <= limit else flat[: limit - 1] + "…"


def count(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


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


@dataclass
class Stretch:
    """Neighbouring segments of the critical path with one agent or step at work."""

    name: str
    kind: str
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
        last = found[-1] if found else None
        if last is None or last.name != segment.name:
            last = Stretch(segment.name, segment.kind, segment.start_ns, segment.end_ns)
            found.append(last)
        last.end_ns = segment.end_ns
        for part, ns in segment.parts.items():
            last.parts[part] = last.parts.get(part, 0) + ns
    return found


def path_lines(tax: Tax) -> Iterator[tuple[str, str, str, str]]:
    """The critical path to read: start, who, how long, what it was. What is short is summed."""
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
        who = clean(each.name, 24) or "(the flow)"
        yield f"at {seconds(each.start_ns)}", who, seconds(each.length_ns), what
    rest = [each for each in found if each not in kept]
    if rest:
        yield "", f"{len(rest)} shorter", seconds(sum(each.length_ns for each in rest)), ""


def summary_lines(tax: Tax) -> list[str]:
    """The report in a few lines of plain text."""
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
    if tokens.amplification is not None:
        lines.append(
            f"amplification: {times(tokens.amplification)} the tokens of one agent "
            f"({count(tokens.baseline or 0)})"
        )
    return lines


def tax_view(tax: Tax) -> Group:
    """The whole report."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sides = Table.grid(padding=(0, 4, 0, 0))
    sides.add_row(_tokens(tax), _time(tax))
    parts: list[RenderableType] = [Text(f"Tax of run {clean(tax.run)}", style="bold"), "", sides]
    if tax.agents:
        parts += ["", _agents(tax)]
    if tax.critical_path:
        parts += ["", _path(tax)]
    return Group(*parts, "", Text(closing_line(tax), style="" if tax.closes else "bold red"))


def closing_line(tax: Tax) -> str:
    """Whether the report adds up, and what its counts are worth."""
    if not tax.closes:
        return (
            "DOES NOT CLOSE: the parts do not add up to the engine's count and the makespan. "
            "This is a bug in Accord; please report it with the output of accord tax --json"
        )
    counts = "estimates, where the engine gave none" if tax.tokens.estimated else "the engine's own"
    return f"Closes: the parts add up exactly. Token counts are {counts}."


def _table(*titles: str) -> Table:
    """A plain table: the first column is words, the others are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, title in enumerate(titles):
        table.add_column(title, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _tokens(tax: Tax) -> Table:
    tokens = tax.tokens
    table = _table("tokens", "", "share")
    for origin, number in tokens.by_origin.items():
        table.add_row(f"  {origin}", count(number), share(number, tokens.prompt))
    table.add_row("prompt", count(tokens.prompt), share(tokens.prompt, tokens.total))
    table.add_row("completion", count(tokens.completion), share(tokens.completion, tokens.total))
    table.add_row("total", count(tokens.total), "", style="bold", end_section=True)
    table.add_row("cached prompt", count(tokens.cached), share(tokens.cached, tokens.prompt))
    table.add_row("repeats", count(tokens.repeats), share(tokens.repeats, tokens.prompt))
    table.add_row(
        "coordination", count(tokens.coordination), share(tokens.coordination, tokens.total)
    )
    if tokens.baseline is not None:
        table.add_row("one agent needs", count(tokens.baseline), "")
    table.add_row("amplification", times(tokens.amplification), "", style="bold")
    return table


def _time(tax: Tax) -> Table:
    whole = tax.time.makespan
    table = _table("time, critical path", "", "share")
    for part in PARTS:
        value = getattr(tax.time, part)
        table.add_row(f"  {part}", seconds(value * NANOSECONDS), share(value, whole))
    table.add_row("makespan", seconds(whole * NANOSECONDS), "", style="bold")
    return table


def _agents(tax: Tax) -> Table:
    table = _table(
        "agent", "calls", "failed", "p50", "p99", "prompt", "cached", "repeats", "reply", "cost"
    )
    for name, agent in tax.agents.items():
        table.add_row(
            clean(name, 16),
            count(agent.calls),
            count(agent.failures),
            seconds(agent.p50_s * NANOSECONDS),
            seconds(agent.p99_s * NANOSECONDS),
            count(agent.prompt),
            count(agent.cached),
            count(agent.repeats),
            count(agent.completion),
            cost(agent.cost),
        )
    return table


def cost(dollars: float | None) -> str:
    """US dollars; a dash where a price is unknown."""
    if dollars is None:
        return "–"
    return "$0" if dollars == 0 else f"${dollars:.4f}" if dollars < 1 else f"${dollars:,.2f}"


def _path(tax: Tax) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("critical path", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("")
    for line in path_lines(tax):
        table.add_row(*line)
    return table
