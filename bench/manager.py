"""How much of a group chat is its manager? A model that decides who speaks, for 4 to 64 workers.

Each worker contributes 500 tokens once, to a task of 2,000. The manager plans some turns per call,
on a bounded view of the chat, and is shown who has spoken; it names those who have not, each with
a few words to do, and says that it is done once it sees that all have spoken. Its share of the
prompt tokens and of the critical path, on virtual time. Quoted of others at 64 workers: AutoGen's
selector and LangGraph's group chat 52% of prompt tokens, CrewAI's hierarchical process 99%.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from accord import Agent
from accord.engine.base import Request
from accord.team.chat import GroupChat
from accord.team.manager import Manager
from accord.team.termination import MaxMessages
from bench._cost import play, prose, seconds_of, words
from bench.harness import Row

QUICK = True
SIZES = (4, 8, 16, 32, 64)
PLANS = (1, 4, 8, 16, 32)
TASK, CONTRIBUTION = 2000, 500
MANAGER = "manager"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The manager's, in percent; and what the chat took."""

    prompt: float
    seconds: float
    total: int
    makespan_s: float
    calls: int


def run() -> list[Row]:
    last = max(SIZES)
    shares = {n: share_of(n, None) for n in SIZES}
    by_plan = {turns: share_of(last, turns) for turns in PLANS}
    rows: list[Row] = []
    for n, share in shares.items():
        target = 5.0 if n == last else None
        rows += [
            Row(
                what=f"{n} workers: manager's prompt",
                measured=share.prompt,
                unit="%",
                target=target,
            ),
            Row(
                what=f"{n} workers: manager's time", measured=share.seconds, unit="%", target=target
            ),
        ]
    rows += [
        Row(what=f"{last} workers: prompt of all", measured=shares[last].total, unit="tokens"),
        Row(what=f"{last} workers: makespan", measured=shares[last].makespan_s, unit="s"),
        Row(
            what=f"{last} workers: calls of the manager", measured=shares[last].calls, unit="calls"
        ),
    ]
    for turns, share in by_plan.items():
        what = f"{last} workers, {turns} turns a plan: manager's"
        rows += [
            Row(what=f"{what} prompt", measured=share.prompt, unit="%"),
            Row(what=f"{what} time", measured=share.seconds, unit="%"),
        ]
    return rows


def share_of(workers: int, turns: int | None) -> Share:
    """The share of a manager that plans so many turns at a time; None is the default."""
    names = [f"worker-{index}" for index in range(workers)]
    topics = {name: f"{' '.join(words(name, 3))}" for name in names}
    chat = GroupChat(
        [
            Agent(name, f"Contributes on {topics[name]}. Write your part of the report.")
            for name in names
        ],
        speakers=Manager(turns=turns),
        until=MaxMessages(4 * workers),
    )
    manager = honest(names, topics)
    result, _ = play(
        chat, prose("task", TASK), lambda r: manager(r) if r.agent == MANAGER else said(r.agent)
    )
    assert result.output.turns == dict.fromkeys(names, 1), "each speaks once"
    assert result.output.fallbacks == 0
    agents = result.tax.agents
    total = sum(agent.prompt for agent in agents.values())
    return Share(
        prompt=100 * agents[MANAGER].prompt / total,
        seconds=100 * seconds_of(result, lambda name: name == MANAGER) / result.tax.time.makespan,
        total=total,
        makespan_s=result.tax.time.makespan,
        calls=agents[MANAGER].calls,
    )


def honest(names: list[str], topics: dict[str, str]) -> Callable[[Request], str]:
    """Names who has not spoken by what it is shown, as many as it may, in some eight words each."""

    def answer(request: Request) -> str:
        shown = request.messages[-1].content
        spoken = re.search(r"Have spoken: (.*)", shown)
        silent = re.search(r"Have not spoken: (.*)", shown)
        left = names
        if spoken:
            heard = re.sub(r" ×\d+", "", spoken[1]).split(", ")
            left = [name for name in names if name not in heard]
        elif silent:
            left = [name for name in silent[1].split(", ") if name in names]
        most = int(re.findall(r"at most (\d+)", request.messages[0].content)[0])
        turns = [f"{name}: cover {topics[name]}, with figures and a risk" for name in left[:most]]
        return json.dumps({"turns": turns, "done": not left})

    return answer


def said(worker: str) -> str:
    return prose(worker, CONTRIBUTION)
