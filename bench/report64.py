"""What do 64 agents take to write 30,000 words, as usually wired and as Accord wires them?

The same simulated engine (70B on four H100s), seed, work and length of replies in both; only the
wiring differs (`accord.demo_large`). Levers are pulled one at a time on the usual wiring, and left
out one at a time of Accord's. Quoted for the usual wiring: 142 s, 53 of them thinking, 18 to 22
times the tokens of one agent, P99 above 200 s.
"""

from statistics import median

from accord.demo_compared import Compared, Outcome, compare, makespan_of, outcome_of, run_report
from accord.demo_large import USUAL, Crew, pulled
from accord.engine.sim.presets import PRESETS
from bench.harness import Row, stopwatch

QUICK = False  # minutes
SEEDS = range(200)
PROFILE = PRESETS["70b"]
CREW = Crew(64)


def run() -> list[Row]:
    with stopwatch() as one:
        run_report(USUAL, CREW, PROFILE, 0)
    with stopwatch() as watch:
        found = compare(CREW, PROFILE, SEEDS)
    patient = [makespan_of(run_report(pulled("patient"), CREW, PROFILE, n)) for n in SEEDS]
    return [
        *_usual(found, found.outcomes["usual"]),
        *_accord(found, found.outcomes["Accord"]),
        *(row for lever, both in found.levers.items() for row in _lever(lever, *both)),
        Row(what="usual, but patient: P99", measured=_p99(patient), unit="s"),
        Row(what="the usual wiring, one run", measured=one.seconds, unit="s real", target=1.0),
        Row(what="all of it, 200 seeds", measured=watch.seconds, unit="s real", target=120.0),
    ]


def _p99(makespans: list[float]) -> float:
    return sorted(makespans)[-(-99 * len(makespans) // 100) - 1]


def _usual(found: Compared, typical: Outcome) -> list[Row]:
    makespans, times = found.makespans["usual"], typical.total / found.baseline
    few = (run_report(USUAL, CREW, PROFILE, seed) for seed in SEEDS[:21])
    thought = median(outcome_of(each).thinking for each in few)
    off, thinking = _off(median(makespans), 142), _off(thought, 53)
    return [
        Row(what="usual: makespan, median", measured=median(makespans), unit="s"),
        Row(what="usual: makespan off 142 s", measured=off, unit="%", target=5.0),
        Row(what="usual: thinking, median of 21", measured=thought, unit="s"),
        Row(what="usual: thinking off 53 s", measured=thinking, unit="%", target=5.0),
        Row(what="usual: manager", measured=typical.manager, unit="s"),
        Row(what="usual: reading others", measured=typical.reading, unit="s"),
        Row(what="usual: amplification", measured=times, unit="x"),
        Row(
            what="usual: amplification off 18 to 22", measured=_off(times, 20), unit="%", target=10
        ),
        Row(what="usual: P99", measured=_p99(makespans), unit="s", target=200.0, at_least=True),
    ]


def _accord(found: Compared, typical: Outcome) -> list[Row]:
    makespans = found.makespans["Accord"]
    times, priced = typical.total / found.baseline, typical.priced / found.baseline
    tail = _p99(makespans) / median(makespans)
    overhead = 100 * typical.overhead
    return [
        Row(what="Accord: makespan, median", measured=median(makespans), unit="s", target=53.0),
        Row(what="Accord: overhead", measured=overhead, unit="%", target=10.0),
        Row(what="Accord: amplification", measured=times, unit="x", target=4.0),
        Row(what="Accord: same, cached input at a tenth", measured=priced, unit="x", target=3.0),
        Row(what="Accord: P99 over its median", measured=tail, unit="x", target=1.3),
        Row(what="words of the report", measured=typical.words, unit="words"),
    ]


def _lever(lever: str, alone: float, without: float) -> list[Row]:
    name = lever.replace("_", " ")
    return [
        Row(what=f"usual, but {name}: saves", measured=alone, unit="s"),
        Row(what=f"Accord, but not {name}: costs", measured=without, unit="s"),
    ]


def _off(measured: float, quoted: float) -> float:
    return 100 * abs(measured - quoted) / quoted
