"""Hello: one agent, one call. Run: ``accord run examples/hello.py --text Ada``."""

from accord import Agent, run

greeter = Agent("greeter", "Greet the person by name, in one sentence.", max_tokens=40)


async def flow(name: str) -> str:
    return await greeter(name)


if __name__ == "__main__":
    print(run(flow, "Ada").output)
