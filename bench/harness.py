"""Measures, prints and keeps: the one place where a benchmark's figures come from.

A benchmark is a file `bench/NAME.py` that asks one question (its module docstring) and has

    QUICK = True               # whether a bare `make bench` runs it


    def run() -> list[Row]:    # the answer, measured here and now
        ...

A row holds what was measured. A target is a bound on it (the most, unless `at_least`), and a missed
target is said aloud but is no error: the same tree runs on faster and slower machines.
"""

import gc
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("accord", "msgspec", "httpcore2", "rich", "xllamacpp")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured figure, and the bound that it should keep, if there is one."""

    what: str
    measured: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target


@dataclass
class Stopwatch:
    """What `stopwatch` hands out; `seconds` is set when its block ends."""

    seconds: float = math.nan


@contextmanager
def stopwatch() -> Generator[Stopwatch]:
    """Times a block, such as one inside a running event loop. Collects garbage before it starts."""
    watch = Stopwatch()
    gc.collect()
    began = time.perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - began


def seconds(work: Callable[[], object], *, rounds: int = 5, warmups: int = 1) -> float:
    """The median time of one call of `work`, in seconds."""
    for _ in range(warmups):
        work()
    times: list[float] = []
    for _ in range(rounds):
        with stopwatch() as watch:
            work()
        times.append(watch.seconds)
    return statistics.median(times)


def report(
    name: str,
    question: str,
    rows: Sequence[Row],
    *,
    took_s: float,
    command: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Prints the table and writes `results/NAME.json`.

    ``command`` is what repeats it, ``versions`` those of what it measured beside our own.
    """
    header = _header(name, took_s, command or f"make bench NAME={name}", versions or {})
    _print(name, question, rows, header)
    RESULTS.mkdir(exist_ok=True)
    kept = header | {"question": question, "rows": [_as_json(row) for row in rows]}
    text = json.dumps(kept, indent=2, ensure_ascii=False, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _print(name: str, question: str, rows: Sequence[Row], header: dict[str, object]) -> None:
    table = Table(title=f"{name}: {question}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what", overflow="fold")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("target", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        verdict = {True: "[green]ok[/]", False: "[bold red]MISSED[/]", None: ""}[row.ok]
        table.add_row(row.what, figure(row.measured), row.unit, _bound(row), verdict)

    console = Console(highlight=False)
    console.print(table)
    for key in ("machine", "versions", "command", "took_s"):
        console.print(f"  {key:9} {_line(header[key])}", markup=False, soft_wrap=True)
    missed = [row for row in rows if row.ok is False]
    if missed:
        console.print(f"[bold red]  {len(missed)} of {len(rows)} missed the target.[/]")


def _line(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def _as_json(row: Row) -> dict[str, object]:
    return {
        "what": row.what,
        "measured": row.measured,
        "unit": row.unit,
        "target": row.target,
        "ok": row.ok,
    }


def _bound(row: Row) -> str:
    if row.target is None:
        return ""
    return f"{'≥' if row.at_least else '≤'} {figure(row.target)}"


def figure(value: float) -> str:
    """Three significant digits, and all of those before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}"


def _header(
    name: str, took_s: float, command: str, versions: Mapping[str, str]
) -> dict[str, object]:
    return {
        "name": name,
        "command": command,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "took_s": round(took_s, 1),
        "machine": {
            "cpu": _cpu(),
            "cores": _cores(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": _versions() | dict(versions) | {"commit": _commit()},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _cores() -> int | None:
    """How many this process may use, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The tree that was measured, with a + where it differs from that commit."""
    described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(described, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
