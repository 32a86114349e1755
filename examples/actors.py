"""Actors: a desk takes orders, a writer (an agent) and a binder work beside it, none waits for all.

The binder drops a page now and then: it is restarted, and the page is tried again. A page that it
cannot bind at all becomes a dead letter, and the others are bound.

Prints::

    desk: 3 orders
    binder: ['a page on salt', 'a page on light'], 2 restarts
    dead letters: ['a page on nothing']
"""

from typing import Any

from accord import Agent, Result, gather, run, send
from accord.comm.mailbox import Message, ask
from accord.engine.base import Request
from accord.sync.actor import Actor, Handled, answering
from accord.sync.actors import actors
from accord.testing.scripted import ScriptedEngine

writer = Agent("writer", "Write a page.")
dropped: list[str] = []


async def take_order(orders: int, message: Message[str]) -> Handled:
    """Whoever orders is told its number at once; the page is written meanwhile."""
    await send("writer", message.body)
    return Handled(state=orders + 1, reply=orders + 1)


async def bind(pages: list[str], message: Message[str]) -> list[str]:
    """A handler that fails leaves no trace in the state."""
    pages.append(message.body)
    if "nothing" in message.body:
        raise ValueError("an empty page")
    if not dropped:
        dropped.append(message.body)
        raise OSError("dropped it")
    return pages


async def press() -> dict[str, Any]:
    """Three orders at once; the actors end when all that these lead to has been handled."""
    async with actors(
        Actor("desk", take_order, state=0),
        Actor("writer", answering(writer, to="binder")),
        Actor("binder", bind, state=[], restarts=1, on_failure="skip"),
    ) as team:
        await gather(ask("desk", topic) for topic in ("salt", "nothing", "light"))
    return {
        "orders": team.state("desk"),
        "pages": team.state("binder"),
        "restarts": team.statistics("binder").restarts,
    }


def said(request: Request) -> str:
    """What this example's writer says, in place of a model."""
    return f"a page on {request.messages[-1].content}"


if __name__ == "__main__":
    result: Result[dict[str, Any]] = run(press, engine=ScriptedEngine(said), log="memory")
    print(f"desk: {result.output['orders']} orders")
    print(f"binder: {result.output['pages']}, {result.output['restarts']} restarts")
    print(f"dead letters: {[letter.body for letter in result.dead_letters]}")
