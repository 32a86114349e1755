"""A group chat: a manager plans several turns per call, until the reviewer approves.

Each is shown what the others said, once, and never their tools. What the manager is shown does not
grow with the chat, and what it costs stands apart in the report.

Prints::

    writer, critic, writer, reviewer - TextMention(text='APPROVED', by=('reviewer',))
    manager: 1 call, 37% of 391 tokens
"""

from accord import Agent, Result, run
from accord.engine.base import Request
from accord.team import ChatResult, GroupChat, Manager, MaxMessages, TextMention
from accord.testing.scripted import ScriptedEngine

writer = Agent("writer", "Write a slogan.")
critic = Agent("critic", "Say what is weak in it.")
reviewer = Agent("reviewer", "Approve it if it is good.")

chat = GroupChat(
    [writer, critic, reviewer],
    speakers=Manager(turns=4),
    until=TextMention("APPROVED", by="reviewer") | MaxMessages(12),
)


def said(request: Request) -> str | dict[str, list[str]]:
    """What this example's agents say, in place of a model."""
    if request.agent == "manager":
        return {"turns": ["writer: a draft", "critic", "writer: mend it", "reviewer: decide"]}
    if request.agent == "critic":
        return "It could be any town. Name what only this one has."
    if request.agent == "reviewer":
        return "That is it. APPROVED"
    mended = "what only this one has" in request.messages[-1].content or len(request.messages) > 4
    return "Sea, salt and the old light." if mended else "Come and see the sea."


if __name__ == "__main__":
    result: Result[ChatResult] = run(
        chat, "A slogan for a town by the sea.", engine=ScriptedEngine(said), log="memory"
    )
    tokens, held = result.tax.tokens, result.output
    share = 100 * tokens.coordination / tokens.total
    print(", ".join(message.speaker for message in held.messages), "-", held.stopped)
    print(f"manager: {held.choices} call, {share:.0f}% of {tokens.total} tokens")
