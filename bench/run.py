"""`python -m bench.run [NAME|all]`: runs the quick benchmarks, one, or every one.

Exit codes: 0 when all have run (a missed target is said, and is no failure), 1 when one crashed,
2 when there is none of that name.
"""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from bench import harness

NOT_QUESTIONS = {"__init__", "harness", "peers", "run", "table"}
"""`peers` needs environments of its own, and has a command of its own: `make bench-peers`."""


def main(arguments: list[str]) -> int:
    """Runs what was asked for and returns the exit code."""
    names = _names()
    match arguments:
        case []:
            chosen = [name for name in names if _load(name).QUICK]
        case ["all"]:
            chosen = names
        case [name] if name in names:
            chosen = [name]
        case _:
            print(f"usage: make bench [NAME=all|{'|'.join(names)}]", file=sys.stderr)
            return 2

    crashed = [name for name in chosen if not _run(name)]
    if crashed:
        print(f"crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def _names() -> list[str]:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return [f.stem for f in files if f.stem not in NOT_QUESTIONS and not f.stem.startswith("_")]


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"bench.{name}")


def _run(name: str) -> bool:
    """Whether it ran to its end; a crash is shown, and the others still run."""
    try:
        module = _load(name)
        question = (module.__doc__ or name).strip().splitlines()[0]
        with harness.stopwatch() as watch:
            rows = module.run()
        harness.report(name, question, rows, took_s=watch.seconds)
    except Exception:  # noqa: BLE001 - whatever a benchmark does wrong, the others still run
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main([argument for argument in sys.argv[1:] if argument]))
