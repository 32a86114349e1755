"""64 agents write 30,000 words on a simulated 70B model, as usually wired and as Accord wires them.

Engine, seed, work and lengths of replies are the same; virtual time, so it takes a second or two.
``accord demo --agents 64 --engine sim`` runs more seeds, and says what each lever saves.

Prints::

    usual   148.1 s, 52.7 s of them thinking, 20.0x the tokens of one agent
    Accord   52.3 s, 50.0 s of them thinking,  3.2x the tokens of one agent
"""

from accord.demo_compared import outcome_of, run_alone, run_report
from accord.demo_large import ACCORD, USUAL, Crew
from accord.engine.sim.presets import PRESETS

if __name__ == "__main__":
    crew, profile = Crew(64), PRESETS["70b"]
    alone = run_alone(crew, profile, seed=1).usage
    for name, wiring in (("usual", USUAL), ("Accord", ACCORD)):
        found = outcome_of(run_report(wiring, crew, profile, seed=1))
        times = found.total / (alone.prompt + alone.completion)
        print(
            f"{name:7}{found.makespan:6.1f} s, {found.thinking:.1f} s of them thinking, "
            f"{times:4.1f}x the tokens of one agent"
        )
