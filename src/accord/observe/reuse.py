"""What was not computed again, and what was begun early: read off the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from accord.clock import NANOSECONDS
from accord.log.events import CallFinished, Envelope, PrefetchEnded, PrefetchStarted
from accord.log.fold import Call
from accord.log.log import Log
from accord.observe.guesses import Guesses


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and tools that an equal call of before answered, and what it had cost.

    ``dollars`` is None where a price is unknown; ``seconds`` are those of the calls, together.
    """

    requests: int
    tools: int
    prompt: int
    completion: int
    dollars: float | None
    seconds: float

    @property
    def tokens(self) -> int:
        """Saved, prompts and replies."""
        return self.prompt + self.completion


class Prefetched(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that were read ahead: not among the run's requests, and paid for all the same.

    ``read`` are the prompt tokens that the engine did not have, ``preempted`` the requests
    that gave way to others.
    """

    agents: tuple[str, ...]
    requests: int
    preempted: int
    prompt: int
    read: int
    dollars: float | None


class Speculated(msgspec.Struct, frozen=True, kw_only=True):
    """Guesses that were followed: how many, how many were right, and what came of it.

    ``stopped`` were right, and of no use, for what followed came to what cannot be held back;
    ``rested`` were not followed, as that had not paid.
    ``wasted`` are the tokens of work on guesses that were not right (those of calls that were cut
    off are also in ``Tokens.wasted``), ``lost`` is how long that took, ``gained`` how long work on
    right ones had begun early: in seconds of all of them together, on the critical path or not.
    """

    predicted: int
    committed: int
    stopped: int
    rested: int
    wasted: int
    lost: float
    gained: float


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """What a run got for nothing, or early."""

    cached: Cached
    prefetched: Prefetched
    speculated: Speculated


def reuse_of(log: Log, calls: Iterable[Call]) -> Reuse:
    """All of it."""
    guesses = log.fold(Guesses)
    made = [each for each in guesses.by_branch.values() if each.followed]
    return Reuse(
        cached=_cached(calls),
        prefetched=_prefetched(log.envelopes),
        speculated=Speculated(
            predicted=len(made),
            committed=sum(each.right is True for each in made),
            stopped=sum(each.was_stopped for each in made),
            rested=len(guesses.by_branch) - len(made),
            lost=sum(each.worked_ns for each in made if not each.right) / NANOSECONDS,
            wasted=sum(each.tokens for each in made if not each.right),
            gained=sum(each.worked_ns for each in made if each.right) / NANOSECONDS,
        ),
    )


def _cached(calls: Iterable[Call]) -> Cached:
    hits = [
        (call.started.kind, call.ended.saved)
        for call in calls
        if isinstance(call.ended, CallFinished) and call.ended.saved is not None
    ]
    usages = [saved.usage for _, saved in hits if saved.usage is not None]
    costs = [saved.cost for kind, saved in hits if kind == "request"]
    return Cached(
        requests=len(costs),
        tools=len(hits) - len(costs),
        prompt=sum(usage.prompt for usage in usages),
        completion=sum(usage.completion for usage in usages),
        dollars=_sum(costs),
        seconds=sum(saved.took_ns for _, saved in hits) / NANOSECONDS,
    )


def _prefetched(envelopes: Sequence[Envelope]) -> Prefetched:
    starts = [each.event for each in envelopes if isinstance(each.event, PrefetchStarted)]
    ends = [each.event for each in envelopes if isinstance(each.event, PrefetchEnded)]
    usages = [end.usage for end in ends if end.usage is not None]
    return Prefetched(
        agents=tuple(dict.fromkeys(start.agent for start in starts)),
        requests=len(starts),
        preempted=sum(end.preempted for end in ends),
        prompt=sum(usage.prompt for usage in usages),
        read=sum(usage.prompt - usage.cached for usage in usages),
        dollars=_sum([end.cost for end in ends if end.usage is not None]),
    )


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
