"""W2: how do tokens grow with a team whose every worker knows what the others have contributed?

N workers contribute 500 tokens each, one after another, to a task of 2,000 tokens. Measured at 64:
1.15 million prompt tokens (AutoGen round-robin, CrewAI sequential), 2.4 million with a manager
(AutoGen selector, LangGraph group chat, CrewAI hierarchical), 166,000 if nothing is shared.
Here each sees a bounded summary with handles, and the last contribution in full.
"""

import math
from collections.abc import Callable
from typing import cast

from accord import Agent, Runtime
from accord.agent.reading import Visibility
from accord.comm.blackboard import Blackboard
from accord.engine.base import Request
from accord.testing.scripted import ScriptedEngine
from bench._counting import Meter, Sent, Tokenizer, text_of, with_tokenizer
from bench.harness import Row

QUICK = False  # needs the local model
SIZES = (4, 8, 16, 32, 64)
TASK, CONTRIBUTION = 2000, 500
board = Blackboard()


def run() -> list[Row]:
    return cast("list[Row]", with_tokenizer(_measure))


async def _measure(count: Tokenizer) -> list[Row]:
    task = await text_of(TASK, "task", count)
    said = [await text_of(CONTRIBUTION, f"worker {i}", count) for i in range(max(SIZES))]
    sent = {n: await _sent("summary", task, said[:n], count) for n in SIZES}
    usual = await _sent("full", task, said, count)
    rows = [
        Row(
            what=f"{n} workers: prompt",
            measured=sent[n].prompt,
            unit="tokens",
            target=220_000 if n == max(SIZES) else None,
        )
        for n in SIZES
    ]
    slope = math.log(sent[64].prompt / sent[8].prompt) / math.log(64 / 8)
    one = TASK + 64 * CONTRIBUTION
    priced = sent[64].priced + 64 * CONTRIBUTION
    return [
        *rows,
        Row(what="64 workers, all see all: prompt", measured=usual.prompt, unit="tokens"),
        Row(what="growth from 8 to 64, log-log", measured=slope, unit="slope", target=1.1),
        Row(
            what="64 workers over one agent, cached input at a tenth",
            measured=priced / one,
            unit="x",
            target=3.0,
        ),
        Row(
            what="64 workers: of the prompt, cached",
            measured=100 * sent[64].cached / sent[64].prompt,
            unit="%",
        ),
    ]


async def _sent(policy: Visibility, task: str, said: list[str], count: Tokenizer) -> Sent:
    engine = ScriptedEngine(cast("Callable[[Request], str]", lambda r: said[int(r.agent[7:])]))

    async def team(task: str) -> None:
        board.write("task", task)
        for index in range(len(said)):
            worker = Agent(
                f"worker-{index}",
                f"You are worker {index} of a team. Contribute your part of the task.",
                shares="task",
                reads={"team": policy},
                writes={"team": "append"},
            )
            await worker()

    async with Runtime(engine=engine, log="memory") as runtime:
        await runtime.arun(team, task)
    return await Meter(count).sent(engine.requests)
