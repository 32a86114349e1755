"""Events: sensors tell, and do not know who listens; guards wake only for what concerns them.

The fire watch hears of fires, the keeper of the log of every alarm, fires included. Both stop when
somebody tells that the night is over. Whatever woke them is named in the log, as a cause.

Prints::

    every 10 s: 1, 2, 3
    fire watch: to the roof
    keeper: 2 in the cellar, 5 on the roof
    causes: each wake names what caused it
"""

from dataclasses import dataclass
from typing import Any

from accord import Result, Runtime, gather, sleep
from accord.clock import VirtualClock, run_virtual
from accord.sync.events import emit, on, ticks
from accord.testing.scripted import ScriptedEngine


@dataclass(frozen=True)
class Alarm:
    """Something is wrong."""

    level: int
    where: str


@dataclass(frozen=True)
class Fire(Alarm):
    """An alarm, and more than that."""


@dataclass(frozen=True)
class Morning:
    """The night is over."""


async def sensors() -> str:
    """Two alarms, 15 and 25 seconds into the night, which is over after 35."""
    await sleep(15)
    await emit(Alarm(2, "in the cellar"))
    await sleep(10)
    await emit(Fire(5, "on the roof"))
    await sleep(10)
    await emit(Morning())
    return ""


async def fire_watch() -> str:
    """Wakes for fires that are worth it."""
    with on(Fire, where=lambda fire: fire.level > 3, until=Morning) as fires:
        return ", ".join([fire.value.where.replace("on", "to") async for fire in fires])


async def keeper() -> tuple[str, list[int]]:
    """Notes each alarm, and the number under which it is in the run's log."""
    with on(Alarm, until=Morning) as alarms:
        heard = [alarm async for alarm in alarms]
    return ", ".join(f"{a.value.level} {a.value.where}" for a in heard), [a.id for a in heard]


async def clock() -> str:
    """Recorded pauses: after a crash, those that are over are not waited for again."""
    return ", ".join([str(number) async for number in ticks(10, 3)])


async def night() -> list[Any]:
    """All beside each other."""
    return await gather(clock(), fire_watch(), keeper(), sensors())


if __name__ == "__main__":

    async def main() -> Result[list[Any]]:
        return await Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock()).arun(
            night
        )

    result = run_virtual(main())
    ticked, to, (noted, causes), _ = result.output
    print(f"every 10 s: {ticked}")
    print(f"fire watch: {to}")
    print(f"keeper: {noted}")
    followed = {cause for envelope in result.log.envelopes for cause in envelope.causes}
    if followed.issuperset(causes):
        print("causes: each wake names what caused it")
