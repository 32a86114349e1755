"""How long does `import accord` take, and how much does the core install?

The peers, on the same kind of machine: import 0.6 s (Microsoft Agent Framework), 1.7 s
(LangGraph), 3.3 s (CrewAI); installed 31, 72 and 800 MB.
"""

import re
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import accord
from bench.harness import Row, stopwatch

QUICK = True
ROUNDS = 11


def run() -> list[Row]:
    bare, whole = [], []
    for _ in range(ROUNDS):
        bare.append(_start("pass"))
        whole.append(_start("import accord"))
    import_s = statistics.median(whole) - statistics.median(bare)
    return [
        Row(what="import accord, beyond a bare python", measured=import_s, unit="s", target=0.2),
        Row(
            what="core install with all it needs",
            measured=sum(map(_size, _closure("accord"))) / 1e6,
            unit="MB",
            target=40,
        ),
        Row(what="packages in the core install", measured=len(_closure("accord")), unit="packages"),
    ]


def _start(code: str) -> float:
    with stopwatch() as watch:
        subprocess.run([sys.executable, "-c", code], check=True)
    return watch.seconds


def _closure(name: str) -> set[str]:
    """``name`` and the packages that it needs without an extra, and what those need."""
    found: set[str] = set()
    waiting = [(name, frozenset[str]())]
    while waiting:
        package, extras = waiting.pop()
        found.add(package)
        for line in metadata.requires(package) or ():
            wanted = re.match(r"([\w.-]+)(?:\[([\w,\s-]+)\])?", line)
            marker = line.partition(";")[2]
            asked = re.search(r"extra\s*==\s*['\"]([\w-]+)", marker)
            if wanted is None or (asked and asked.group(1) not in extras):
                continue
            needed = wanted.group(1).lower()
            if needed not in found and _installed(needed):
                waiting.append((needed, frozenset((wanted.group(2) or "").split(","))))
    return found


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _size(package: str) -> int:
    if package == "accord":  # installed in place: its source is what a wheel would hold
        return sum(file.stat().st_size for file in Path(accord.__file__).parent.rglob("*.py"))
    files = metadata.files(package) or []
    return sum(
        path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()
    )
