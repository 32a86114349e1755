"""What places of the flow are, read off the log: pipelines, actors, and whose end an event is.

A pipeline is noted in the place before its own, with the names of its stages. Below its place lie
its stages (0 is the source), below those the items, by number. An actor is a branch that handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from accord.log.events import (
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Joined,
    Looked,
    MessageTaken,
    Written,
)
from accord.log.fold import Call

PIPELINE = "pipeline: "
"""What a pipeline is noted as, before the names of its stages."""
ARROW = " → "
SOURCE = "source"
HEDGE = "hedge "
"""What a further attempt of a hedge is noted as, before the name of what it calls."""


def pipelines_of(envelopes: Iterable[Envelope]) -> dict[str, list[str]]:
    """The stages of each pipeline, the source first, by the pipeline's place."""
    found: dict[str, list[str]] = {}
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, Looked) and event.what.startswith(PIPELINE):
            above, _, number = envelope.scope.rpartition("/")
            path = f"{above}/{int(number) + 1}".lstrip("/")
            found[path] = [SOURCE, *event.what.removeprefix(PIPELINE).split(ARROW)]
    return found


def actors_of(calls: Iterable[Call]) -> dict[str, str]:
    """The actors that have handled something, by the place of the branch that each lives in."""
    return {above(call.scope): call.started.name for call in calls if call.started.kind == "handle"}


def hedges_of(envelopes: Iterable[Envelope]) -> set[str]:
    """The places of the branches that are further attempts."""
    return {
        above(each.scope)
        for each in envelopes
        if isinstance(each.event, Looked) and each.event.what.startswith(HEDGE)
    }


def above(path: str) -> str:
    """The place that ``path`` lies in; empty for the run itself."""
    return path.rpartition("/")[0]


def above_all(path: str) -> Iterator[str]:
    """``path``, and the places that it lies within, the nearest first; not the run itself."""
    while path:
        yield path
        path = above(path)


def latest(envelopes: Sequence[Envelope], seqs: Iterable[int]) -> Envelope:
    """The last of some events."""
    return envelopes[max(seqs, key=lambda seq: (envelopes[seq].at, seq))]


def who(envelopes: Sequence[Envelope], seq: int) -> str:
    """The agent, step or node whose event this is; of branches that met, the last to come.

    Who wrote, of something written. Empty for the flow's own code.
    """
    while isinstance(envelopes[seq].event, Joined) and envelopes[seq].causes:
        seq = latest(envelopes, envelopes[seq].causes).seq
    match envelopes[seq].event:
        case CallStarted(name=name):
            return name
        case CallFinished(call=call) | CallFailed(call=call) | CallCancelled(call=call):
            return who(envelopes, call)
        case Written(by=by) as written:
            return "outside" if written.post else by
        case Looked(by=by):
            return by
        case MessageTaken(mailbox=mailbox):
            return mailbox
        case _:
            return ""
