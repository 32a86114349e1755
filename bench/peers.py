"""What do a node, a branch, a message and a durable step cost here, beside other frameworks?

No model is asked. Each framework runs in an environment of its own, as its users would run it at
its best (`bench/_peers/NAME_.py` says how), and all take turns in the same minutes on the same
machine, so ratios mean more than microseconds. The best of all rounds counts.

The durable chain: 100 nodes in SQLite, the state a document of 10 KB or 1 MB, a counter and a note
of 100 characters that each node replaces. Like Accord's default, LangGraph without fsync survives
the process, and not a power cut. `make bench-peers` makes the environments and runs this.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Row, report, stopwatch

ROUNDS = 8
ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".venv-peers"
LANGGRAPH, ACCORD = "LangGraph", "Accord"
PEERS = {
    LANGGRAPH: "langgraph",
    "Microsoft Agent Framework": "agent_framework",
    "pydantic-graph": "pydantic_graph",
    "AutoGen": "autogen",
}
QUIET = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}

IN_MEMORY = {
    "chain": ("chain of {:,} nodes", "µs/node", (100, 1000)),
    "fan": ("fan-out to {:,} branches and join", "µs/branch", (64, 1000)),
    "hops": ("message, a hop of a ping-pong", "µs", (2000,)),
}
STEPS = 100
DOCUMENTS = {10_000: "10 KB", 1_000_000: "1 MB"}
DURABLE = {
    "durable": "as it comes",
    "durable, no fsync": "without fsync",
    "durable, no fsync, delta": "without fsync, document in a DeltaChannel (beta)",
}
PLAIN, DELTA = list(DURABLE)[:2], list(DURABLE)[2]


@dataclass(kw_only=True)
class Cost:
    """The least of all rounds."""

    seconds: float = math.inf
    stored: int = 0


Costs = dict[tuple[str, int, str], Cost]
"""By shape, size and framework."""


class Worker:
    """A framework's script, running in its environment."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.name = name
        self._process = process
        said = self._answer()
        self.shapes: list[str] = said["shapes"]
        self.versions: dict[str, str] = said["versions"]

    def ask(self, shape: str, size: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"shape": shape, "size": size}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the script of {self.name} has ended; its reason stands above")
        return json.loads(line)


@contextmanager
def working(name: str, python: Path, module: str) -> Generator[Worker]:
    """The worker of one framework, until the block ends."""
    with subprocess.Popen(
        [python, "-m", f"bench._peers.{module}_"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | QUIET,
        text=True,
    ) as process:
        yield Worker(process, name)


def main() -> None:
    """Measures, prints and keeps."""
    with ExitStack() as stack, stopwatch() as watch:
        workers = [stack.enter_context(working(ACCORD, Path(sys.executable), "accord"))]
        for name, module in PEERS.items():
            python = ENVIRONMENTS / module / "bin" / "python"
            workers.append(stack.enter_context(working(name, python, module)))
        costs = measure(workers)
    report(
        "peers",
        (__doc__ or "").splitlines()[0],
        [*in_memory_rows(costs), *durable_rows(costs)],
        took_s=watch.seconds,
        command="make bench-peers",
        versions={name: each for worker in workers for name, each in worker.versions.items()},
    )


def measure(workers: list[Worker]) -> Costs:
    """Everything that each worker has, in turns."""
    asked = [(shape, size) for shape, (_, _, sizes) in IN_MEMORY.items() for size in sizes]
    asked += [(shape, size) for size in DOCUMENTS for shape in DURABLE]
    costs: Costs = {}
    for _ in range(ROUNDS):
        for shape, size in asked:
            for worker in workers:
                if shape in worker.shapes:
                    answer = worker.ask(shape, size)
                    cost = costs.setdefault((shape, size, worker.name), Cost())
                    cost.seconds = min(cost.seconds, answer["seconds"])
                    cost.stored = answer["stored"]
    return costs


def in_memory_rows(costs: Costs) -> list[Row]:
    rows: list[Row] = []
    for shape, (what, unit, sizes) in IN_MEMORY.items():
        for size in sizes:
            us = {
                name: costs[shape, size, name].seconds / size * 1e6
                for name in (*PEERS, ACCORD)
                if (shape, size, name) in costs
            }
            title = what.format(size)
            rows += [Row(what=f"{title}: {name}", measured=us[name], unit=unit) for name in us]
            best = min((name for name in us if name != ACCORD), key=lambda name: us[name])
            rows.append(
                Row(
                    what=f"{title}: the best of the others ({best}) over Accord",
                    measured=us[best] / us[ACCORD],
                    unit="x",
                    target=8,
                    at_least=True,
                )
            )
    return rows


def durable_rows(costs: Costs) -> list[Row]:
    return [row for size in DOCUMENTS for row in _durable_rows(costs, size)]


def _durable_rows(costs: Costs, size: int) -> list[Row]:
    title = f"{DOCUMENTS[size]} durable"
    peers = {shape: costs[shape, size, LANGGRAPH] for shape in DURABLE}
    ours = costs["durable", size, ACCORD]
    plain = min(peers[shape].seconds for shape in PLAIN)
    return [
        *(
            Row(
                what=f"{title}: {LANGGRAPH}, {DURABLE[shape]}",
                measured=peer.seconds / STEPS * 1e6,
                unit="µs/step",
            )
            for shape, peer in peers.items()
        ),
        Row(what=f"{title}: {ACCORD}", measured=ours.seconds / STEPS * 1e6, unit="µs/step"),
        Row(
            what=f"{title}: {LANGGRAPH}, the quicker of with and without fsync, over Accord",
            measured=plain / ours.seconds,
            unit="x",
            target=30,
            at_least=True,
        ),
        Row(
            what=f"{title}: {LANGGRAPH} with a DeltaChannel over Accord",
            measured=peers[DELTA].seconds / ours.seconds,
            unit="x",
        ),
        *(
            Row(
                what=f"{title}: store of {LANGGRAPH}, {DURABLE[shape]}",
                measured=peers[shape].stored / 1e6,
                unit="MB",
            )
            for shape in (PLAIN[0], DELTA)
        ),
        Row(what=f"{title}: store of Accord", measured=ours.stored / 1e6, unit="MB"),
        Row(
            what=f"{title}: store of {LANGGRAPH}, {DURABLE[PLAIN[0]]}, over Accord",
            measured=peers[PLAIN[0]].stored / ours.stored,
            unit="x",
            # Of 10 KB, most of what Accord stores are the notes and events, not the document.
            target=50 if size == max(DOCUMENTS) else None,
            at_least=True,
        ),
        Row(
            what=f"{title}: store of {LANGGRAPH} with a DeltaChannel over Accord",
            measured=peers[DELTA].stored / ours.stored,
            unit="x",
        ),
    ]


if __name__ == "__main__":
    main()
