"""Microsoft Agent Framework, at its best.

A workflow of executors, built once and run warm; instrumentation, which is on by default, is off.
Its functional workflows (`@workflow`, `@step`, experimental) are left out: they took a tenth less
a step at 100 steps, and five times as much at 1,000.
"""

# pyright: reportMissingImports=false
# (it has an environment of its own)

from typing import Any, Never

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler
from agent_framework.observability import disable_instrumentation

from bench._peers.worker import Way, async_way, serve


class Increment(Executor):
    """Passes on one more."""

    @handler
    async def run(self, n: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(n + 1)


class Last(Executor):
    """Ends the chain."""

    @handler
    async def run(self, n: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(n + 1)


class Join(Executor):
    """Adds up what branches pass on."""

    @handler
    async def run(self, each: list[int], ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(sum(each))


def chain(size: int) -> list[Way]:
    nodes = [*_increments(size - 1), Last(id="last")]
    builder = WorkflowBuilder(start_executor=nodes[0], max_iterations=size + 1)
    return [_way(builder.add_chain(nodes).build(), start=0, output=size)]


def fan(size: int) -> list[Way]:
    source, branches, join = Increment(id="source"), _increments(size), Join(id="join")
    builder = WorkflowBuilder(start_executor=source)
    builder.add_fan_out_edges(source, branches).add_fan_in_edges(branches, join)
    return [_way(builder.build(), start=-1, output=size)]


def _increments(size: int) -> list[Increment]:
    return [Increment(id=f"n{index}") for index in range(size)]


def _way(workflow: Any, *, start: int, output: int) -> Way:
    async def work() -> None:
        assert (await workflow.run(start)).get_outputs() == [output]

    return async_way(work)


if __name__ == "__main__":
    disable_instrumentation()
    serve({"chain": chain, "fan": fan}, packages=["agent-framework-core"])
