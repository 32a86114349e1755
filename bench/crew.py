"""How does the time of a crew grow with its size, if managers manage managers?

Each worker writes 500 tokens on its part of a task of 2,000; a manager plans for at most `SPAN`
subordinates in one call, in some twenty words each, and joins what they did into 400 tokens. On
virtual time, at the cost of `bench/_cost.py`, and with a place at the engine for everybody. A flat
manager that speaks to all itself stands beside it.
"""

import json
import math
import re
from collections import Counter
from itertools import pairwise
from typing import Any

from accord import Agent
from accord.engine.base import Request
from accord.runtime import Result
from accord.team.crew import Crew
from accord.team.hierarchy import ManagerOptions
from accord.team.task import Task
from bench._cost import play, prose, seconds_of, words
from bench.harness import Row

QUICK = True
SIZES = (4, 16, 64, 256)
SPAN = 4
TASK, PART, JOINED = 2000, 500, 400


def run() -> list[Row]:
    runs = {n: work(n, SPAN) for n in SIZES}
    flat = work(64, 64)
    crew = crew_of(64, SPAN)
    seconds = {n: result.tax.time.makespan for n, result in runs.items()}
    steps = [seconds[after] - seconds[before] for before, after in pairwise(SIZES)]
    return [
        Row(
            what="64 workers: managers one above the other",
            measured=crew.tree.depth,
            unit="levels",
            target=3,
        ),
        Row(
            what="64 workers: the most that a manager speaks to",
            measured=most_spoken_to(runs[64]),
            unit="members",
            target=5,
        ),
        *(Row(what=f"{n} workers: makespan", measured=s, unit="s") for n, s in seconds.items()),
        Row(
            what="each fourfold adds: the most over the least",
            measured=max(steps) / min(steps),
            unit="x",
            target=1.25,
        ),
        Row(
            what="256 over 4 workers: makespan (log N: 4)",
            measured=seconds[256] / seconds[4],
            unit="x",
            target=4.0,
        ),
        Row(
            what="growth from 4 to 256, log-log", measured=slope(seconds), unit="slope", target=0.33
        ),
        Row(
            what="64 workers, one flat manager: makespan", measured=flat.tax.time.makespan, unit="s"
        ),
        Row(
            what="64 workers, one flat manager: its largest prompt",
            measured=largest(flat),
            unit="tokens",
        ),
        Row(
            what="64 workers: the largest prompt of a manager",
            measured=largest(runs[64]),
            unit="tokens",
            target=4000,
        ),
        Row(
            what="64 workers: coordination, of all tokens",
            measured=coordination(runs[64]),
            unit="%",
        ),
        Row(what="64 workers: coordination, of the time", measured=managing(runs[64]), unit="%"),
    ]


def crew_of(workers: int, span: int) -> Crew:
    def about(name: str) -> str:
        return f"Writes on {' '.join(words(name, 3))}. Write your part of the report."

    names = [f"worker-{index}" for index in range(workers)]
    options = ManagerOptions(agent={"max_tokens": 64 * workers})
    return Crew(
        [Agent(name, about(name)) for name in names],
        [Task(prose("task", TASK), "A report.")],
        process="hierarchical",
        span=span,
        manager=options,
    )


def work(workers: int, span: int) -> Result[Any]:
    result = play(crew_of(workers, span), {}, said)[0]
    worked = {each.to for each in result.output.delegations if each.to.startswith("worker")}
    assert len(worked) == workers, "all have worked"
    assert result.output.fallbacks == result.output.corrections == 0
    return result


def said(request: Request) -> str:
    """What a manager plans goes by the members that it is shown; what it joins, by nothing else."""
    role = request.messages[-2].content if len(request.messages) > 1 else ""
    if not request.agent.startswith("crew manager"):
        return prose(request.agent, PART)
    if "Members:" not in role:
        return prose(request.agent, JOINED)
    members = re.findall(r"^(worker-\d+|crew manager[.\d]*): (.*)$", role, re.MULTILINE)
    turns = [f"{name}: {prose(name, 16)} Cover what is yours of it." for name, _ in members]
    return json.dumps({"turns": turns})


def most_spoken_to(result: Result[Any]) -> int:
    return max(Counter(each.manager for each in result.output.delegations).values())


def slope(seconds: dict[int, float]) -> float:
    return math.log(seconds[256] / seconds[4]) / math.log(256 / 4)


def largest(result: Result[Any]) -> int:
    sent = [each for each in result.exchanges if each.agent.startswith("crew manager")]
    return max(each.usage.prompt for each in sent if each.usage is not None)


def coordination(result: Result[Any]) -> float:
    tokens = result.tax.tokens
    return 100 * tokens.coordination / tokens.total


def managing(result: Result[Any]) -> float:
    spent = seconds_of(result, lambda name: name.startswith("crew manager"))
    return 100 * spent / result.tax.time.makespan
