"""How soon does a critical run end on a busy vLLM, by order of arrival and by Accord's policies?

Four runs of six agents each ask a vLLM that works on four requests at once, with a KV cache for
less than all that is asked. One is a chain, each agent after the one before; the others have slack:
their agents go side by side, ask three things at once, and get shorter answers. `critical_path` has
learned what is left from the log of an earlier run; `priority` is told. `make bench-vllm` installs
and starts the server, or ACCORD_VLLM_URL names one (with --max-num-seqs 4 --scheduling-policy
priority).
"""

import asyncio
import random
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accord import Agent, Runtime, gather
from accord.engine.openai import OpenAIEngine
from bench._counting import WORDS
from bench._vllm.server import served
from bench.harness import Row, stopwatch

QUICK = False  # minutes of a real engine, gigabytes to install
SEQUENCES, BLOCKS = 4, 65
OPTIONS = (
    f"--max-num-seqs={SEQUENCES}",
    "--max-model-len=4096",
    f"--num-gpu-blocks-override={BLOCKS}",  # of 128 tokens
)
AGENTS, ROUNDS = 6, 3
CALLS = 3
"""Of each agent with slack, at once."""
PROMPT_WORDS = 120
CHAIN_WRITES, WRITES = 48, 24
"""Tokens of a reply."""
URGENT = 10
Flow = Callable[..., Coroutine[Any, Any, None]]


class NotInstalledError(Exception):
    """There is no vLLM to ask."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """When, in seconds since the four began together."""

    critical_s: float
    all_s: float


def run() -> list[Row]:
    with served(OPTIONS) as url:
        if url is None:
            raise NotInstalledError("`make bench-vllm` installs vLLM, or set ACCORD_VLLM_URL")
        return asyncio.run(_measure(url))


async def _measure(url: str) -> list[Row]:
    found: dict[str, list[Ended]] = {"fcfs": [], "critical_path": [], "priority": []}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.sqlite3"
        await _ended(url, log, "fcfs")  # warms the server, and is what critical_path learns from
        for _ in range(ROUNDS):
            for policy, ended in found.items():
                ended.append(await _ended(url, log, policy))
    rows = [row for policy, ended in found.items() for row in _rows(policy, ended)]
    for policy in ("critical_path", "priority"):
        critical, total = _against(found["fcfs"], found[policy])
        rows += [
            Row(
                what=f"{policy}: the critical run ends sooner by",
                measured=critical,
                unit="%",
                target=38,
                at_least=True,
            ),
            Row(what=f"{policy}: all end later by", measured=total, unit="%", target=5),
        ]
    return rows


def _rows(policy: str, ended: Sequence[Ended]) -> list[Row]:
    return [
        Row(
            what=f"{policy}: the critical run",
            measured=statistics.median(each.critical_s for each in ended),
            unit="s",
        ),
        Row(
            what=f"{policy}: all four",
            measured=statistics.median(each.all_s for each in ended),
            unit="s",
        ),
    ]


def _against(fcfs: Sequence[Ended], other: Sequence[Ended]) -> tuple[float, float]:
    """How much sooner the critical run ends, and how much later all, in percent."""
    critical = [1 - b.critical_s / a.critical_s for a, b in zip(fcfs, other, strict=True)]
    total = [b.all_s / a.all_s - 1 for a, b in zip(fcfs, other, strict=True)]
    return 100 * statistics.median(critical), 100 * statistics.median(total)


async def _ended(url: str, log: Path, policy: str) -> Ended:
    engine = OpenAIEngine(url, concurrency=SEQUENCES, read_timeout_s=600.0)
    urgent = URGENT if policy == "priority" else None
    async with Runtime(engine=engine, log=log, policy=policy) as runtime:
        with stopwatch() as watch:
            async with asyncio.TaskGroup() as group:
                critical = group.create_task(_timed(runtime, urgent))
                for flow in (slack_0, slack_1, slack_2):
                    group.create_task(runtime.arun(flow))
    await engine.close()
    return Ended(critical_s=critical.result(), all_s=watch.seconds)


async def _timed(runtime: Runtime, urgent: int | None) -> float:
    with stopwatch() as watch:
        await runtime.arun(chain, urgent)
    return watch.seconds


async def chain(urgent: int | None) -> None:
    """The critical run: each agent goes on from what the last one wrote."""
    text = "The beginning."
    for number in range(AGENTS):
        agent = _agent("chain", number, CHAIN_WRITES, urgent)
        text = await agent(f"{_notes('chain', number)}\n\n{text}")


async def slack_0() -> None:
    """One with slack, as are the two others."""
    await _wide("slack 0")


async def slack_1() -> None:
    await _wide("slack 1")


async def slack_2() -> None:
    await _wide("slack 2")


async def _wide(name: str) -> None:
    await gather(
        _agent(name, number, WRITES)(f"{_notes(name, number)}\n\nWrite part {call}.")
        for number in range(AGENTS)
        for call in range(CALLS)
    )


def _agent(name: str, number: int, writes: int, urgent: int | None = None) -> Agent[str]:
    return Agent(
        f"{name} {number}", f"You are number {number}.", max_tokens=writes, priority=urgent
    )


def _notes(name: str, number: int) -> str:
    draw = random.Random(f"{name} {number}")
    return " ".join(draw.choice(WORDS) for _ in range(PROMPT_WORDS))
