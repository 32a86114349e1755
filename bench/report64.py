"""What do 64 agents take to write 30,000 words, as usually wired and as Accord wires them?

The same simulated engine (70B on four H100s), seed, work and length of replies in both; only the
wiring differs (`accord.demo_large`). Levers are pulled one at a time on the usual wiring, and left
out one at a time of Accord's. Quoted for the usual wiring: 142 s, 53 of them thinking, 18 to 22
times the tokens of one agent, P99 above 200 s.
"""

from statistics import median

from accord.demo_large import (
    ACCORD,
    LEVERS,
    USUAL,
    Crew,
    Outcome,
    Wiring,
    makespan_of,
    outcome_of,
    pulled,
    run_alone,
    run_report,
    without,
)
from accord.engine.sim.presets import PRESETS
from accord.observe.tax import quantile
from bench.harness import Row, stopwatch

QUICK = False  # two minutes
SEEDS = range(200)
PROFILE = PRESETS["70b"]
CREW = Crew(64)


def run() -> list[Row]:
    alone = run_alone(CREW, PROFILE, 0).usage
    baseline = alone.prompt + alone.completion
    with stopwatch() as one:
        run_report(USUAL, CREW, PROFILE, 0)
    with stopwatch() as watch:
        usual, accord = _makespans(USUAL), _makespans(ACCORD)
    return [
        *_usual(usual, baseline),
        *_accord(accord, baseline),
        *(row for lever in LEVERS for row in _lever(lever)),
        Row(what="the usual wiring, one run", measured=one.seconds, unit="s real", target=1.0),
        Row(what="both, 200 seeds", measured=watch.seconds, unit="s real", target=120.0),
    ]


def _makespans(wiring: Wiring) -> list[float]:
    return [makespan_of(run_report(wiring, CREW, PROFILE, seed)) for seed in SEEDS]


def _typical(wiring: Wiring, makespans: list[float]) -> Outcome:
    """Of the run whose makespan is the median."""
    seed = makespans.index(sorted(makespans)[len(makespans) // 2])
    return outcome_of(run_report(wiring, CREW, PROFILE, SEEDS[seed]))


def _p99(makespans: list[float]) -> float:
    return quantile([round(1e6 * each) for each in sorted(makespans)], 0.99) / 1e6


def _usual(makespans: list[float], baseline: int) -> list[Row]:
    found = _typical(USUAL, makespans)
    times = found.total / baseline
    return [
        Row(what="usual: makespan, median", measured=median(makespans), unit="s"),
        Row(what="usual: off 142 s", measured=_off(median(makespans), 142), unit="%", target=5.0),
        Row(what="usual: thinking", measured=found.thinking, unit="s"),
        Row(
            what="usual: thinking off 53 s", measured=_off(found.thinking, 53), unit="%", target=5.0
        ),
        Row(what="usual: manager", measured=found.manager, unit="s"),
        Row(what="usual: reading others", measured=found.reading, unit="s"),
        Row(
            what="usual: amplification off 18 to 22",
            measured=_off(times, 20),
            unit="%",
            target=10.0,
        ),
        Row(what="usual: amplification", measured=times, unit="x"),
        Row(what="usual: P99", measured=_p99(makespans), unit="s", target=200.0, at_least=True),
    ]


def _accord(makespans: list[float], baseline: int) -> list[Row]:
    found = _typical(ACCORD, makespans)
    priced = found.total - 0.9 * found.cached
    tail = _p99(makespans) / median(makespans)
    return [
        Row(what="Accord: makespan, median", measured=median(makespans), unit="s", target=53.0),
        Row(what="Accord: overhead", measured=100 * found.overhead, unit="%", target=10.0),
        Row(what="Accord: amplification", measured=found.total / baseline, unit="x", target=4.0),
        Row(
            what="Accord: amplification, cached input at a tenth",
            measured=priced / baseline,
            unit="x",
            target=3.0,
        ),
        Row(what="Accord: P99 over its median", measured=tail, unit="x", target=1.3),
        Row(
            what="Accord: words of the report",
            measured=found.words,
            unit="words",
            target=28_500,
            at_least=True,
        ),
    ]


def _lever(lever: str) -> list[Row]:
    """What it saves alone, and what is lost without it; medians of the first 21 seeds."""
    few = SEEDS[:21]

    def of(wiring: Wiring) -> float:
        return median(makespan_of(run_report(wiring, CREW, PROFILE, seed)) for seed in few)

    name = lever.replace("_", " ")
    return [
        Row(what=f"usual, but {name}: makespan", measured=of(pulled(lever)), unit="s"),
        Row(what=f"Accord, but not {name}: makespan", measured=of(without(lever)), unit="s"),
    ]


def _off(measured: float, quoted: float) -> float:
    return 100 * abs(measured - quoted) / quoted
