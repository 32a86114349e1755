"""The tree of a run's calls, from the log: places in the flow, with what happened there.

Calls and joins are in the log. What lies between them follows from the paths: a branch of a join
(``0/2`` under ``0``), a task that the flow started by itself (``0/~write.5fK2``), an attempt of a
node, and a join whose branches have not met yet. That a join is a pipeline, or that its branches
are actors, is told by what was noted: see :mod:`accord.observe.places`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from accord.cli.render import clean, failure
from accord.engine.base import Reply, Usage
from accord.errors import LogError
from accord.log.events import (
    CallCancelled,
    CallFailed,
    CallFinished,
    CallKind,
    CallStarted,
    Envelope,
    Joined,
    RunFinished,
)
from accord.log.fold import Call, Calls
from accord.log.log import Log
from accord.observe.guesses import Guesses
from accord.observe.ledger import add_usages, usages_of
from accord.observe.places import (
    ARROW,
    above,
    actors_of,
    hedges_of,
    pipelines_of,
)

Kind = (
    CallKind
    | Literal["join", "branch", "task", "attempt", "pipeline", "stage", "item", "actors", "actor"]
)


_NESTED = ("usage_below", "children")
NO_USAGE = Usage(prompt=0, completion=0)


@dataclass
class Node:
    """One place. Times are nanoseconds on the run's clock; ``causes`` and ``seq`` are events."""

    scope: str
    kind: Kind
    name: str = ""
    place: str = ""
    """What it is among its neighbours, if more than a call: ``item 3``, ``further attempt``."""
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
    calls: Calls,
    critical: Iterable[str],
    cut: Iterable[str] = (),
    guesses: Guesses | None = None,
    *,
    live: bool,
) -> list[Node]:
    """The top of the tree, in program order.

    ``critical`` are scopes on the critical path, ``cut`` those of requests with a cut reply;
    ``guesses`` are those of the run.
    """
    places = _Places(calls, guesses or Guesses(), live=live)
    nodes = {scope: _call_node(call, places.unended) for scope, call in calls.by_scope.items()}
    for scope in cut:
        nodes[scope].state = "cut"
    for scope, joined in calls.joined.items():
        nodes.setdefault(scope, places.meeting(scope, joined))
    for scope in list(nodes):
        _add_places_above(scope, nodes, places)
    for scope in critical:
        _mark(scope, nodes)
    roots: list[Node] = []
    for scope, node in sorted(nodes.items(), key=lambda item: _order(item[0])):
        parent = nodes.get(above(scope))
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


def _call_node(call: Call, unended: str) -> Node:
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
        case CallFinished(saved=saved):
            node.state = "done" if saved is None else "reused"
        case CallFailed() as failed:
            node.state, node.error = "failed", failure(failed.error)
        case CallCancelled(suspended=suspended):
            node.state = "waiting" if suspended else "cancelled"
        case None:
            node.state = unended
    return node


