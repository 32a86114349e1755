"""Prints the log of a run whose watchers, diffs and prompts have many keys in them."""

from accord import Agent, Blackboard, gather
from accord.clock import VirtualClock, run_virtual
from accord.runtime import Runtime
from accord.testing.scripted import ScriptedEngine

board = Blackboard()
NAMES = [f"name{number}" for number in range(8)]


async def flow() -> None:
    reader = Agent("reader", reads="plan")
    board.write("plan", dict.fromkeys(NAMES, "a value that is long enough to be told as a change"))
    await reader("first")
    board.write("plan", {"name0": "a value that is long enough to be told as a change", "x": 1})
    await reader("second")

    async def watch(pattern: str) -> None:
        board.append("woken", [pattern, await board.wait_for(pattern, after=0)])

    async def write() -> None:
        board.write("late/key", 1)

    patterns = [f"{'*' * number}late/*" for number in range(1, 8)]
    await gather([*(watch(pattern) for pattern in patterns), write()])


async def main() -> None:
    runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
    result = await runtime.arun(flow)
    for envelope in result.log.envelopes[1:]:
        print(envelope.seq, envelope.scope, envelope.causes, type(envelope.event).__name__)
    for exchange in result.exchanges:
        print([message.content for message in exchange.messages])


if __name__ == "__main__":
    run_virtual(main())
