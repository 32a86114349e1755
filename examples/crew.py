"""Crews: tasks that wait for nothing but their context, and a hierarchy of managers.

The first crew finds and counts side by side and writes when both are done. The second has nine
members and a span of three: a manager of managers delegates, and whoever has the tool that the
task requires has used it.

Prints::

    find and count at once, then write: "Nine gates, of which five stand."
    gates.1 → surveyor: look at your side
    4 managers gave 12 parts to do, nobody to more than 3
"""

from collections import Counter

from accord import run, tool
from accord.engine.base import Reply, Request, ToolCall
from accord.team import Crew, Task, member
from accord.testing.scripted import ScriptedEngine


@tool(pure=True)
def survey(side: str) -> str:
    """What stands on a side of the town."""
    return f"on the {side} side, five gates stand"


historian = member("Historian", "Find out about {town}.", "You have read every chronicle.")
counter = member("Counter", "Count what there is.")
editor = member("Editor", "Write it up in a sentence.")

find = Task("Which gates does {town} have?", "A list.", agent=historian, name="find")
count = Task("How many of them stand?", "A number.", agent=counter, name="count")
write = Task("Write of the gates of {town}.", agent=editor, context=[find, count], name="write")
newsroom = Crew([historian, counter, editor], [find, count, write], process="parallel")

surveyor = member("surveyor", tools=[survey])
guild = Crew(
    [surveyor, *(member(f"mason {index}") for index in range(1, 9))],
    [Task("Report on all gates.", requires=[survey])],
    process="hierarchical",
    span=3,
    name="gates",
)


def said(request: Request) -> str | Reply | dict[str, list[str]]:
    """What this example's agents say, in place of a model."""
    text = "\n".join(message.content for message in request.messages)
    if "Members:" in text:
        lines = text.partition("Members:\n")[2].partition("\nGive each")[0].splitlines()
        return {"turns": [f"{line.partition(':')[0]}: look at your side" for line in lines]}
    if request.agent == "surveyor" and request.messages[-1].role != "tool":
        call = ToolCall("1", "survey", '{"side": "sunny"}')
        return Reply(text="", tool_calls=(call,), finish_reason="tool_calls")
    return {
        "Historian": "Nine: the sea gate, the salt gate, and seven more.",
        "Counter": "Five.",
        "Editor": "Nine gates, of which five stand.",
    }.get(request.agent, f"{request.agent} has looked.")


if __name__ == "__main__":
    written = run(newsroom, {"town": "Salt"}, engine=ScriptedEngine(said), log="memory").output
    print(f'find and count at once, then write: "{written["write"]}"')

    surveyed = run(guild, {}, engine=ScriptedEngine(said), log="memory").output
    given = Counter(each.manager for each in surveyed.delegations)
    to_surveyor = next(each for each in surveyed.delegations if each.to == "surveyor")
    manager = to_surveyor.manager.replace(" manager", "")
    print(f"{manager} → surveyor: {to_surveyor.instruction}")
    print(
        f"{len(given)} managers gave {sum(given.values())} parts to do, "
        f"nobody to more than {max(given.values())}"
    )
