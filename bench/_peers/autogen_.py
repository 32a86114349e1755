"""AutoGen's core runtime, at its best: two agents that pass a message to and fro.

One runtime, warm, its tracing off. One agent sends and awaits the other's response, which is two
hops; agents that publish to each other's topics took twice as long for a hop.
"""

# pyright: reportMissingImports=false
# (it has an environment of its own)

from dataclasses import dataclass

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)
from opentelemetry.trace import NoOpTracerProvider

from bench._peers.worker import RUNNER, Way, async_way, serve


@dataclass
class Start:
    """How often the ball goes to and fro."""

    rallies: int


@dataclass
class Ball:
    """What is passed."""

    n: int


class Ping(RoutedAgent):
    """Sends, and waits for what comes back."""

    @message_handler
    async def play(self, message: Start, ctx: MessageContext) -> Ball:  # noqa: ARG002 - asked for
        ball = Ball(0)
        for _ in range(message.rallies):
            ball = await self.send_message(ball, AgentId("pong", "default"))
        return ball


class Pong(RoutedAgent):
    """Sends back."""

    @message_handler
    async def play(self, message: Ball, ctx: MessageContext) -> Ball:  # noqa: ARG002 - asked for
        return Ball(message.n + 1)


def hops(size: int) -> list[Way]:
    runtime = SingleThreadedAgentRuntime(tracer_provider=NoOpTracerProvider())

    async def prepare() -> None:
        await Ping.register(runtime, "ping", lambda: Ping("ping"))
        await Pong.register(runtime, "pong", lambda: Pong("pong"))
        runtime.start()

    async def work() -> None:
        ball = await runtime.send_message(Start(size // 2), AgentId("ping", "default"))
        assert ball.n == size // 2

    RUNNER.run(prepare())
    return [async_way(work)]


if __name__ == "__main__":
    serve({"hops": hops}, packages=["autogen-core"])
