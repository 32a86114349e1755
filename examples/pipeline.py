"""Reviews through three stages, and what it saves to overlap them and to read while others write.

A reader sums each review up, a writer drafts an answer, and each sentence of the draft is checked.
Strictly, a stage begins when the one before has done all reviews. Overlapped, it begins with the
first. Streamed, sentences are checked while the writer still writes. On virtual time, with a second
to read a prompt, four to write a reply, and half a second to check a sentence.

Prints::

    strict      48.0 s
    overlapped  27.0 s
    streamed    25.5 s
    writer: busy 20.0 s, starved 5.0 s, held 0.0 s
"""

import asyncio
from collections.abc import AsyncIterator

from accord import Agent, Result, Runtime, step
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Request
from accord.sync.lanes import pipeline_statistics
from accord.sync.pipeline import Stage, pipeline
from accord.sync.stream import sentences
from accord.testing.scripted import ScriptedEngine

REVIEWS = ("The soup was cold.", "A long wait.", "Lovely staff!", "Too loud.")

reader = Agent("reader", "Sum the review up in a few words.")
writer = Agent("writer", "Write an answer, in four sentences.")


@step(pure=True)
async def check(sentence: str) -> str:
    """Stands for a look-up of what a sentence promises."""
    await asyncio.sleep(0.5)
    return sentence


async def checked(chunks: AsyncIterator[str]) -> str:
    return " ".join([await check(sentence) async for sentence in sentences(chunks)])


async def whole(text: str) -> str:
    async def once() -> AsyncIterator[str]:
        yield text

    return await checked(once())


async def strict() -> list[str]:
    return await pipeline(REVIEWS, reader, writer, whole, overlapped=False)


async def overlapped() -> list[str]:
    return await pipeline(REVIEWS, reader, writer, whole)


async def streamed() -> list[str]:
    return await pipeline(REVIEWS, reader, writer, Stage(checked, streams=True))


def said(request: Request) -> str:
    """What this example's agents say, in place of a model."""
    if request.agent == "reader":
        return "They were not happy."
    return "Thank you for writing. We are very sorry. It will not happen again. Do come back"


async def main() -> None:
    engine = ScriptedEngine(said, prefill_s=1, decode_s=4, pieces=20)
    async with Runtime(engine=engine, log="memory", clock=VirtualClock()) as runtime:
        for flow in (strict, overlapped, streamed):
            result: Result[list[str]] = await runtime.arun(flow)
            print(f"{flow.__name__:10}  {result.tax.time.makespan:.1f} s")
        [statistics] = pipeline_statistics(result.log)
        stage = statistics.stages[2]
        print(
            f"{stage.name}: busy {stage.busy_s:.1f} s, starved {stage.starved_s:.1f} s, "
            f"held {stage.held_s:.1f} s"
        )


if __name__ == "__main__":
    run_virtual(main())
