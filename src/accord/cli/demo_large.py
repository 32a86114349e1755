"""``accord demo --agents N``: a long report by many agents, as usually wired and as Accord does it.

On a simulated engine and virtual time, so that minutes take a second. The table says what each
lever saves: pulled alone on the usual wiring, and left out of Accord's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from accord.cli.document import document
from accord.cli.failures import SUCCESS
from accord.cli.folders import check_place, folder_at
from accord.cli.render import columns, heading, seconds, styled, times
from accord.cli.streams import Answer, say
from accord.clock import NANOSECONDS
from accord.engine.select import select
from accord.engine.sim.engine import SimEngine
from accord.errors import UsageError

if TYPE_CHECKING:
    from accord.demo_compared import Compared

SEEDS = 9
"""Of each wiring, by default."""


def large_demo_command(options: argparse.Namespace) -> int:
    """``accord demo --agents N``."""
    from accord.demo_compared import compare, run_report
    from accord.demo_large import ACCORD, Crew

    crew = Crew(options.agents)
    engine = select(options.engine or "sim", model=options.model)
    if not isinstance(engine, SimEngine):
        raise UsageError(
            f"--agents compares two wirings on one simulated engine, not on {engine.name}: "
            "--engine sim, or sim:FILE of a profile that accord calibrate has written"
        )
    seeds = range(options.seeds or SEEDS)
    check_place(options.json)
    folder = folder_at(options.out)
    say(f"{crew.agents} agents on {engine.name} ({engine.profile.source}), {len(seeds)} seeds")
    found = compare(crew, engine.profile, seeds)
    answer, table = Answer(), list(_table(found))
    report = run_report(ACCORD, crew, engine.profile, seeds[0])
    (folder / "report.md").write_text("\n\n".join(report.output["sections"]), encoding="utf-8")
    (folder / "tax.json").write_bytes(document(report.tax.to_dict()))
    told = _told(found)
    if options.json == "-":
        answer.document(told)
        return SUCCESS
    answer.show(
        *table,
        "",
        f"The report:    {folder / 'report.md'}",
        f"Its tax table: {folder / 'tax.json'}",
    )
    if options.json is not None:
        Path(options.json).write_bytes(document(told))
    return SUCCESS


def _table(found: Compared) -> Iterator[str]:
    titles = "wiring", "makespan", "slowest", "thinking", "manager", "reading", "queueing", "other"
    rows = [heading(*titles, "tokens", "cached at 1/10")]
    for name, outcome in found.outcomes.items():
        makespans = found.makespans[name]
        spent = outcome.thinking, outcome.manager, outcome.reading, outcome.queueing, outcome.other
        rows.append(
            [
                styled(name, "bold"),
                *(seconds(each * NANOSECONDS) for each in (median(makespans), max(makespans))),
                *(seconds(each * NANOSECONDS) for each in spent),
                times(outcome.total / found.baseline),
                times(outcome.priced / found.baseline),
            ]
        )
    yield from columns(rows, "<>>>>>>>>>")
    yield ""
    rows = [heading("lever", "alone saves", "left out costs")]
    for lever, gained in found.levers.items():
        rows.append([f"  {lever.replace('_', ' ')}", *(f"{each:+.1f} s" for each in gained)])
    yield from columns(rows, "<>>")
    yield ""
    yield from LEGEND


LEGEND = (
    "Both wirings have the same engine, seeds, work and lengths of replies. makespan is the median",
    "over seeds, slowest the worst; the parts are those of the median run, on its critical path.",
    "One request in 500 hangs for 75 s before it begins (other). tokens: over those of one agent",
    "that does it all. Levers overlap, so what they save does not add up.",
    "",
    "usual          stages one after another; everybody is sent all that was said; a manager's",
    "               turn hands out each piece of work; prompts begin with the role",
    "overlapped     work goes on when what it needs is there",
    "scoped         each is sent what it needs",
    "planned        work is handed out from the plan, by message",
    "shared first   prompts begin with what all share, so the engine has read it",
    "critical path  the scheduler's order; of no use where the engine takes all at once, as here",
    "patient        what has not begun to answer after 4 s is asked again",
)


def _told(found: Compared) -> dict[str, Any]:
    return {
        "baseline_tokens": found.baseline,
        "makespans_s": found.makespans,
        "outcomes": {name: msgspec.to_builtins(each) for name, each in found.outcomes.items()},
        "levers_s": {
            name: {"alone_saves": a, "left_out_costs": b} for name, (a, b) in found.levers.items()
        },
    }
