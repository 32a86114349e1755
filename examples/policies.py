"""Who may ask the engine now? A long chain beside a wide fan, on an engine of four places.

The chain has six agents, each after the one before; the fan asks 24 at once. First come, first
served, each link of the chain waits behind the fan. A simulated 70B model, on virtual time.

Prints::

    fcfs            chain 126.4 s, fan  80.6 s
    critical_path   chain  69.1 s, fan  92.1 s
    least_attained  chain  69.1 s, fan  92.1 s
"""

from asyncio import TaskGroup

from msgspec.structs import replace

from accord import Agent, Runtime, gather
from accord.clock import VirtualClock, run_virtual
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of
from accord.log.store.memory import MemoryStore

PROFILE = replace(profile_of("70b"), concurrency=4)
"""So few places that a policy has something to choose."""

link = Agent("link", "Go on from here.", max_tokens=600)
leaf = Agent("leaf", "Write one of many.", max_tokens=600)


async def chain() -> str:
    text = "Begin."
    for _ in range(6):
        text = await link(text[:80])
    return text


async def fan() -> list[str]:
    return await gather(leaf(f"part {n}") for n in range(24))


async def compare(policy: str) -> tuple[float, float]:
    """How long the two take beside each other, in seconds."""
    runtime = Runtime(
        engine=SimEngine(PROFILE, replies=lambda request, _: request.max_tokens or 1),
        log=MemoryStore(),
        clock=VirtualClock(),
        policy=policy,
        remaining={"link": 60.0, "leaf": 12.0},  # or learned from the last run of each flow
    )
    both = [runtime.arun(fan), runtime.arun(chain)]
    async with TaskGroup() as group:
        fanned, chained = [group.create_task(each) for each in both]
    return chained.result().tax.time.makespan, fanned.result().tax.time.makespan


if __name__ == "__main__":
    for policy in ("fcfs", "critical_path", "least_attained"):
        chained_s, fanned_s = run_virtual(compare(policy))
        print(f"{policy:15} chain {chained_s:5.1f} s, fan {fanned_s:5.1f} s")
