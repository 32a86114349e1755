"""The tree of a run's calls, from the log: places in the flow, with what happened there.

Calls and joins are in the log. What lies between them follows from the paths: a branch of a join
(``0/2`` under ``0``), a task that the flow started by itself (``0/~write.5fK2``), and a join
whose branches have not met yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from accord.cli.render import failure
from accord.engine.base import Reply, Usage
from accord.errors import LogError
from accord.log.events import (
    CallCancelled,
    CallFailed,
    CallFinished,
    CallKind,
    CallStarted,
    Envelope,
)
from accord.log.fold import Call, Calls
from accord.log.log import Log
from accord.observe.ledger import add_usages, usages_of

Kind = CallKind | Literal["join", "branch", "task"]


_NESTED = ("usage_below", "children")
NO_USAGE = Usage(prompt=0, completion=0)


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
    """Of requests only."""
    usage_below: Usage = NO_USAGE
    """Of all requests here and below."""
    preview: str = ""
    attempts_failed: list[str] = field(default_factory=list[str])
    """A line for each."""
    error: str | None = None
    critical: bool = False
    children: list[Node] = field(default_factory=list["Node"])


def cut_replies(log: Log) -> set[str]:
    """The scopes of requests whose reply the engine ended at its limit of tokens."""
    return {
        envelope.scope
        for envelope in log.envelopes
        if isinstance(envelope.event, CallFinished) and _is_cut(log, envelope.event)
    }


def tree_of(
    calls: Calls, critical: Iterable[str], cut: Iterable[str] = (), *, live: bool
) -> list[Node]:
    """The top of the tree, in program order.

    ``critical`` are scopes on the critical path, ``cut`` those of requests with a cut reply.
    """
    nodes = {scope: _call_node(call, live=live) for scope, call in calls.by_scope.items()}
    for scope in cut:
        nodes[scope].state = "cut"
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
    for node in nodes.values():
        if node.kind == "graph":  # its nodes have no order but that of their firing
            node.children.sort(key=lambda child: (child.start_ns or 0, child.seq or 0))
    for root in roots:
        _settle(root)
    return [each for root in roots for each in _without_bare_branches(root)]


def flatten(nodes: Iterable[Node], parent: str | None = None) -> Iterator[dict[str, Any]]:
    """The tree as plain records, each naming its parent. Usage is on requests only."""
    for node in nodes:
        fields = {name: value for name, value in vars(node).items() if name not in _NESTED}
        yield {**fields, "parent": parent}
        yield from flatten(node.children, node.scope)


def _is_cut(log: Log, finished: CallFinished) -> bool:
    started = log.envelopes[finished.call].event
    if not isinstance(started, CallStarted) or started.kind != "request":
        return False
    try:
        reply = log.values.decode(finished.output)
    except LogError:  # accord doctor says what cannot be read
        return False
    return isinstance(reply, Reply) and reply.finish_reason == "length"


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
        attempts_failed=[f"attempt {n.attempt}: {failure(n.error)}" for n in call.attempts],
    )
    match call.ended:
        case CallFinished():
            node.state = "done"
        case CallFailed() as failed:
            node.state, node.error = "failed", failure(failed.error)
        case CallCancelled(suspended=suspended):
            node.state = "waiting" if suspended else "cancelled"
        case None:
            node.state = "running" if live else "unfinished"
    return node


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
    """Sum usage; a join says how many branches it has, and began when the first of them did."""
    for child in node.children:
        _settle(child)
    below = [child.usage_below for child in node.children if child.usage_below != NO_USAGE]
    own = [] if node.usage is None else [node.usage]
    node.usage_below = add_usages([*own, *below]) if own or below else NO_USAGE
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
