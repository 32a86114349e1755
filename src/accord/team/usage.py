"""What a part of a run has used and done, read off its log."""

from __future__ import annotations

from accord.engine.base import Usage
from accord.log.events import AttemptFailed, CallCancelled, CallFinished, CallStarted
from accord.log.fold import is_within
from accord.log.log import Log
from accord.observe.ledger import add_usages


def usage_between(log: Log, path: str, after: int, until: int) -> Usage:
    """Tokens billed below ``path`` by events after ``after``, up to ``until``."""
    return add_usages(
        envelope.event.usage
        for envelope in log.envelopes[after + 1 : until + 1]
        if isinstance(envelope.event, CallFinished | CallCancelled | AttemptFailed)
        and envelope.event.usage is not None
        and is_within(envelope.scope, path)
    )


def tools_used(log: Log, path: str, after: int, before: int) -> set[tuple[str, str]]:
    """Which agent has used which tool below ``path``, between two events."""
    agents: dict[str, str] = {}
    tools: dict[int, str] = {}
    used: set[tuple[str, str]] = set()
    for envelope in log.envelopes[after:before]:
        event = envelope.event
        match event:
            case CallStarted(kind="agent") if is_within(envelope.scope, path):
                agents[envelope.scope] = event.name
            case CallStarted(kind="tool") if is_within(envelope.scope, path):
                tools[envelope.seq] = event.name
            case CallFinished(call=start) if start in tools:
                used.add((_agent_around(envelope.scope, agents), tools[start]))
            case _:
                pass
    return used


def _agent_around(scope: str, agents: dict[str, str]) -> str:
    while scope:
        scope = scope.rpartition("/")[0]
        if scope in agents:
            return agents[scope]
    return ""
