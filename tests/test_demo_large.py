"""The large report: what differs between its wirings, and what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accord.demo_compared import compare, makespan_of, outcome_of, run_report
from accord.demo_large import ACCORD, LEVERS, USUAL, Crew, pulled, without
from accord.engine.sim.presets import PRESETS
from accord.errors import UsageError
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.observe.tax import tax_of

SMALL = Crew(12)
PROFILE = PRESETS["8b"]


def lengths(result: Any) -> dict[str, int]:
    """Of the replies, by who wrote them."""
    found: dict[str, int] = {}
    for call in index_calls(result.log.envelopes).by_start.values():
        if call.started.kind == "request" and call.started.name != "manager":
            assert isinstance(call.ended, CallFinished)
            assert call.ended.usage is not None
            found[call.started.name] = call.ended.usage.completion
    return found


def test_nothing_but_the_wiring_differs() -> None:
    """The same agents write the same words; prompts, order and time differ."""
    usual, accord = (run_report(wiring, SMALL, PROFILE, 3) for wiring in (USUAL, ACCORD))
    assert lengths(usual) == lengths(accord)
    assert usual.output == accord.output
    assert makespan_of(usual) > makespan_of(accord)
    assert usual.usage.prompt > 2 * accord.usage.prompt


@pytest.mark.parametrize("wiring", [USUAL, ACCORD, *map(pulled, LEVERS), *map(without, LEVERS)])
def test_each_wiring_closes_and_repeats(wiring: Any) -> None:
    first, again = (run_report(wiring, SMALL, PROFILE, 1) for _ in range(2))
    assert tax_of(first.log).closes
    parts = outcome_of(first)
    told = parts.thinking + parts.manager + parts.reading + parts.queueing + parts.other
    assert told == pytest.approx(parts.makespan)
    assert msgspec.json.encode(first.log.envelopes[1:]) == msgspec.json.encode(
        again.log.envelopes[1:]
    )


def test_64_agents_as_quoted() -> None:
    """142 s, 53 of them thinking, 18 to 22x; Accord in what the usual wiring thinks.

    One of 200 seeds; ``bench/report64.py`` has the medians, within 5%.
    """
    found = compare(Crew(64), PRESETS["70b"], range(1, 2))
    usual, accord = found.outcomes["usual"], found.outcomes["Accord"]
    assert usual.makespan == pytest.approx(142, rel=0.1)
    assert usual.thinking == pytest.approx(53, rel=0.1)
    assert 18 <= usual.total / found.baseline <= 22
    assert accord.makespan <= 53
    assert accord.overhead <= 0.1
    assert accord.total / found.baseline <= 4
    assert accord.priced / found.baseline <= 3


@pytest.mark.parametrize("agents", [0, 7, 513])
def test_a_crew_that_cannot_be_is_refused(agents: int) -> None:
    with pytest.raises(UsageError, match="8 to 512 agents"):
        Crew(agents)


@pytest.mark.parametrize("agents", [8, 64, 200])
def test_everybody_has_something_to_do(agents: int) -> None:
    crew = Crew(agents)
    assert 1 + crew.retrievers + crew.sections + crew.proofreaders == agents
    sections = range(crew.sections)
    assert {crew.retriever(n) for n in sections} == set(range(crew.retrievers))
    assert {crew.proofreader(n) for n in sections} == set(range(crew.proofreaders))


def accord(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accord", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_the_command_prints_the_table_and_writes_the_report(tmp_path: Path) -> None:
    done = accord("demo", "--agents", "8", "--engine", "sim:8b", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("usual", "Accord", "overlapped", "manager"):
        assert word in done.stdout
    assert (tmp_path / "accord-demo" / "report.md").read_text()
    told = accord("demo", "--agents", "8", "--seeds", "1", "--json", "-", cwd=tmp_path)
    assert set(json.loads(told.stdout)["levers_s"]) == set(LEVERS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--agents", "3"), "at least 8"),
        (("--agents", "600"), "8 to 512 agents"),
        (("--seeds", "3"), "goes with --agents"),
        (("--agents", "8", "--engine", "http://127.0.0.1:9/v1"), "simulated engine"),
        (("--agents", "8", "--engine", "sim:nowhere"), "there is no profile"),
    ],
)
def test_what_the_command_cannot_do_it_says(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = accord("demo", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