class _Places:
    """What is known of the places that are no calls."""

    def __init__(self, calls: Calls, guesses: Guesses, *, live: bool) -> None:
        notes = calls.notes.values()
        self._pipelines = pipelines_of(notes)
        self._actors = actors_of(calls.by_scope.values())
        self._teams = {above(path) for path in self._actors}
        self._hedges = hedges_of(notes)
        self._guesses = guesses.by_branch
        self._dropped = set(_dropped(calls))
        finished = isinstance(calls.ended, RunFinished)
        self._unmet = "running" if live else "" if finished else "unfinished"
        self.unended = self._unmet or "dropped"
        """The state of a call without an end: a run that finished has gone on without it."""

    def meeting(self, scope: str, joined: Envelope | None = None) -> Node:
        """Where branches meet, or would have met."""
        node = Node(scope, "join", state=self._unmet)
        if scope in self._pipelines:
            node.kind, node.name = "pipeline", ARROW.join(self._pipelines[scope][1:])
        elif scope in self._teams:
            node.kind = "actors"
        if joined is not None:
            node.state, node.seq, node.causes = "joined", joined.seq, joined.causes
            node.end_ns = joined.at
        return node

    def below(self, parent: Node | None, path: str) -> Node:
        """A place that the log says nothing of but what lies below it."""
        number = path.rpartition("/")[2]
        if number.startswith("~"):
            return Node(path, "task", name=re.sub(r"\..*", "", number[1:]))
        match None if parent is None else parent.kind:
            case "pipeline":
                return Node(path, "stage", name=self._stage(path, number))
            case "stage":
                return Node(path, "item", name=number, place=f"item {number}")
            case "actors":
                return Node(path, "actor", name=self._actors.get(path, number))
            case "join":
                state = "dropped" if path in self._dropped else ""
                place = "further attempt" if path in self._hedges else ""
                place = self._guessed_on(path) or place
                return Node(path, "branch", name=number, place=place, state=state)
            case "node" | "handle":
                return Node(path, "attempt", name=str(int(number) + 1))
            case _:
                return self.meeting(path)

    def _guessed_on(self, path: str) -> str:
        guess = self._guesses.get(path)
        if guess is None or not guess.followed:
            return ""
        verdict = {True: "a right ", False: "a wrong ", None: "a "}[guess.right]
        verdict = "a right and useless " if guess.was_stopped else verdict
        return f"on {verdict}guess ({clean(guess.preview, 24)})"

    def _stage(self, path: str, number: str) -> str:
        return dict(enumerate(self._pipelines[above(path)])).get(int(number), number)


def _dropped(calls: Calls) -> Iterator[str]:
    """The branches that their join did not wait for."""
    for scope, joined in calls.joined.items():
        assert isinstance(joined.event, Joined)
        yield from (f"{scope}/{index}" for index in joined.event.dropped)


def _add_places_above(scope: str, nodes: dict[str, Node], places: _Places) -> None:
    """Nodes for what lies between ``scope`` and the next place that is known."""
    parts = scope.split("/")
    for end in range(1, len(parts)):
        path = "/".join(parts[:end])
        if path not in nodes:
            nodes[path] = places.below(nodes.get(above(path)), path)


def _mark(scope: str, nodes: dict[str, Node]) -> None:
    while scope:
        if (node := nodes.get(scope)) is not None:
            node.critical = True
        scope = above(scope)


def _settle(node: Node) -> None:
    """Sum usage; what is no call takes the time of what lies below it."""
    for child in node.children:
        _settle(child)
    below = [child.usage_below for child in node.children if child.usage_below != NO_USAGE]
    own = [] if node.usage is None else [node.usage]
    node.usage_below = add_usages([*own, *below]) if own or below else NO_USAGE
    starts = [child.start_ns for child in node.children if child.start_ns is not None]
    if node.start_ns is None:
        node.start_ns = min(starts, default=node.end_ns)
    if node.end_ns is None and node.state in ("", "dropped"):
        ends = [child.end_ns for child in node.children if child.end_ns is not None]
        node.end_ns = max(ends, default=None) if len(ends) == len(node.children) else None
    if node.kind == "join":
        branches = len(node.children)
        node.name = f"{branches} branch" if branches == 1 else f"{branches} branches"


def _without_bare_branches(node: Node) -> list[Node]:
    """A branch or an item of one call is that call; an only attempt is no place of its own."""
    node.children = [each for child in node.children for each in _without_bare_branches(child)]
    if [child.kind for child in node.children] == ["attempt"]:
        node.children = node.children[0].children
    if node.kind not in ("branch", "item"):
        return [node]
    if len(node.children) != 1:
        node.place = "" if node.kind == "item" else node.place
        return [node]
    [only] = node.children
    only.place = only.place or node.place
    if node.state and only.state in ("cancelled", "unfinished"):
        only.state = node.state
    return [only]


def _order(scope: str) -> list[tuple[int, int, str]]:
    """Program order; tasks of the flow's own come after the calls beside them."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in scope.split("/")]
