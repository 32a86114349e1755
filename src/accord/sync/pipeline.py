"""``pipeline``: items through stages, each stage at work on another item.

Choose it when many items go through the same steps, one after the other: read, draft, proofread.
Overlapped, ``n`` items take as long as the slowest stage does for all of them, and the rest of the
way for one: with equal stages (n + stages - 1) times a stage. Strict (``overlapped=False``), a
stage begins when the one before has done all items, which takes the sum; choose that for stages
that must see what the one before has made of everything. It costs one note and one join, and a task
for each item at each stage.

A stage begins items in their order, works on ``width`` of them at a time, and hands them on in
order. At most ``width`` + ``buffer`` items wait between it and the next: a slow stage holds back
those before it, up to the source, which is asked for an item when there is room for one.

Places come from the program: stage by stage (the source is stage 0), and in each, item by item. So
whichever stage is faster, calls have the same keys, and what is written is read in the same order.
The source and stages that are plain functions run again on a replay: what they give must follow
from the calls that they make. A plain sync function runs on the loop, so make what takes long a
step.

Policies, when a stage fails on an item:

``fail_fast``   all that runs is cancelled, and the failure is raised
``isolate``     that item skips the stages that are left, and its exception is its result

A source that fails ends the pipeline under either. With ``Stage(function, streams=True)`` a stage
reads the replies of the agent before it while they are being written: see
:mod:`accord.sync.stream`. That saves the wait for the end of each reply. A reply that is begun anew
and goes otherwise fails its reader: what that did with the beginning was for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from accord.flow.fork import Fork
from accord.flow.note import note
from accord.log.events import Looked
from accord.observe.places import ARROW, PIPELINE, SOURCE
from accord.sync.gather import Policy
from accord.sync.line import Line
from accord.sync.stage import Source, Stage, check

__all__ = ["Stage", "pipeline"]


async def pipeline(
    items: Iterable[Any] | AsyncIterable[Any],
    *stages: Stage | Callable[[Any], Any],
    overlapped: bool = True,
    buffer: int = 1,
    policy: Policy = "fail_fast",
) -> list[Any]:
    """What the last stage made of each of ``items``, in their order.

    Raises :class:`accord.errors.UsageError` for stages that cannot work, before any item is taken.
    """
    lined_up = [each if isinstance(each, Stage) else Stage(each) for each in stages]
    source = Source(items)
    check(lined_up, buffer, policy)
    names = ARROW.join(stage.name.replace(ARROW, " ") for stage in lined_up)
    what = f"{PIPELINE}{names}"
    note(what, lambda scope, _: Looked(what=what, by=scope.agent))
    lanes = [Stage(source.draw, name=SOURCE), *lined_up]
    with Fork("pipeline", len(lanes)) as fork:
        line = Line(fork, source, lanes, policy=policy, room=buffer if overlapped else None)
        return await line.run()
