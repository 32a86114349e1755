"""pydantic-graph, at its best.

Built once with `GraphBuilder` and run warm, no instrumentation (logfire is not installed, and
asking for none takes longer). A fan-out as edges to as many steps, and as one step that is mapped
over a list, whichever is quicker.
"""

# pyright: reportMissingImports=false, reportInvalidTypeForm=false
# (it has an environment of its own)

from typing import Any

from pydantic_graph import GraphBuilder, StepContext, reduce_sum

from bench._peers.worker import Way, async_way, serve

Context = StepContext[None, None, int]


async def increment(ctx: Context) -> int:
    return ctx.inputs + 1


async def one(_: Context) -> int:
    return 1


def chain(size: int) -> list[Way]:
    graph = _builder()
    before = graph.start_node
    for index in range(size):
        step = graph.step(increment, node_id=f"n{index}")
        graph.add_edge(before, step)
        before = step
    graph.add_edge(before, graph.end_node)
    return [_way(graph, size)]


def fan(size: int) -> list[Way]:
    return [_edges(size), _map(size)]


def _edges(size: int) -> Way:
    graph = _builder()
    source = graph.step(increment, node_id="source")
    branches = [graph.step(one, node_id=f"b{index}") for index in range(size)]
    join = graph.join(reduce_sum, initial=0)
    graph.add_edge(graph.start_node, source)
    graph.add(graph.edge_from(source).to(*branches), graph.edge_from(*branches).to(join))
    graph.add_edge(join, graph.end_node)
    return _way(graph, size)


def _map(size: int) -> Way:
    async def listing(_: Context) -> list[int]:
        return list(range(size))

    graph = _builder()
    source = graph.step(listing, node_id="source")
    branch = graph.step(one, node_id="branch")
    join = graph.join(reduce_sum, initial=0)
    graph.add_edge(graph.start_node, source)
    graph.add_mapping_edge(source, branch)
    graph.add_edge(branch, join)
    graph.add_edge(join, graph.end_node)
    return _way(graph, size)


def _builder() -> Any:
    return GraphBuilder(input_type=int, output_type=int)


def _way(builder: Any, output: int) -> Way:
    graph = builder.build()

    async def work() -> None:
        assert await graph.run(inputs=0) == output

    return async_way(work)


if __name__ == "__main__":
    serve({"chain": chain, "fan": fan}, packages=["pydantic-graph"])
