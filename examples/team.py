"""A team that says each thing once: a shared brief, a board, a summary with handles, messages.

Each scout adds to the board what it found. The writer is shown a bounded summary of that, with
handles behind which it can fetch any text, and only the last report in full. The reviewer gets
the draft by message, and may end the work.

Prints::

    reviewer: APPROVED
    writer was sent 473 of 1,907 tokens that the scouts wrote
"""

from accord import Agent, Blackboard, Ending, Result, gather, run
from accord.engine.base import Request
from accord.testing.scripted import ScriptedEngine

PLACES = ("harbour", "market", "castle", "bridge", "old town")

board = Blackboard()
ending = Ending("APPROVED", by=("reviewer",))
scout = Agent("scout", "Say what is to see.", shares="brief", writes={"reports": "append"})
writer = Agent(
    "writer",
    "Write a guide.",
    shares="brief",
    reads={"reports": "summary", "@writer": "diff"},
    writes="@reviewer",
)
reviewer = Agent("reviewer", "Review it.", reads="@reviewer", writes="@writer", ending=ending)


async def guide(brief: str) -> str:
    """A guide, written and reviewed until the reviewer is content."""
    board.write("brief", brief)
    await gather(scout(place) for place in PLACES)
    review = ""
    for _ in range(3):
        await writer()
        review = await reviewer()
        if ending.reached("reviewer", review):
            break
    return review


def said(request: Request) -> str:
    """What this example's agents say, in place of a model."""
    if request.agent == "scout":
        place = request.messages[-1].content
        return (
            f"The {place} was built in {1600 + len(place)}. "
            + f"The {place} is worth a visit. " * 50
        )
    return {"writer": "Here is the guide.", "reviewer": "APPROVED"}[request.agent]


if __name__ == "__main__":
    result: Result[str] = run(
        guide, "A day in a town by the sea.", engine=ScriptedEngine(said), log="memory"
    )
    edges = [edge for edge in result.tax.edges if edge.writer == "scout"]
    sent, full = sum(edge.sent for edge in edges), sum(edge.full for edge in edges)
    print(f"reviewer: {result.output}")
    print(f"writer was sent {sent:,} of {full:,} tokens that the scouts wrote")
