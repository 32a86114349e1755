"""The critical path: the longest chain of causes, walked backwards from the end of the run.

From each event to the latest of its causes. The stretches between them fill the time from the
run's start to its end without gap or overlap, so whatever they are called, they add up.

An event that follows from the beginning of a request, and is not its end, came of a reply that was
read while it was written: the stretch before it is the request's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from accord.clock import NANOSECONDS
from accord.engine.base import Timings
from accord.log.events import (
    PAST_DEADLINE,
    AttemptFailed,
    CallCancelled,
    CallEnded,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    Joined,
    Looked,
    RunResumed,
    Spent,
    Written,
)
from accord.log.fold import Call, Calls
from accord.observe.ledger import Entry, apportion
from accord.observe.waits import WAITING

PARTS = (
    "thinking",
    "reading",
    "recompute",
    "queueing",
    "waiting",
    "tools",
    "network",
    "lost",
    "runtime",
)


CODE = ("step", "tool", "node", "handle")
"""Calls that run code of the user's own."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the critical path, in nanoseconds on the run's clock.

    ``name`` is the agent or step at work, empty for the flow's own code. ``parts`` says what
    the time was, and adds up to ``end_ns - start_ns``.
    """

    scope: str
    kind: str
    name: str
    start_ns: int
    end_ns: int
    parts: dict[str, int]


def critical_path(
    envelopes: list[Envelope], calls: Calls, entries: dict[int, Entry]
) -> list[Segment]:
    """The stretches of the path, first to last. ``entries`` are the ledger's, by their call."""
    traffic = _Traffic(envelopes, calls)
    segments = [
        _segment(envelopes, cause, event, traffic, entries)
        for cause, event in _walk_back(envelopes)
        if event.at > cause.at
    ]
    return segments[::-1]


class _Traffic:
    """When the run was resumed, and when its requests were under way.

    The latter tells waiting for a place at the engine from the network.
    """

    def __init__(self, envelopes: list[Envelope], calls: Calls) -> None:
        self.calls = calls.by_start
        self.resumes = [e.at for e in envelopes if isinstance(e.event, RunResumed)]
        requests = [call for call in calls.by_start.values() if call.started.kind == "request"]
        self._calls = calls
        self._starts = sorted(call.start.at for call in requests)
        self._ends = sorted(call.end.at for call in requests if call.end is not None)

    def is_within_code(self, event: Envelope) -> bool:
        """It comes out of a step, tool, node or handler, whose own code ran before it."""
        around = self._calls.by_scope.get(event.scope.rpartition("/")[0])
        return around is not None and around.started.kind in CODE

    def is_shared(self, entry: Entry) -> bool:
        """Another request was under way at the same time: the engine may have made it wait."""
        call = entry.call
        end = call.start.at if call.end is None else call.end.at
        started_before_it_ended = bisect_left(self._starts, end)
        ended_before_it_started = bisect_right(self._ends, call.start.at)
        return started_before_it_ended - ended_before_it_started > 1  # itself is one


def _walk_back(envelopes: list[Envelope]) -> Iterator[tuple[Envelope, Envelope]]:
    if not envelopes:
        return
    event = envelopes[-1]
    while event.seq:
        cause = latest_cause(envelopes, event)
        yield cause, event
        event = cause


def latest_cause(envelopes: Sequence[Envelope], event: Envelope) -> Envelope:
    """The latest of the events that one follows from; what came from outside came when it did."""
    causes = event.causes or (event.seq - 1,)
    return max((envelopes[seq] for seq in causes), key=lambda each: (each.at, each.seq))


def _segment(
    envelopes: list[Envelope],
    cause: Envelope,
    event: Envelope,
    traffic: _Traffic,
    entries: dict[int, Entry],
) -> Segment:
    # What an earlier process did after the cause, and could not finish, was lost with it.
    begun = max((at for at in traffic.resumes if cause.at < at <= event.at), default=cause.at)
    length = event.at - begun
    kind, name = "flow", ""
    parts = {"runtime": length}
    fact = event.event
    paused = min(length, _pause_ns(envelopes, cause))
    if isinstance(fact, CallEnded | AttemptFailed):
        started = envelopes[fact.call].event
        assert isinstance(started, CallStarted)
        kind, name = started.kind, started.name
        if kind == "request":
            parts = _request_parts(fact, length, traffic, entries)
        elif kind in CODE:
            parts = {"waiting": paused, "tools": length - paused}
        elif kind in WAITING:
            parts = {"waiting": length}
    elif (written := _read_from(envelopes, event, traffic)) is not None:
        kind, name = "request", written.started.name
        parts = _slice(written, begun, event.at, traffic, entries)
    elif _waited(fact):
        parts = {"waiting": length}
    elif paused:
        parts = {"waiting": paused, "runtime": length - paused}
    elif traffic.is_within_code(event):
        parts = {"tools": length}
    parts["lost"] = begun - cause.at
    return Segment(
        scope=event.scope,
        kind=kind,
        name=name,
        start_ns=cause.at,
        end_ns=event.at,
        parts={part: ns for part, ns in parts.items() if ns},
    )


