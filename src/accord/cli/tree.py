"""The tree of a run's calls, from the log: places in the flow, with what happened there.

Calls and joins are in the log. What lies between them follows from the paths: a branch of a join
(``0/2`` under ``0``), a task that the flow started by itself (``0/~write.5fK2``), and a join
whose branches have not met yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from accord.engine.base import Usage
from accord.log.events import CallCancelled, CallFailed, CallFinished, Envelope, ErrorRecord
from accord.log.fold import Call, Calls
from accord.observe.ledger import add_usages, usages_of

Kind = Literal["agent", "request", "step", "tool", "sleep", "flow", "join", "branch", "task"]


@dataclass
class Node:
    """One place. Times are nanoseconds on the run's clock; ``causes`` and ``seq`` are events."""

    scope: str
    kind: Kind
    name: str = ""
    state: str = ""
    seq: int | None = None
    causes: tuple[int, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    usage: Usage | None = None
    """Of requests; for other places see :func:`usage_below`."""
    preview: str = ""
    attempts: list[str] = field(default_factory=list[str])
    """The attempts that failed, each in a line."""
    error: str = ""
    critical: bool = False
    children: list[Node] = field(default_factory=list["Node"])


def tree_of(calls: Calls, critical: Iterable[str], *, live: bool) -> list[Node]:
    """The top of the tree, in program order. ``critical`` are scopes on the critical path."""
    nodes: dict[str, Node] = {}
    for scope, call in calls.by_scope.items():
        nodes[scope] = _call_node(call, live=live)
    for scope, joined in calls.joined.items():
        nodes.setdefault(scope, _join_node(scope, joined))
    for scope in list(nodes):
        _add_places_above(scope, nodes, live=live)
    for scope in critical:
        _mark(scope, nodes)
    roots: list[Node] = []
    for scope, node in sorted(nodes.items(), key=lambda item: _order(item[0])):
        parent = nodes.get(scope.rpartition("/")[0])
        (roots if parent is None else parent.children).append(node)
    for root in roots:
        _settle(root)
    return [each for root in roots for each in _without_bare_branches(root)]


def usage_below(node: Node) -> Usage:
    """Tokens of all requests at ``node`` and below it."""
    own = [node.usage] if node.usage is not None else []
    return add_usages([*own, *(usage_below(child) for child in node.children)])


def flatten(nodes: Iterable[Node], parent: str | None = None) -> list[dict[str, Any]]:
    """The tree as a list of plain records, each naming its parent. Usage is on requests only."""
    found: list[dict[str, Any]] = []
    for node in nodes:
        found.append(
            {
                "scope": node.scope,
                "parent": parent,
                "kind": node.kind,
                "name": node.name,
                "state": node.state,
                "seq": node.seq,
                "causes": list(node.causes),
                "start_ns": node.start_ns,
                "end_ns": node.end_ns,
                "usage": node.usage,
                "preview": node.preview,
                "attempts_failed": node.attempts,
                "error": node.error or None,
                "critical": node.critical,
            }
        )
        found += flatten(node.children, node.scope)
    return found


def _call_node(call: Call, *, live: bool) -> Node:
    usages = list(usages_of(call)) if call.started.kind == "request" else []
    node = Node(
        scope=call.scope,
        kind=call.started.kind,
        name=call.started.name,
        seq=call.start.seq,
        causes=call.start.causes,
        start_ns=call.start.at,
        end_ns=None if call.end is None else call.end.at,
        usage=add_usages(usages) if usages else None,
        preview=call.started.preview,
        attempts=[f"attempt {each.attempt}: {_error(each.error)}" for each in call.attempts],
    )
    match call.ended:
        case CallFinished():
            node.state = "done"
        case CallFailed() as failed:
            node.state, node.error = "failed", _error(failed.error)
        case CallCancelled():
            node.state = "cancelled"
        case None:
            node.state = "running" if live else "unfinished"
    return node


def _error(record: ErrorRecord) -> str:
    return f"{record.type.rpartition(':')[2]}: {record.message}"


def _join_node(scope: str, joined: Envelope) -> Node:
    return Node(
        scope, "join", state="joined", seq=joined.seq, causes=joined.causes, end_ns=joined.at
    )


def _add_places_above(scope: str, nodes: dict[str, Node], *, live: bool) -> None:
    """Nodes for what lies between ``scope`` and the next place that is known."""
    parts = scope.split("/")
    for end in range(1, len(parts)):
        path = "/".join(parts[:end])
        if path in nodes:
            continue
        above = nodes.get("/".join(parts[: end - 1]))
        if parts[end - 1].startswith("~"):
            nodes[path] = Node(path, "task", name=re.sub(r"\..*", "", parts[end - 1][1:]))
        elif above is not None and above.kind == "join":
            nodes[path] = Node(path, "branch", name=parts[end - 1])
        else:
            state = "running" if live else "unfinished"
            nodes[path] = Node(path, "join", state=state)


def _mark(scope: str, nodes: dict[str, Node]) -> None:
    while scope:
        if (node := nodes.get(scope)) is not None:
            node.critical = True
        scope = scope.rpartition("/")[0]


def _settle(node: Node) -> None:
    """A join says how many branches it has, and began when the first of them did."""
    for child in node.children:
        _settle(child)
    starts = [child.start_ns for child in node.children if child.start_ns is not None]
    if node.start_ns is None:
        node.start_ns = min(starts, default=node.end_ns)
    if node.kind == "join":
        branches = len(node.children)
        node.name = f"{branches} branch" if branches == 1 else f"{branches} branches"


def _without_bare_branches(node: Node) -> list[Node]:
    """A branch of one call is that call."""
    node.children = [each for child in node.children for each in _without_bare_branches(child)]
    if node.kind == "branch" and len(node.children) == 1:
        return node.children
    return [node]


def _order(scope: str) -> list[tuple[int, int, str]]:
    """Program order; tasks of the flow's own come after the calls beside them."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in scope.split("/")]
