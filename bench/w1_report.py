"""W1: how many tokens do four agents send for a report: planner, researcher, writer, reviewer?

A brief of 2,000 tokens, replies of 1,000. Measured with the same sizes: peers send 14,310 to 14,540
prompt tokens in a pipeline, 25,170 to 67,210 with a manager; one agent alone needs 3,044 in all.
The classic sizes (one agent: 2,000 in, 5,000 out; four with 4,000 out each) usually cost 3.4 times
one agent, of which 2.3 are the replies.
"""

from collections.abc import Callable
from typing import Any, cast

from accord import Agent, Runtime
from accord.comm.blackboard import Blackboard
from accord.engine.base import Request
from accord.testing.scripted import ScriptedEngine
from bench._counting import Meter, Sent, Tokenizer, text_of, with_tokenizer
from bench.harness import Row

QUICK = False  # needs the local model
ROLES = {
    "planner": "You plan a report. Split the brief into sections with their questions.",
    "researcher": "You research. Answer the questions of the plan with facts and sources.",
    "writer": "You write. Turn plan and findings into a report of readable prose.",
    "reviewer": "You review. Hold the draft against the brief and list what to mend.",
}
WRITES = {"planner": "plan", "researcher": "findings", "writer": "draft", "reviewer": "review"}
EVERYTHING: dict[str, dict[str, Any]] = {role: {"reads": {"*": "full"}} for role in ROLES}
"""As it is usually wired: each sees all that was said."""
DECLARED: dict[str, dict[str, Any]] = {
    "planner": {"shares": "brief"},
    "researcher": {"reads": {"brief": "summary", "plan": "diff"}},
    "writer": {"reads": {"plan": "diff", "findings": "diff"}},
    "reviewer": {"shares": "brief", "reads": {"draft": "diff"}},
}
IN_SHORT: dict[str, dict[str, Any]] = {
    "planner": {"shares": "brief"},
    "researcher": {"reads": ("brief", "plan"), "sees": "summary"},
    "writer": {"reads": ("brief", "plan", "findings"), "sees": "summary"},
    "reviewer": {"reads": ("brief", "draft"), "sees": "summary"},
}
board = Blackboard()


def run() -> list[Row]:
    return cast("list[Row]", with_tokenizer(_measure))


async def _measure(count: Tokenizer) -> list[Row]:
    brief = await text_of(2000, "brief", count)
    short = {role: await text_of(1000, role, count) for role in ROLES}
    long = {role: await text_of(4000, role, count) for role in ROLES}
    usual = await _sent(EVERYTHING, brief, short, count)
    accord = await _sent(DECLARED, brief, short, count)
    usual_long = await _sent(EVERYTHING, brief, long, count)
    accord_long = await _sent(IN_SHORT, brief, long, count)
    return [
        Row(what="4 agents, all see all: prompt", measured=usual.prompt, unit="tokens"),
        Row(what="4 agents, declared: prompt", measured=accord.prompt, unit="tokens", target=9000),
        Row(what="classic, all see all", measured=(usual_long.prompt + 16_000) / 7000, unit="x"),
        Row(
            what="classic, summaries and handles",
            measured=(accord_long.prompt + 16_000) / 7000,
            unit="x",
            target=3.0,
        ),
    ]


async def _sent(
    wiring: dict[str, dict[str, Any]], brief: str, replies: dict[str, str], count: Tokenizer
) -> Sent:
    engine = ScriptedEngine(cast("Callable[[Request], str]", lambda r: replies[r.agent]))
    agents = {
        role: Agent(role, text, writes=WRITES[role], **wiring[role]) for role, text in ROLES.items()
    }

    async def report(brief: str) -> None:
        board.write("brief", brief)
        for agent in agents.values():
            await agent()

    async with Runtime(engine=engine, log="memory") as runtime:
        await runtime.arun(report, brief)
    return await Meter(count).sent(engine.requests)