def _read_from(envelopes: list[Envelope], event: Envelope, traffic: _Traffic) -> Call | None:
    """The request whose reply was being read when ``event`` came of it."""
    for seq in event.causes:
        cause = envelopes[seq].event
        number = cause.call if isinstance(cause, AttemptFailed) else seq
        call = traffic.calls.get(number)
        if call is not None and call.started.kind == "request":
            return call
    return None


_ORDER = ("queueing", "network", "runtime", "recompute", "reading", "thinking")
"""How the time of a request passes, as far as it can be told."""


def _slice(
    call: Call, begin: int, end: int, traffic: _Traffic, entries: dict[int, Entry]
) -> dict[str, int]:
    """What a request was about between two times; after its end, nothing."""
    parts = {"runtime": end - begin}
    if call.end is None or not isinstance(call.ended, CallEnded):
        return parts
    whole = _request_parts(call.ended, call.end.at - call.start.at, traffic, entries)
    at = call.start.at
    for part in _ORDER:
        until = at + whole.get(part, 0)
        spent = max(0, min(until, end) - max(at, begin))
        parts[part] = parts.get(part, 0) + (0 if part == "runtime" else spent)
        parts["runtime"] -= 0 if part == "runtime" else spent
        at = until
    return parts


def _waited(fact: object) -> bool:
    """What came before was a wait: for somebody outside, a deadline, or patience to run out."""
    match fact:
        case Written(post=post):
            return bool(post)
        case Joined(dropped=dropped):
            return bool(dropped)
        case Looked(what=what):
            return what.startswith("hedge ")
        case CallStarted(kind="node", preview=preview):
            return preview == PAST_DEADLINE
        case _:
            return False


def _pause_ns(envelopes: list[Envelope], cause: Envelope) -> int:
    """How long the next attempt waits after a failed one, of anything but a request."""
    failed = cause.event
    if not isinstance(failed, AttemptFailed):
        return 0
    started = envelopes[failed.call].event
    is_request = isinstance(started, CallStarted) and started.kind == "request"
    return 0 if is_request else round(failed.retry_in_s * NANOSECONDS)


def _request_parts(
    fact: CallFinished | CallFailed | CallCancelled | AttemptFailed,
    length: int,
    traffic: _Traffic,
    entries: dict[int, Entry],
) -> dict[str, int]:
    entry = entries.get(fact.call)
    if isinstance(fact, CallFinished) and fact.saved is not None:
        waited = 0 if fact.spent is None else min(length, fact.spent.queued_ns)
        return {"queueing": waited, "runtime": length - waited}
    if not isinstance(fact, CallFinished) or fact.spent is None or entry is None:
        return {"queueing": length}  # an attempt that gave nothing was a wait for the engine
    spent = fact.spent
    total = min(spent.total_ns, length)
    queued = min(spent.queued_ns, length - total)
    prefill, decode, engine_queue = _engine_time(spent, fact.timings, total)
    rest = total - prefill - decode
    if fact.timings is None or fact.timings.queue_s is None:
        engine_queue = _before_first_token(spent, prefill, rest) if traffic.is_shared(entry) else 0
    engine_queue = min(engine_queue, rest)
    parts = {
        "queueing": queued + engine_queue,
        "network": rest - engine_queue,
        "runtime": length - total - queued,
        "thinking": decode,
    }
    for part, ns in _prefill_parts(entry, prefill).items():
        parts[part] = parts.get(part, 0) + ns
    return parts


def _engine_time(spent: Spent, timings: Timings | None, total: int) -> tuple[int, int, int]:
    """Prefill, decode and queue of the engine, in nanoseconds, within ``total``.

    Without the engine's own timings, all up to the first token is prefill and all after it
    decode; a reply that came whole is decode.
    """
    if timings is None or timings.prefill_s is None or timings.decode_s is None:
        prefill = min(spent.first_token_ns or 0, total)
        return prefill, total - prefill, 0
    prefill = min(round(timings.prefill_s * NANOSECONDS), total)
    decode = min(round(timings.decode_s * NANOSECONDS), total - prefill)
    return prefill, decode, round((timings.queue_s or 0.0) * NANOSECONDS)


def _before_first_token(spent: Spent, prefill: int, rest: int) -> int:
    if spent.first_token_ns is None:
        return rest
    return max(0, min(rest, spent.first_token_ns - prefill))


def _prefill_parts(entry: Entry, prefill: int) -> dict[str, int]:
    """Prefill by the origin of what was not cached; the cached prefix comes first."""
    cached = entry.usage.cached
    evicted = entry.evicted
    tokens = {"thinking": 0, "reading": 0, "recompute": 0}
    for part in entry.parts:
        hit = min(cached, part.tokens)
        cached -= hit
        again = min(evicted, part.tokens - hit)
        evicted -= again
        tokens["recompute"] += again
        name = "reading" if part.origin in ("peers", "board") else "thinking"
        tokens[name] += part.tokens - hit - again
    return dict(zip(tokens, apportion(prefill, list(tokens.values())), strict=True))
