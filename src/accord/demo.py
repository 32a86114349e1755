"""The main job: a competitive-analysis report by four roles, and by one agent alone.

planner → researchers → writers → editor. The brief is on the blackboard and comes first in the
prompts of all who read it, so an engine with a prefix cache reads it once. Small enough for a 135M
model on two cores, and the same flow on any other engine. Lengths are bounded, by the end of a
paragraph and by the output types, which become the JSON schema that the engine decodes under: so
replies are whole, and a second run finds them in the result cache.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from accord.agent.agent import Agent
from accord.comm.blackboard import Blackboard
from accord.sync.gather import gather

BRIEF = """\
Competitive analysis: password managers for small companies.

Lockbox is a cloud service at 4 dollars a user and month. It is easy to start with, has apps
for every phone and browser, and shares passwords between teams. It has no version for a
company's own servers, and was down for nine hours last spring.

Keyring is open source and free on a company's own server; hosting costs 3 dollars a user and
month. Its code was audited twice. Its browser extension is slow, and setting up the server
takes a day of an engineer's time.

Vaultic sells to banks at 12 dollars a user and month. It writes an audit log of every access,
signs in through a company's own directory, and answers the telephone at night. It has no free
trial, and a contract runs for three years.

The reader leads a company of 40 people, half of them engineers, without a security team, and
must choose one this quarter.
"""

SEED = 7
"""Of the engine's sampling, so that a second run reads alike."""

PARAGRAPH = ("\n\n",)
"""Where a paragraph ends."""
Line = Annotated[str, Meta(min_length=4, max_length=60)]
"""Short: llama.cpp's grammars unroll a bound, so a long one costs time on every token."""


class Section(Struct, frozen=True):
    """One part of the report, and the question that it answers."""

    title: Line
    question: Line


class Outline(Struct, frozen=True):
    """The title of the report, and its parts."""

    title: Line
    sections: Annotated[list[Section], Meta(min_length=3, max_length=3)]


class Findings(Struct, frozen=True):
    """What the brief says about a question."""

    facts: Annotated[list[Line], Meta(min_length=2, max_length=4)]


class Part(Struct, frozen=True):
    """One part of a report by one agent."""

    title: Line
    text: Annotated[list[Line], Meta(min_length=3, max_length=4)]


class Report(Struct, frozen=True):
    """A report by one agent."""

    title: Line
    summary: Annotated[list[Line], Meta(min_length=3, max_length=4)]
    sections: Annotated[list[Part], Meta(min_length=3, max_length=3)]
    recommendation: Annotated[list[Line], Meta(min_length=2, max_length=4)]


board = Blackboard()

planner = Agent(
    "planner",
    "Plan a report on the brief: its title, and three sections with the question each answers.",
    shares="brief",
    output=Outline,
    max_tokens=320,
    seed=SEED,
    coordination=True,
)
researcher = Agent(
    "researcher",
    "List the facts from the brief that answer the question.",
    shares="brief",
    output=Findings,
    max_tokens=240,
    seed=SEED,
)
writer = Agent(
    "writer",
    "Write one short paragraph that answers the question from the facts.",
    max_tokens=240,
    stop=PARAGRAPH,
    seed=SEED,
)
editor = Agent(
    "editor",
    "Sum this report up for its reader and recommend what to do, in one paragraph.",
    max_tokens=320,
    stop=PARAGRAPH,
    seed=SEED,
)
analyst = Agent(
    "analyst",
    "Write a report on the brief: a title, a summary, three short sections, a recommendation.",
    shares="brief",
    output=Report,
    max_tokens=1024,
    seed=SEED,
)


async def team(brief: str) -> str:
    """The report as Markdown, by four roles."""
    board.write("brief", brief)
    outline = await planner(_topic(brief))
    bodies = await gather(_section(section) for section in outline.sections)
    sections = "\n\n".join(
        f"## {section.title}\n\n{body.strip()}"
        for section, body in zip(outline.sections, bodies, strict=True)
    )
    summary = await editor(sections)
    return f"# {outline.title}\n\n{summary.strip()}\n\n{sections}\n"


async def solo(brief: str) -> str:
    """The report by one agent, for comparison."""
    board.write("brief", brief)
    report = await analyst(_topic(brief))
    parts = [f"## {part.title}\n\n{' '.join(part.text)}" for part in report.sections]
    summary, advice = " ".join(report.summary), " ".join(report.recommendation)
    return "\n\n".join([f"# {report.title}", summary, *parts, advice]) + "\n"


def _topic(brief: str) -> str:
    """The first line says what the brief is about."""
    return brief.partition("\n")[0]


async def _section(section: Section) -> str:
    findings = await researcher(section.question)
    return await writer(section.question, "\n".join(f"- {fact}" for fact in findings.facts))
