"""Who goes first: pure functions of a ticket and the time. The smallest key goes first.

One scale of priority stands above whatever else a policy goes by, so an urgent request never waits
for a less urgent one longer than until a place is free. Only ``priority`` lets others grow urgent
while they wait: with any of the rest, an endless stream of urgent requests starves what is not.

==================  =============================================================================
``fcfs``            who came first. Fair to requests; a run of many makes all others wait
``priority``        as that, and who waits grows urgent: nobody starves, the urgent wait a little
``budget``          who has used the smallest share of what limits it: one that spends fast is
                    slowed down, though it might be nearly done
``slo``             the least slack (deadline - now - work left); fewer at once if the engine is
                    too slow for the target. Costs throughput; past saturation all are late
``critical_path``   what is on the longest chain of work, from the beginning of its run to the end;
                    of chains as long, of the run that began first. Cuts the slowest runs, at the
                    cost of the short ones beside them: the mean over runs may get worse
``least_attained``  whose run has had the least time at the engine (PLAS, arXiv:2502.13965): short
                    runs end sooner, so the mean gets better; a long run ends later
``edf``             the earliest deadline: meets all if that can be; once it cannot, spends time on
                    what is late
==================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from accord.errors import UsageError
from accord.schedule.ticket import Ticket

Key = tuple[float, ...]
KeyFunction = Callable[[Ticket, float], Key]

AGING_S = 10.0
"""Waiting so long is worth one step of priority."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A key, and what the scheduler may know about it.

    ``lasting`` says that two tickets keep their order however long they wait, so that the queue
    can be kept sorted. ``target_s`` is how long a request may take where its deadline does not say;
    ``controls`` lets that steer how many are at the engine at once. ``looks_ahead`` says that the
    key reads ``remaining_s``, which is looked up when a run begins.
    """

    name: str
    key: KeyFunction
    lasting: bool = False
    controls: bool = False
    target_s: float | None = None
    looks_ahead: bool = True


def fcfs(ticket: Ticket, _now_s: float) -> Key:
    """The first to come."""
    return (-ticket.priority, ticket.number)


def aged(ticket: Ticket, now_s: float, aging_s: float = AGING_S) -> Key:
    """The most urgent; each ``aging_s`` of waiting makes one step more urgent."""
    return (-(ticket.priority + (now_s - ticket.arrived_s) / aging_s), ticket.number)


def smallest_share(ticket: Ticket, _now_s: float) -> Key:
    """Who has used the smallest share of what limits it."""
    return (-ticket.priority, ticket.used, ticket.number)


def slack(ticket: Ticket, now_s: float) -> Key:
    """The least time to spare."""
    spare = inf if ticket.deadline_s is None else ticket.deadline_s - now_s - ticket.remaining_s
    return (-ticket.priority, spare, ticket.number)


def longest_run(ticket: Ticket, _now_s: float) -> Key:
    """What is on the longest chain; of chains as long, of the run that began first.

    All requests of a chain count alike, the last as much as the first (CPOP: H. Topcuoglu et al.,
    doi:10.1109/71.993206): else it would wait behind all others just before its end.
    """
    through_s = max(ticket.through_s, ticket.remaining_s)
    return (-ticket.priority, ticket.began_s - through_s, -ticket.remaining_s, ticket.number)


def least_attained(ticket: Ticket, _now_s: float) -> Key:
    """Whose run has had the least."""
    return (-ticket.priority, ticket.attained_s, ticket.number)


def earliest_deadline(ticket: Ticket, _now_s: float) -> Key:
    """The earliest deadline; those without one come last."""
    deadline = inf if ticket.deadline_s is None else ticket.deadline_s
    return (-ticket.priority, deadline, ticket.number)


def priority(*, aging_s: float = AGING_S) -> Policy:
    """The policy ``priority``, with another pace of aging."""
    if not aging_s > 0:
        raise UsageError(f"aging_s is a time above 0, not {aging_s!r}")
    key = partial(aged, aging_s=aging_s)
    return Policy(name="priority", key=key, lasting=True, looks_ahead=False)


def slo(*, target_s: float | None = None) -> Policy:
    """The policy ``slo``: the 99th percentile of requests is to take no longer than ``target_s``.

    A request's own deadline counts instead, where it has one.
    """
    if target_s is not None and not target_s > 0:
        raise UsageError(f"target_s is a time above 0, not {target_s!r}")
    return Policy(name="slo", key=slack, lasting=True, controls=True, target_s=target_s)


POLICIES: dict[str, Policy] = {
    each.name: each
    for each in (
        Policy(name="fcfs", key=fcfs, lasting=True, looks_ahead=False),
        priority(),
        Policy(name="budget", key=smallest_share, looks_ahead=False),
        slo(),
        Policy(name="critical_path", key=longest_run, lasting=True),
        Policy(name="least_attained", key=least_attained, looks_ahead=False),
        Policy(name="edf", key=earliest_deadline, lasting=True, looks_ahead=False),
    )
}


def policy_of(given: str | Policy | KeyFunction) -> Policy:
    """A policy by its name, or of a function ``(ticket, now_s) -> key``."""
    if isinstance(given, Policy):
        return given
    if isinstance(given, str):
        if given not in POLICIES:
            raise UsageError(f"there is no policy {given!r}; there are {', '.join(POLICIES)}")
        return POLICIES[given]
    if not callable(given):
        raise UsageError(f"a policy is a name or a function (ticket, now_s) -> key, not {given!r}")
    return Policy(name=getattr(given, "__name__", "custom"), key=given)
