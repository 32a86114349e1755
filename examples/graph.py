"""A state graph: sections written at once, a question to a person, and a fork.

The run stops at the question and costs nothing until it is answered. The fork changes what one node
gave, and only what depends on it runs again.

Prints::

    asked: publish 3 sections?
    answered: Gates. | Harbour. | Markets.
    forked: asked again, after 1 of 4 requests
    flowchart TD
      start(["start"])
      n0["plan"]
      n1["write"]
      n2["publish"]
      stop(["end"])
      start --> n0
      n0 -.-> n1
      n1 --> n2
      n2 --> stop
"""

from typing import Any, TypedDict

from accord import Agent, interrupt, resume, run
from accord.engine.base import Request
from accord.errors import RunSuspendedError
from accord.graph import START, Send, StateGraph
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine


class State(TypedDict, total=False):
    """What nodes read and write. Lists are added to."""

    town: str
    parts: list[str]
    sections: list[str]
    text: str


planner = Agent("planner", "Name three parts, one a line.")
writer = Agent("writer", "Write one section.")


async def plan(state: State) -> dict[str, Any]:
    """What there is to write."""
    return {"parts": (await planner(state.get("town"))).splitlines()}


async def write(part: str) -> dict[str, Any]:
    """One section. Sections come in the order of the parts, whichever is done first."""
    return {"sections": [await writer(part)]}


async def publish(state: State) -> dict[str, Any]:
    """The whole text, if a person agrees."""
    sections = state.get("sections", [])
    answer = await interrupt(f"publish {len(sections)} sections?")
    return {"text": " | ".join(sections) if answer == "yes" else "not published"}


def each_part(state: State) -> list[Send]:
    """A writer for each part."""
    return [Send("write", part) for part in state.get("parts", [])]


graph = StateGraph(State)
graph.add_node("plan", plan).add_node("write", write).add_node("publish", publish)
graph.add_edge(START, "plan").add_edge("write", "publish")
graph.add_conditional_edges("plan", each_part, ["write"])
guide = graph.compile(name="guide")


def said(request: Request) -> str:
    """What this example's agents say, in place of a model."""
    last = request.messages[-1].content
    return "gates\nharbour\nmarkets" if request.agent == "planner" else f"{last.title()}."


if __name__ == "__main__":
    engine, log = ScriptedEngine(said), MemoryStore()
    try:
        run(guide, {"town": "Salt"}, run_id="guide", engine=engine, log=log)
    except RunSuspendedError as waiting:
        [asked] = waiting.questions
        print("asked:", asked.question)
        result = resume("guide", guide, answers={asked.id: "yes"}, engine=engine, log=log)
        print("answered:", result.output["text"])

    engine.requests.clear()
    try:
        # Had the plan been another: only the section that is new is written.
        guide.fork("guide", "plan", {"parts": ["gates", "light"]}, engine=engine, log=log)
    except RunSuspendedError:
        print(f"forked: asked again, after {len(engine.requests)} of 4 requests")
    print(guide.draw_mermaid(), end="")
