"""Compare documents of any length: readers → planner → writers → editor.

Run: ``accord run examples/report.py --input A.txt --input B.txt --input C.txt``.

A document longer than a reader's share of the window is read in parts: every word reaches a
reader. Notes that outgrow their document's share of the next prompt are condensed by readers
again, each document's under its own title.
"""

from typing import Annotated

from msgspec import Meta, Struct

from accord import Agent, gather, split_text
from accord.tokens.count import estimate

PART_TOKENS = 1000
"""What a reader gets at a time."""
NOTES_TOKENS = 1200
"""What planner and writers get to know of all documents together."""

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
    share = NOTES_TOKENS // max(1, len(documents))
    notes = "\n\n".join(await gather(digest(document, share) for document in documents))
    outline = await planner(notes)
    bodies = await gather(writer(notes, aspect=aspect) for aspect in outline.aspects)
    sections = "\n\n".join(
        f"## {aspect}\n\n{body.strip()}"
        for aspect, body in zip(outline.aspects, bodies, strict=True)
    )
    summary = await editor(sections)
    return f"# {outline.title}\n\n{summary.strip()}\n\n{sections}\n"


async def digest(document: str, share: int) -> str:
    """Notes on a whole document within its share of the window, under its first line."""
    title = next((line.strip() for line in document.splitlines() if line.strip()), "untitled")
    notes = await read(document, PART_TOKENS)
    while estimate(notes) > share:
        shorter = await read(notes, PART_TOKENS // 3)
        if estimate(shorter) >= estimate(notes):
            break  # a reader that writes more than it reads
        notes = shorter
    return f"{title[:80]}:\n{notes}"


async def read(text: str, part_tokens: int) -> str:
    """One note on each part of ``text``, in order."""
    notes = await gather(reader(part) for part in split_text(text, part_tokens))
    return "\n".join(note.strip() for note in notes)
