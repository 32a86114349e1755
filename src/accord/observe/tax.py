"""The tax report: where every token and every second of a run went.

Read off the log, with nothing measured besides. Usage lives on requests only; all sums are
derived from them. ``closes`` says that the parts add up: token origins to the engine's count of
prompt tokens, agents to the total, time to the makespan. A report that does not close is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

import msgspec

from accord.clock import NANOSECONDS
from accord.engine.base import Prices, Usage
from accord.engine.prices import prices_of
from accord.log.events import CallCancelled, CallFailed, CallFinished
from accord.log.fold import Call, Calls, index_calls
from accord.log.log import Log
from accord.observe.critical import PARTS, Segment, critical_path
from accord.observe.ledger import (
    ORIGINS,
    Entry,
    add_usages,
    billed_events,
    ledger_of,
    usages_of,
)
from accord.observe.reuse import Reuse, reuse_of
from accord.observe.visibility import Edge, agent_call, edges_of
from accord.observe.waits import Wait, waits_of


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens, of all billed attempts.

    ``by_origin`` splits ``prompt``; three cut across: ``repeats``, prompt tokens already sent to
    the same agent; ``coordination``, all tokens of coordinating calls; ``wasted``, all tokens of
    agents' calls that came to nothing (failed, cancelled, stopped by a guard). ``saved`` is what
    visibility policies kept out of prompts, in ``saved_dollars`` where prices are known.
    ``amplification`` is ``total`` over what one agent needs for the same task; None if unknown.
    """

    total: int
    prompt: int
    completion: int
    cached: int
    estimated: bool
    by_origin: dict[str, int]
    repeats: int
    coordination: int
    wasted: int
    saved: int
    saved_dollars: float | None
    baseline: int | None
    amplification: float | None


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds along the critical path; the parts add up to ``makespan``.

    ``thinking``   the engine writes, or reads what is not another agent's
    ``reading``    the engine reads what other agents wrote
    ``recompute``  the engine reads again what it had read and since dropped from its cache
    ``queueing``   a request waits: for a place at the engine, a cool-down, a failed attempt
    ``waiting``    ``sleep``
    ``tools``      steps and tools at work
    ``network``    the rest of a request's time
    ``lost``       work that a crash or an interruption cut off, made again since
    ``runtime``    the flow's own code, Accord, its log, and an engine's start
    """

    makespan: float
    thinking: float
    reading: float
    recompute: float
    queueing: float
    waiting: float
    tools: float
    network: float
    lost: float
    runtime: float


class AgentTax(msgspec.Struct, frozen=True, kw_only=True):
    """One agent's share. ``cost`` is in US dollars, None where a price is unknown."""

    calls: int
    failures: int
    p50_s: float
    p99_s: float
    prompt: int
    completion: int
    cached: int
    repeats: int
    requests: int
    cost: float | None


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """The report. ``critical_path`` is in nanoseconds, so that it adds up to the last one."""

    run: str
    tokens: Tokens
    time: Time
    agents: dict[str, AgentTax]
    edges: tuple[Edge, ...]
    waits: tuple[Wait, ...]
    reuse: Reuse
    critical_path: tuple[Segment, ...]
    closes: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``accord tax --json`` prints it."""
        return msgspec.to_builtins(self)


def usage_of(calls: Calls) -> Usage:
    """Tokens of all billed attempts of a run."""
    requests = (call for call in calls.by_start.values() if call.started.kind == "request")
    return add_usages(usage for call in requests for usage in usages_of(call))


def tax_of(log: Log, prices: Prices | None = None) -> Tax:
    """The report on a run, finished or not.

    ``prices`` are for what was saved; without them, those of the model that answered, if known.
    """
    calls = index_calls(log.envelopes)
    entries = ledger_of(log, calls.by_start.values())
    path = critical_path(log.envelopes, calls, {entry.call.start.seq: entry for entry in entries})
    edges = edges_of(log.envelopes, calls, prices or _known_prices(log, calls))
    tokens = _tokens(calls, entries, edges)
    agents = _agents(calls, entries)
    makespan_ns = log.envelopes[-1].at - log.envelopes[0].at if log.envelopes else 0
    spent_ns = {part: sum(segment.parts.get(part, 0) for segment in path) for part in PARTS}
    seconds = {part: ns / NANOSECONDS for part, ns in spent_ns.items()}
    return Tax(
        run=log.run,
        tokens=tokens,
        time=Time(makespan=makespan_ns / NANOSECONDS, **seconds),
        agents=agents,
        edges=tuple(edges),
        waits=tuple(waits_of(log.envelopes, calls)),
        reuse=reuse_of(log, calls.by_start.values()),
        critical_path=tuple(path),
        closes=_closes(calls, tokens, agents, spent_ns, makespan_ns),
    )


def _known_prices(log: Log, calls: Calls) -> Prices | None:
    """By the model's name, if its requests had a price at all: else it is somebody's own."""
    for call in calls.by_start.values():
        if call.started.kind == "request" and isinstance(call.ended, CallFinished):
            reply = log.values.decode(call.ended.output)
            return prices_of(reply.model) if call.ended.cost else None
    return None


def _closes(
    calls: Calls,
    tokens: Tokens,
    agents: dict[str, AgentTax],
    spent_ns: dict[str, int],
    makespan_ns: int,
) -> bool:
    counted = usage_of(calls)
    return (
        sum(tokens.by_origin.values()) == counted.prompt
        and sum(agent.prompt for agent in agents.values()) == counted.prompt
        and sum(agent.completion for agent in agents.values()) == counted.completion
        and sum(spent_ns.values()) == makespan_ns
    )


def _tokens(calls: Calls, entries: list[Entry], edges: list[Edge]) -> Tokens:
    usage = add_usages(entry.usage for entry in entries)
    total = usage.prompt + usage.completion
    by_origin: dict[str, int] = dict.fromkeys(ORIGINS, 0)
    for entry in entries:
        for part in entry.parts:
            by_origin[part.origin] += part.tokens
    baseline = calls.run.baseline_tokens if calls.run else None
    return Tokens(
        total=total,
        prompt=usage.prompt,
        completion=usage.completion,
        cached=usage.cached,
        estimated=usage.estimated,
        by_origin=by_origin,
        repeats=_repeats(entries),
        coordination=sum(
            entry.usage.prompt + entry.usage.completion
            for entry in entries
            if entry.call.started.coordination
        ),
        wasted=_wasted(calls, entries),
        saved=sum(edge.saved for edge in edges),
        saved_dollars=_sum_known(edge.saved_dollars for edge in edges),
        baseline=baseline,
        amplification=total / baseline if baseline else None,
    )


def _wasted(calls: Calls, entries: list[Entry]) -> int:
    return sum(
        entry.usage.prompt + entry.usage.completion
        for entry in entries
        if (call := calls.by_scope.get(agent_call(entry.call.scope, calls))) is not None
        and isinstance(call.ended, CallFailed | CallCancelled)
    )


def _sum_known(dollars: Iterable[float | None]) -> float | None:
    known = [each for each in dollars if each is not None]
    return sum(known) if known else None


def _repeats(entries: Iterable[Entry]) -> int:
    return sum(part.tokens for entry in entries for part in entry.parts if part.repeat)


def _agents(calls: Calls, entries: list[Entry]) -> dict[str, AgentTax]:
    by_name: dict[str, list[Call]] = {}
    for call in calls.by_start.values():
        if call.started.kind in ("agent", "request"):
            by_name.setdefault(call.started.name, []).append(call)
    entries_of: dict[str, list[Entry]] = {}
    for entry in entries:
        entries_of.setdefault(entry.agent, []).append(entry)
    return {name: _agent(made, entries_of.get(name, [])) for name, made in by_name.items()}


def _agent(made: list[Call], entries: list[Entry]) -> AgentTax:
    calls = [call for call in made if call.started.kind == "agent"]
    requests = [call for call in made if call.started.kind == "request"]
    durations = sorted(call.duration_ns for call in calls if call.duration_ns is not None)
    usage = add_usages(entry.usage for entry in entries)
    return AgentTax(
        calls=len(calls),
        failures=sum(isinstance(call.ended, CallFailed) for call in calls),
        p50_s=quantile(durations, 0.50) / NANOSECONDS,
        p99_s=quantile(durations, 0.99) / NANOSECONDS,
        prompt=usage.prompt,
        completion=usage.completion,
        cached=usage.cached,
        repeats=_repeats(entries),
        requests=len(requests),
        cost=_cost(requests),
    )


def _cost(requests: list[Call]) -> float | None:
    total = 0.0
    for call in requests:
        for billed in billed_events(call):
            if billed.usage is None:
                continue
            if billed.cost is None:
                return None
            total += billed.cost
    return total


def quantile(ordered: list[int], share: float) -> int:
    """The smallest value that at least ``share`` of ``ordered`` do not exceed; 0 if empty."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else 0
