"""The large report run and compared: what each wiring takes, and what each lever saves.

On virtual time, so that minutes take a third of a second. All is read off the logs of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.demo_large import (
    ACCORD,
    LEVERS,
    MANAGER,
    PATIENCE_S,
    USUAL,
    Crew,
    Report,
    Wiring,
    alone,
    brief,
    engine_of,
    pulled,
    without,
)
from accord.engine.base import CACHED_PRICE
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.profile import Profile
from accord.errors import UsageError
from accord.log.store.memory import MemoryStore
from accord.observe.critical import PARTS
from accord.runtime import Result, Runtime

T = TypeVar("T")

FEW_SEEDS = 9
"""For the levers: their medians differ by more than noise."""
BUSY_TOKENS = 44_000
"""What the engine reads at most before it begins to answer: on a slow one, that takes longer."""
NEEDS_TOKENS = 100_000
"""Of window and KV cache."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run of the report. Times are seconds on its critical path; they add up to the makespan."""

    makespan: float
    thinking: float
    """Of everybody but the manager: the engine writes, or reads what is the agent's own."""
    manager: float
    reading: float
    """The engine reads what others wrote, or anew what it had forgotten."""
    queueing: float
    """Requests wait for the engine, or hang."""
    other: float
    """Tools, the network, the flow's own code."""
    total: int
    """Tokens, prompt and completion."""
    cached: int
    """Of these, read from the engine's cache."""
    words: int
    """Of the report."""

    @property
    def priced(self) -> float:
        """Tokens, with cached ones at a tenth."""
        return self.total - (1 - CACHED_PRICE) * self.cached

    @property
    def overhead(self) -> float:
        """The share of the makespan that is not thinking."""
        return 1 - self.thinking / self.makespan


def makespan_of(result: Result[Any]) -> float:
    """Seconds from the first event to the last."""
    envelopes = result.log.envelopes
    return (envelopes[-1].at - envelopes[0].at) / NANOSECONDS


def outcome_of(result: Result[dict[str, Any]]) -> Outcome:
    """What the log of a run says."""
    parts: dict[str, int] = dict.fromkeys((*PARTS, MANAGER), 0)
    for segment in result.tax.critical_path:
        for part, ns in segment.parts.items():
            parts[MANAGER if segment.name == MANAGER else part] += ns
    seconds = {part: ns / NANOSECONDS for part, ns in parts.items()}
    named = ("thinking", "manager", "reading", "recompute", "queueing")
    return Outcome(
        makespan=makespan_of(result),
        thinking=seconds["thinking"],
        manager=seconds[MANAGER],
        reading=seconds["reading"] + seconds["recompute"],
        queueing=seconds["queueing"],
        other=sum(each for part, each in seconds.items() if part not in named),
        total=result.tax.tokens.total,
        cached=result.tax.tokens.cached,
        words=sum(len(section.split()) for section in result.output["sections"]),
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Both wirings side by side. Times are seconds."""

    baseline: int
    """Tokens of one agent that does it all."""
    makespans: dict[str, list[float]]
    """By seed."""
    outcomes: dict[str, Outcome]
    """Of the run whose makespan is the median."""
    levers: dict[str, tuple[float, float]]
    """What it saves pulled alone on the usual wiring, and what Accord's takes longer without it."""


def compare(crew: Crew, profile: Profile, seeds: range) -> Compared:
    """Run both wirings on each seed, and each lever on the first few."""
    wirings = {"usual": USUAL, "Accord": ACCORD}
    makespans = {name: _makespans(each, crew, profile, seeds) for name, each in wirings.items()}
    outcomes: dict[str, Outcome] = {}
    for name, wiring in wirings.items():
        ordered = sorted(makespans[name])
        seed = seeds[makespans[name].index(ordered[(len(ordered) - 1) // 2])]
        outcomes[name] = outcome_of(run_report(wiring, crew, profile, seed))
    few = seeds[:FEW_SEEDS]
    usual, accord = (median(each[: len(few)]) for each in makespans.values())
    levers = {
        lever: (
            usual - median(_makespans(pulled(lever), crew, profile, few)),
            median(_makespans(without(lever), crew, profile, few)) - accord,
        )
        for lever in LEVERS
    }
    one = run_alone(crew, profile, seeds[0]).usage
    return Compared(
        baseline=one.prompt + one.completion,
        makespans=makespans,
        outcomes=outcomes,
        levers=levers,
    )


def _makespans(wiring: Wiring, crew: Crew, profile: Profile, seeds: range) -> list[float]:
    return [makespan_of(run_report(wiring, crew, profile, seed)) for seed in seeds]


def run_report(wiring: Wiring, crew: Crew, profile: Profile, seed: int) -> Result[dict[str, Any]]:
    """The report on virtual time."""
    if min(profile.window, profile.kv_tokens) < NEEDS_TOKENS:
        raise UsageError(
            f"the report needs a window and a KV cache of {NEEDS_TOKENS:,} tokens, as one agent "
            f"writes it alone; {profile.name} has {profile.window:,} and {profile.kv_tokens:,}: "
            "take --engine sim:8b or sim:70b, or a profile of an engine with more"
        )
    patience_s = max(PATIENCE_S, BUSY_TOKENS * profile.token_s)
    flow = Report(wiring, crew, seed, patience_s=patience_s).flow
    return _run(flow, (brief(),), wiring, engine_of(profile, crew, seed))


def run_alone(crew: Crew, profile: Profile, seed: int) -> Result[str]:
    """The same by one agent, for the amplification."""
    inputs = (brief(), seed, crew.sections)
    return _run(alone, inputs, ACCORD, engine_of(profile, crew, seed))


def _run(
    flow: Callable[..., Coroutine[Any, Any, T]],
    inputs: tuple[Any, ...],
    wiring: Wiring,
    engine: SimEngine,
) -> Result[T]:
    async def main() -> Result[T]:
        runtime = Runtime(
            engine=engine,
            log=MemoryStore(),
            clock=VirtualClock(),
            policy=wiring.policy,
            durability="exit",
        )
        return await runtime.arun(flow, *inputs)

    return run_virtual(main())
