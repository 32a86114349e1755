"""What can be known of a graph before it runs.

Where an edge leads nowhere, what is never reached, what never ends, and which joins can never have
what they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from accord.errors import GraphError
from accord.graph.shape import END, START, Router, Shape, members, reachable

SHOWN = 5


def check(shape: Shape) -> None:
    """Raise :class:`accord.errors.GraphError` for a graph that cannot work."""
    _check_ends(shape)
    _check_reached(shape)
    _check_loops(shape)
    _check_end(shape)
    _check_joins(shape)


def _check_ends(shape: Shape) -> None:
    known = [*shape.names, END]
    for source, targets in shape.edges.items():
        for each in (source, *targets):
            _check_known(
                shape, each, f"the edge {source!r} → {', '.join(map(repr, targets))}", known
            )
    for source, routers in shape.routers.items():
        for router in routers:
            what = f"the router {router.name!r} after {source!r}"
            for each in (source, *(router.targets or {}).values()):
                _check_known(shape, each, what, known)
    for node in shape.nodes:
        for each in node.goes_to or ():
            _check_known(shape, each, f"what node {node.name!r} goes to", known)
    if not shape.edges.get(START) and not shape.routers.get(START):
        raise GraphError(
            f"graph {shape.name!r} has no beginning; add_edge(START, ...) gives it one"
        )


def _check_known(shape: Shape, name: str, what: str, known: list[str]) -> None:
    if name in known or name == START:
        return
    close = get_close_matches(str(name), known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise GraphError(
        f"{what} of graph {shape.name!r} names {name!r}, which is no node; {hint}"
        f"There are {_some(known)}"
    )


def _check_reached(shape: Shape) -> None:
    first = {shape.index[each] for each in shape.leads_to(START)}
    end = shape.index[END]
    reached = 0
    for each in first:
        reached |= 1 << each | (shape.reaches[each] if each != end else 0)
    left = [name for number, name in enumerate(shape.names) if not reached >> number & 1]
    if left:
        raise GraphError(
            f"graph {shape.name!r} never comes to {_some(left)}: no edge leads there from the "
            "start; add one, let a router or a Command name it (goes_to), or remove it"
        )


def _check_loops(shape: Shape) -> None:
    """A cycle of edges that are always taken has no end."""
    always = [[shape.index[each] for each in shape.edges.get(name, ())] for name in shape.names]
    reaches = reachable([*always, []])
    for number, mask in enumerate(reaches):
        if not mask >> number & 1:
            continue
        cycle = [number]
        while not cycle[1:] or cycle[-1] != number:
            after = always[cycle[-1]]
            ways = (each for each in after if each == number or reaches[each] >> number & 1)
            cycle.append(next(ways))
        names = " → ".join(shape.names[each] for each in cycle)
        raise GraphError(
            f"graph {shape.name!r} goes round {names} for ever: all of these edges are always "
            "taken; replace one by a conditional edge that can lead out"
        )


def _check_end(shape: Shape) -> None:
    end = shape.index[END]
    ends = 0
    for number, after in enumerate(shape.successors):
        if (
            not after
            or end in after
            or _may_lead_nowhere(shape.routers.get(shape.names[number], ()))
        ):
            ends |= 1 << number
    for number, name in enumerate(shape.names):
        if not (ends >> number & 1 or shape.reaches[number] & ends):
            cycle = [shape.names[each] for each in members(shape.reaches[number])]
            raise GraphError(
                f"graph {shape.name!r} cannot end once it has come to {name!r}: from there it only "
                f"comes to {_some(cycle)}; let a router lead to END"
            )


def _may_lead_nowhere(routers: Iterable[Router]) -> bool:
    return any(not router.exclusive for router in routers)


def _check_joins(shape: Shape) -> None:
    fault = shape.end.fault() or ("cannot end for each input" if shape.end.until == "each" else "")
    if fault:
        raise GraphError(f"the end of graph {shape.name!r} {fault}")
    for number, node in enumerate(shape.nodes):
        if fault := node.join.fault():
            raise GraphError(f"node {node.name!r} of graph {shape.name!r} {fault}")
        wanted = node.join.wanted
        if wanted is None:
            continue
        sources = shape.names_before(number)
        if node.name in shape.leads_to(START):
            sources.append(START)
        most = len(sources) - sum(len(group) - 1 for group in _alternatives(shape, sources))
        if most < wanted:
            raise GraphError(
                f"node {node.name!r} of graph {shape.name!r} waits for {wanted} inputs, and at "
                f"most {most} of {_some(sources)} can come; let it wait for fewer, or until='all'"
            )


def _alternatives(shape: Shape, sources: list[str]) -> list[list[str]]:
    """Groups of ``sources`` of which a router takes only one."""
    groups: list[list[str]] = []
    for routers in shape.routers.values():
        for router in routers:
            if router.exclusive and router.targets is not None:
                targets = set(router.targets.values())
                group = [s for s in sources if s in targets and _only_from(shape, s, router)]
                if len(group) > 1:
                    groups.append(group)
    return groups


def _only_from(shape: Shape, name: str, router: Router) -> bool:
    """Nothing but ``router`` leads to the node."""
    before = shape.names_before(shape.index[name])
    return before in ([router.source], []) and all(
        name not in (other.targets or ())
        for others in shape.routers.values()
        for other in others
        if other is not router
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
