"""A graph as a Mermaid flowchart, which GitHub, Notion and most editors draw."""

from __future__ import annotations

from collections.abc import Iterator

from accord.graph.shape import END, START, Shape

_ESCAPES = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "`": "#96;"}


def mermaid(shape: Shape) -> str:
    """The flowchart: edges that are always taken are solid, those that a router takes dotted."""
    return "\n".join(["flowchart TD", *_lines(shape)]) + "\n"


def _lines(shape: Shape) -> Iterator[str]:
    ids = {name: f"n{number}" for name, number in shape.index.items()} | {
        START: "start",
        END: "stop",
    }
    yield '  start(["start"])'
    for node in shape.nodes:
        until = "" if node.join.until == "all" else f" ({node.join.until})"
        yield f'  {ids[node.name]}["{_escaped(node.name + until)}"]'
    yield '  stop(["end"])'
    for source in [START, *shape.names]:
        solid = shape.edges.get(source, ())
        dotted = dict.fromkeys(each for each in shape.leads_to(source) if each not in solid)
        if not solid and not dotted:
            yield f"  {ids[source]} --> stop"
        for target in solid:
            yield f"  {ids[source]} --> {ids[target]}"
        labels = {
            target: str(said)
            for router in shape.routers.get(source, ())
            for said, target in (router.targets or {}).items()
            if said != target
        }
        for target in dotted:
            label = f'|"{_escaped(labels[target])}"|' if target in labels else ""
            yield f"  {ids[source]} -.->{label} {ids[target]}"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in text)
