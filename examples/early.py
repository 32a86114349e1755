"""What need not be computed again, and what may begin early?

A router reads a question, and a desk answers it. Asked the same again, nothing is computed. Asked
something else, the desk begins on the guess that the question goes where it went last time; what it
books is booked when that is certain, once. A simulated 70B model, on virtual time.

Prints::

    the first time   4.2 s, 0 requests from the cache, 0 of 0 guesses right
    the same again   0.0 s, 4 requests from the cache, 0 of 0 guesses right
    other questions  3.3 s, 0 requests from the cache, 1 of 2 guesses right
    booked: billing, sales, billing, sales, billing, billing
"""

from random import Random

from accord import Agent, Runtime, speculate, step
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Request
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import profile_of

router = Agent("router", "Name the desk: billing or sales.", max_tokens=80, seed=1)
desk = Agent("desk", "Answer the question.", max_tokens=80, seed=1)
booked: list[str] = []


@step
async def book(route: str) -> None:
    """An effect: it never happens on a wrong guess."""
    booked.append(route)


async def helpdesk(*questions: str) -> None:
    for question in questions:

        async def then(route: str, question: str = question) -> None:
            await desk(f"{route.strip()}: {question}")
            await book(route.strip())

        await speculate(router, question, then=then)


def reply(request: Request, _: Random) -> str | int:
    if request.agent == "desk":
        return 60
    name = "billing" if "bill" in request.messages[-1].content else "sales"
    return f"{name:200}"  # as long as if it had thought about it


async def main() -> None:
    engine = SimEngine(profile_of("70b"), replies=reply)
    runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
    first = "What is on my bill?", "What do you sell?"
    others = "May I pay the bill later?", "And the other bill?"
    for name, questions in [
        ("the first time", first),
        ("the same again", first),
        ("other questions", others),
    ]:
        tax = (await runtime.arun(helpdesk, *questions)).tax
        cached, guesses = tax.reuse.cached, tax.reuse.speculated
        print(
            f"{name:16} {tax.time.makespan:3.1f} s, {cached.requests} requests from the cache, "
            f"{guesses.committed} of {guesses.predicted} guesses right"
        )
    print(f"booked: {', '.join(booked)}")


if __name__ == "__main__":
    run_virtual(main())
