"""Your own engine: one method that yields text, then one reply.

Run: ``python examples/own_engine.py``. Prints::

    SHOUTING BACK: HELLO
    tokens: 2 in, 3 out
"""

from collections.abc import AsyncIterator

from accord import Agent, run
from accord.engine.base import Capabilities, Reply, Request, TextDelta, Usage


class Shouting:
    """Answers with what it was told, loudly. It counts words as tokens."""

    name = "shouting"

    async def start(self) -> Capabilities:
        return Capabilities(model="shouting", concurrency=4)

    async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        heard = request.messages[-1].content
        text = f"shouting back: {heard}".upper()
        for word in text.split(" "):
            yield TextDelta(f"{word} ")
        prompt = sum(len(message.content.split()) for message in request.messages)
        yield Reply(text=text, usage=Usage(prompt=prompt, completion=len(text.split())))

    async def close(self) -> None:
        """Nothing to let go of."""


if __name__ == "__main__":
    result = run(Agent("echo", "Repeat."), "hello", engine=Shouting(), log="memory")
    print(result.output)
    print(f"tokens: {result.usage.prompt} in, {result.usage.completion} out")
