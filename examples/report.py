"""Compare documents of any length: readers → planner → writers → editor.

Run: ``accord run examples/report.py --input A.txt --input B.txt --input C.txt``.

A document longer than a reader's share of the window is read in parts, and notes that grow
too long are condensed in the same way, so nothing is cut off.
"""

from typing import Annotated

from msgspec import Meta, Struct

from accord import Agent, gather, split_text
from accord.tokens.count import estimate

PART_TOKENS = 1000
NOTES_TOKENS = 900

Line = Annotated[str, Meta(min_length=4, max_length=60)]


class Outline(Struct):
    """A title, and what to compare the documents by."""

    title: Line
    aspects: Annotated[list[Line], Meta(min_length=3, max_length=3)]


reader = Agent("reader", "Note the main points of this text in two sentences.", max_tokens=72)
planner = Agent(
    "planner",
    "Name a title, and three aspects by which to compare the documents.",
    output=Outline,
    max_tokens=200,
    coordination=True,
)
writer = Agent("writer", "Compare the documents by the aspect, in one paragraph.", max_tokens=140)
editor = Agent("editor", "Sum this comparison up, in one paragraph.", max_tokens=140)


async def flow(*documents: str) -> str:
    notes = "\n".join(await gather(digest(document) for document in documents))
    notes = await shortened(notes)
    outline = await planner(notes)
    bodies = await gather(writer(notes, aspect) for aspect in outline.aspects)
    sections = "\n\n".join(
        f"## {aspect}\n\n{body.strip()}"
        for aspect, body in zip(outline.aspects, bodies, strict=True)
    )
    summary = await editor(sections)
    return f"# {outline.title}\n\n{summary.strip()}\n\n{sections}\n"


async def digest(document: str) -> str:
    """Notes on a whole document, under its first line."""
    title = next((line.strip() for line in document.splitlines() if line.strip()), "untitled")
    notes = await gather(reader(part) for part in split_text(document, PART_TOKENS))
    return f"{title[:80]}:\n" + await shortened("\n".join(note.strip() for note in notes))


async def shortened(notes: str) -> str:
    """Notes that fit, condensed as often as it takes."""
    while estimate(notes) > NOTES_TOKENS:
        notes = "\n".join(await gather(reader(part) for part in split_text(notes, PART_TOKENS)))
    return notes
