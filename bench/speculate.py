"""What does working ahead on guesses save, by how often they are right, and what may go wrong?

On a simulated 70B model: routers that send each question to one of four desks, and agents in a loop
with a search that takes a while. What they decide is what they decided in the last run with the
given chance, drawn from a seed. Beside it, on the wall clock, 10,000 runs whose guesses are wrong
half of the time, and whose desks have effects.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from accord import Agent, Runtime, step, tool
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.engine.base import Reply, Request, ToolCall
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of
from accord.log.log import Log
from accord.observe.guesses import Guess, Guesses
from accord.sync.speculate import speculate
from accord.sync.speculation import WASTE_TOKENS
from accord.testing.scripted import ScriptedEngine
from bench.harness import Row

QUICK = True
RUNS, QUESTIONS, DESKS, SEARCH_S, CAMPAIGN = 12, 12, 4, 2.0, 10_000
LEAST_SAVED = {35: 5.0, 55: 15.0, 90: 30.0}
Flow = Callable[[int], Coroutine[Any, Any, None]]

router = Agent("router", "Think, then name the desk that the question is for.", max_tokens=80)
desk = Agent("desk", "Answer the question as your desk would.", max_tokens=120)


async def routed(run: int) -> None:
    for number in range(QUESTIONS):
        question = f"run {run}, question {number}"

        async def answer(route: str, question: str = question) -> str:
            return await desk(route, question)

        await speculate(router, question, then=answer)


@tool(pure=True)
async def search(term: str) -> str:
    """Look something up, somewhere slow."""
    await asyncio.sleep(SEARCH_S)
    return f"what is known of {term}"


scout = Agent(
    "scout",
    "Find out, one search at a time.",
    tools=[search],
    tool_rounds=QUESTIONS + 1,
    max_tokens=80,
    speculate=True,
)


async def looped(run: int) -> None:
    await scout(f"run {run}")


def run() -> list[Row]:
    rows: list[Row] = []
    for name, flow in (("routers", routed), ("tool loops", looped)):
        for percent in (*LEAST_SAVED, 0):
            rows += run_virtual(_saved(name, flow, percent))
    return [*rows, *asyncio.run(_effects())]


def followed(log: Log) -> list[Guess]:
    """The guesses of a run, but for those that were only scored."""
    return [each for each in log.fold(Guesses).by_branch.values() if each.followed]


class Decisions:
    """What is decided at each place of each run: with a chance, what it was in the run before."""

    def __init__(self, percent: int) -> None:
        random = Random(f"decisions {percent}")
        self.of: list[list[int]] = [[random.randrange(DESKS) for _ in range(QUESTIONS)]]
        for _ in range(RUNS):
            self.of.append(
                [
                    one if random.random() < percent / 100 else (one + 1) % DESKS
                    for one in self.of[-1]
                ]
            )

    def reply(self, request: Request, _: Random) -> str | int | Reply:
        """The reply of the simulated engine."""
        asked = request.messages[-1] if request.agent == "router" else request.messages[1]
        words = asked.content.replace(",", "").split()
        if request.agent == "desk":
            return request.max_tokens or 1
        decided = self.of[int(words[1])]
        if request.agent == "router":
            thinking = "so it goes to, considering all, " * 8
            return f"{thinking} desk {decided[int(words[3])]}"
        rounds = sum(message.role == "tool" for message in request.messages)
        if rounds == QUESTIONS:
            return "That is all that can be found out. " * 8
        wanted = ToolCall(f"call_{rounds}", "search", f'{{"term": "{rounds} {decided[rounds]}"}}')
        return Reply(
            text="I look that up next, since it is missing. " * 6,
            tool_calls=(wanted,),
            finish_reason="tool_calls",
        )


@dataclass(frozen=True, kw_only=True)
class Took:
    """Of all runs but the first: virtual seconds, tokens, and how the guesses were."""

    seconds: float
    wasted: int
    most_wasted: int
    predicted: int
    committed: int
    last_predicted: int
    """Guesses that were followed in the last run."""


async def _saved(name: str, flow: Flow, percent: int) -> list[Row]:
    without = await _took(flow, percent, speculate=False)
    with_it = await _took(flow, percent, speculate=True)
    saved = 100 * (1 - with_it.seconds / without.seconds)
    what = f"{name}, {percent}% foretold"
    if not percent:
        return [
            Row(what=f"{what}: makespan longer by", measured=-saved, unit="%", target=2.0),
            Row(
                what=f"{what}: guesses followed in run {RUNS} (at first: each)",
                measured=with_it.last_predicted,
                unit="guesses",
                target=0,
            ),
        ]
    return [
        Row(
            what=f"{what}: makespan shorter by",
            measured=saved,
            unit="%",
            target=LEAST_SAVED[percent],
            at_least=True,
        ),
        Row(
            what=f"{what}: most tokens wasted in a run",
            measured=with_it.most_wasted,
            unit="tokens",
            target=WASTE_TOKENS,
        ),
        Row(
            what=f"{what}: guesses right, of {with_it.predicted}",
            measured=with_it.committed,
            unit="guesses",
        ),
    ]


async def _took(flow: Flow, percent: int, *, speculate: bool) -> Took:
    engine = SimEngine(profile_of("70b"), replies=Decisions(percent).reply)
    runtime = Runtime(
        engine=engine, log="memory", clock=VirtualClock(), speculate=speculate, cache="off"
    )
    await runtime.arun(flow, 0)  # to learn from
    seconds, wasted, guesses = 0.0, [], []
    for number in range(1, RUNS + 1):
        log = (await runtime.arun(flow, number)).log
        seconds += log.envelopes[-1].at / NANOSECONDS
        found = followed(log)
        wasted.append(sum(each.tokens for each in found if each.right is False))
        guesses.append(found)
    return Took(
        seconds=seconds,
        wasted=sum(wasted),
        most_wasted=max(wasted),
        predicted=sum(map(len, guesses)),
        committed=sum(each.right is True for found in guesses for each in found),
        last_predicted=len(guesses[-1]),
    )


async def _effects() -> list[Row]:
    """Each run charges one desk, of which half of the guesses name the wrong one."""
    charged: list[tuple[int, int]] = []

    @step(pure=True)
    async def decide(number: int, waits: int) -> int:
        for _ in range(waits):
            await asyncio.sleep(0)
        return number % DESKS

    @step
    async def charge(number: int, route: int) -> int:
        charged.append((number, route))
        return route

    async def charged_once(number: int) -> int:
        random = Random(number)
        wrong = random.random() < 0.5

        async def then(route: int) -> int:
            for _ in range(random.randrange(4)):
                await worker(f"{number} {route}")
            return await charge(number, route)

        return await speculate(
            decide,
            number,
            random.randrange(12),
            then=then,
            guess=lambda number, _: (number + wrong) % DESKS,
        )

    worker = Agent("worker", "Prepare it.", max_tokens=8)
    runtime = Runtime(engine=ScriptedEngine("done"), log="memory", cache="off")
    guesses = wrong = 0
    for number in range(CAMPAIGN):
        result = await runtime.arun(charged_once, number)
        found = followed(result.log)
        guesses += len(found)
        wrong += sum(each.right is False for each in found)
        runtime.store.delete(result.run_id)
    expected = [(number, number % DESKS) for number in range(CAMPAIGN)]
    missing = len(set(expected) - set(charged))
    return [
        Row(what=f"effects of {CAMPAIGN:,} runs: guesses", measured=guesses, unit="guesses"),
        Row(what="of these, wrong", measured=wrong, unit="guesses"),
        Row(
            what="effects of wrong guesses",
            measured=len(set(charged) - set(expected)),
            unit="effects",
            target=0,
        ),
        Row(
            what="effects missing or twice",
            measured=missing + len(charged) - len(set(charged)),
            unit="effects",
            target=0,
        ),
    ]
