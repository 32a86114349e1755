"""How much sooner does the next agent begin to answer, if its prompt was read while it waited?

A report: plan, retrieve (a search that takes a while, during which the engine has nothing to do),
write, proofread. The writer keeps to a long guide, which the engine has not seen in this run: each
run has a brief and a guide of its own. On the real llama.cpp, in turns with and without; and on the
simulated engine under full load, where there is no spare capacity and nothing may begin later.
"""

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from accord import Agent, Runtime, gather, step
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.comm.blackboard import Blackboard
from accord.engine.local import LocalEngine
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of
from accord.log.events import CallFinished, CallStarted, PrefetchEnded, RunFinished
from accord.log.log import Log
from bench._counting import text_of
from bench.harness import Row

QUICK = False  # a minute of real inference
ROUNDS, PLACES, EQUAL_S = 5, 8, 1e-6
BRIEF, GUIDE, FOUND, SEARCH_S = 400, 600, 60, 4.0
board = Blackboard()

planner = Agent("planner", "Plan a report on the brief.", shares="brief", max_tokens=24, seed=1)
writer = Agent(
    "writer",
    "Write a section of the report by the guide.",
    shares=("brief", "guide"),
    writes={"sections": "append"},
    max_tokens=32,
    seed=1,
)
editor = Agent(
    "editor", "Proofread the sections.", shares=("brief", "guide"), reads="sections", max_tokens=24
)


@step(pure=True)
async def retrieve(section: int) -> str:
    """A search elsewhere: it takes its time, and the engine none."""
    await asyncio.sleep(SEARCH_S)
    return f"What was found for section {section}. " * (FOUND // 9)


async def report(brief: str, guide: str) -> str:
    board.write("brief", brief)
    board.write("guide", guide)
    await planner("Plan it.")
    found = await gather(retrieve(section) for section in range(2))
    for each in found:
        await writer(each)
    return await editor("Go on.")


@dataclass(frozen=True, kw_only=True)
class Took:
    """Of one run, in seconds; ``first_s`` is from asking the first writer to its first token."""

    first_s: float
    makespan_s: float
    prefetched: int


def run() -> list[Row]:
    return [*asyncio.run(_real()), *run_virtual(_full_load())]


async def _real() -> list[Row]:
    engine = LocalEngine(slots=2, window=4096)
    took: dict[bool, list[Took]] = {False: [], True: []}
    try:
        count = (await engine.start()).tokenizer
        assert count is not None
        texts = [
            (await text_of(BRIEF, f"brief {i}", count), await text_of(GUIDE, f"guide {i}", count))
            for i in range(2 * ROUNDS + 1)
        ]
        runtimes = {on: Runtime(engine=engine, log="memory", prefetch=on) for on in took}
        await runtimes[True].arun(report, *texts.pop())  # to learn from
        for _ in range(ROUNDS):
            for on, runtime in runtimes.items():
                result = await runtime.arun(report, *texts.pop())
                took[on].append(_took(result.log))
    finally:
        await engine.close()
        engine.unload()
    return _compared(took)


def _took(log: Log) -> Took:
    first = next(
        end.event.spent.first_token_ns
        for end in log.envelopes
        if isinstance(end.event, CallFinished)
        and end.event.spent is not None
        and end.event.spent.first_token_ns is not None
        and isinstance(start := log.envelopes[end.event.call].event, CallStarted)
        and start.name == "writer"
    )
    ends = [each.at for each in log.envelopes if isinstance(each.event, RunFinished)]
    usages = [e.event.usage for e in log.envelopes if isinstance(e.event, PrefetchEnded)]
    return Took(
        first_s=first / NANOSECONDS,
        makespan_s=ends[0] / NANOSECONDS,
        prefetched=sum(usage.prompt - usage.cached for usage in usages if usage),
    )


def _compared(took: dict[bool, list[Took]]) -> list[Row]:
    without, with_it = (statistics.median(t.first_s for t in took[on]) for on in (False, True))
    plain, ahead = (statistics.median(t.makespan_s for t in took[on]) for on in (False, True))
    return [
        Row(what="llama.cpp: first token of the writer, as it is", measured=without, unit="s"),
        Row(what="llama.cpp: the same, read ahead", measured=with_it, unit="s"),
        Row(
            what="llama.cpp: first token sooner by",
            measured=100 * (1 - with_it / without),
            unit="%",
            target=50,
            at_least=True,
        ),
        Row(
            what="llama.cpp: makespan over the one without",
            measured=100 * (ahead / plain - 1),
            unit="%",
            target=0,
        ),
        Row(
            what="llama.cpp: read ahead",
            measured=statistics.median(t.prefetched for t in took[True]),
            unit="tokens/run",
        ),
    ]


scout = Agent("scout", "Say what you find.", max_tokens=48)
judge = Agent("judge", "Judge it. " + "Weigh each point by the guide. " * 40, max_tokens=24)


async def crowd(teams: int) -> None:
    """Twice as many as there are places, each asking again as soon as it is answered."""

    async def team(number: int) -> None:
        for turn in range(3):
            await judge(await scout(f"Place {number}, turn {turn}. " * 30))

    await gather(team(number) for number in range(teams))


async def _full_load() -> list[Row]:
    """When each ready call was sent to an engine that always has more to do, with and without."""
    profile = replace(profile_of("8b"), concurrency=PLACES)
    sent: dict[bool, list[float]] = {}
    ahead = 0
    for on in (False, True):
        engine = SimEngine(profile, replies=lambda request, _: request.max_tokens or 1)
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock(), prefetch=on)
        for _ in range(2):  # the second has learned from the first
            log = (await runtime.arun(crowd, 2 * PLACES)).log
        sent[on] = sorted(_sent_s(log))
        ahead += sum(isinstance(each.event, PrefetchEnded) for each in log.envelopes)
    later = sum(
        with_it > without + EQUAL_S
        for without, with_it in zip(sent[False], sent[True], strict=True)
    )
    return [
        Row(what="full load: ready calls sent", measured=len(sent[True]), unit="calls"),
        Row(what="full load: of these, sent later", measured=later, unit="calls", target=0),
        Row(what="full load: read ahead", measured=ahead, unit="requests"),
    ]


def _sent_s(log: Log) -> Iterator[float]:
    for end in log.envelopes:
        if isinstance(end.event, CallFinished) and end.event.spent is not None:
            begun = log.envelopes[end.event.call].at + end.event.spent.queued_ns
            yield begun / NANOSECONDS
