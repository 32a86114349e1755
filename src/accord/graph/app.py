"""A compiled graph: an async function of its input, which is a flow as it stands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import reduce
from typing import Any, Literal, Unpack

import msgspec

from accord.clock import in_own_loop
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.execution import Listener
from accord.flow.scope import CallScope
from accord.graph.history import History, Snapshot
from accord.graph.mermaid import mermaid
from accord.graph.node import amended
from accord.graph.running import Running
from accord.graph.schema import Overwrite, Schema
from accord.graph.shape import START, Shape
from accord.graph.state import State, written_since
from accord.log.blobs import digest_of
from accord.log.events import CallFinished
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.once import arun, run
from accord.runtime import Opened, Options, Result, Runtime
from accord.streaming import stream_of

StreamMode = Literal["updates", "values", "tokens"]


class Graph:
    """A graph that can run: ``await graph(input)`` in a flow, ``run(graph, input)`` by itself.

    Its output is the state at the end, as the state's class has it. It holds no state of its own,
    so one may be at work many times at once. Made by :meth:`accord.graph.build.StateGraph.compile`.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.name = shape.name
        self._version = digest_of(msgspec.json.encode([shape.names, shape.edges]))

    async def __call__(self, given: Any) -> Any:
        """The state at the end, from ``given``: a dict, or an instance of the state's class."""
        values = self.shape.schema.input(given)

        async def body(scope: CallScope) -> dict[str, Any]:
            running = Running(self.shape, scope)
            return (await running.run(running.first_state(values))).values

        state = await self._call(values, body)
        return self.shape.schema.make(state)

    async def within(self, outer: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
        """What it writes to the state of a graph that it is a node of: keys that both have.

        Several writes to a key with a reducer are put together by that first, so it has to be
        associative, as adding and appending are.
        """
        shared = [key for key in self.shape.schema.keys if key in outer.keys]
        given = {key: values[key] for key in shared if key in values}
        first = self.shape.schema.input(given)

        async def body(scope: CallScope) -> dict[str, Any]:
            running = Running(self.shape, scope, keeps_writes=True)
            before = running.first_state(first)
            after = await running.run(before)
            return {key: value for key in shared for value in self._written(key, after, before)}

        update: dict[str, Any] = await self._call(first, body)
        return update

    async def _call(self, values: dict[str, Any], body: Any) -> Any:
        return await call(
            "graph", self.name, [values], body, version=self._version, keep_input=True, preview=""
        )

    def _written(self, name: str, after: State, before: State) -> list[Any]:
        """What was written to a key, as one write, if anything was."""
        writes = written_since(name, after, before)
        key = self.shape.schema.keys[name]
        if not writes:
            return []
        if key.reducer is None:
            return [after.cells[name].value]
        if any(each.is_base for each in writes):
            return [Overwrite(after.cells[name].value)]
        return [reduce(key.reducer, [each.written for each in writes])]

    def invoke(self, given: Any, *, run_id: str | None = None, **options: Unpack[Options]) -> Any:
        """The state at the end, in a run of its own; ``options`` as for :func:`accord.run`.

        Raises :class:`accord.errors.RunSuspendedError` if it asks a person;
        ``accord.resume(run_id, graph, answers={...})`` goes on.
        """
        return run(self, given, run_id=run_id, **options).output

    async def ainvoke(
        self, given: Any, *, run_id: str | None = None, **options: Unpack[Options]
    ) -> Any:
        """:meth:`invoke`, in async code."""
        return (await arun(self, given, run_id=run_id, **options)).output

    async def astream(
        self,
        given: Any,
        *,
        mode: StreamMode | Sequence[StreamMode] = "updates",
        run_id: str | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Any]:
        """What happens in a run of its own, as it happens.

        ``updates``  ``{node: what it wrote}``
        ``values``   the state that those see who come after the node
        ``tokens``   ``(text, agent)``, pieces of replies

        With several modes, items are ``(mode, item)``.
        """
        modes = [mode] if isinstance(mode, str) else list(mode)
        for each in modes:
            if each not in ("updates", "values", "tokens"):
                raise UsageError(f"a graph streams 'updates', 'values' or 'tokens', not {each!r}")
        history = History(self.shape)
        async with Runtime(**options) as runtime:

            def start(listener: Listener, opened: Opened) -> Coroutine[Any, Any, Any]:
                def follow(log: Log) -> None:
                    history.values = log.values
                    opened(log)

                return runtime.arun(self, given, run_id=run_id, listener=listener, opened=follow)

            async with aclosing(stream_of(start)) as items:
                async for item in items:
                    for kind, news in history.news(item):
                        if kind in modes:
                            yield news if isinstance(mode, str) else (kind, news)

    def get_state_history(self, run: str | Log, **options: Unpack[Options]) -> list[Snapshot]:
        """The state after each node of a run, newest first; also of one that goes on or waits.

        ``run`` is its name, or its log (``result.log``). ``options`` say where the log is.
        """
        if isinstance(run, Log):
            return self._history(run)
        runtime = Runtime(**options)
        try:
            return self._history(read_log(runtime.store, run, runtime.clock))
        finally:
            runtime.close_store()

    def get_state(
        self, run: str | Log, position: int | None = None, **options: Unpack[Options]
    ) -> Snapshot | None:
        """The newest state of a run; with a ``position`` in its log, as of then."""
        found = self.get_state_history(run, **options)
        return next((each for each in found if position is None or each.position <= position), None)

    def _history(self, log: Log) -> list[Snapshot]:
        history = History(self.shape, log.values)
        for envelope in log.envelopes:
            history.add(envelope)
        return history.snapshots[::-1]

    def fork(
        self,
        run_id: str,
        node: str,
        update: Mapping[str, Any],
        *,
        new_run_id: str | None = None,
        **options: Unpack[Options],
    ) -> Result[Any]:
        """A new run in which ``node`` of another had written ``update`` beside what it wrote.

        ``node`` is its name (its last firing), or the label or place of one firing; START stands
        for the input. Only what depends on it runs again.
        """
        return in_own_loop(self.afork(run_id, node, update, new_run_id=new_run_id, **options))

    async def afork(
        self,
        run_id: str,
        node: str,
        update: Mapping[str, Any],
        *,
        new_run_id: str | None = None,
        **options: Unpack[Options],
    ) -> Result[Any]:
        """:meth:`fork`, in async code."""
        async with Runtime(**options) as runtime:
            log = read_log(runtime.store, run_id, runtime.clock)
            changes = self._changes(log, node, update)
            return await runtime.afork(run_id, changes, self, new_run_id=new_run_id)

    def _changes(self, log: Log, node: str, update: Mapping[str, Any]) -> dict[str, Any]:
        values = self.shape.schema.update(update, f"the fork at {node!r}")
        calls = index_calls(log.envelopes)
        if node == START and calls.run is not None:
            [given] = log.values.decode(calls.run.input)
            return {"": [{**self.shape.schema.update(given, "the input"), **values}]}
        found = (s for s in self._history(log) if node in (s.node, s.label, s.place))
        snapshot = next(found, None)
        if snapshot is None:
            raise UsageError(
                f"run {log.run!r} has no finished node {node!r} to fork at; it has "
                f"{sorted({s.label for s in self._history(log)})}"
            )
        ended = calls.by_scope[snapshot.place].ended
        assert isinstance(ended, CallFinished)
        return {snapshot.place: amended(log.values.decode(ended.output), values)}

    def draw_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return mermaid(self.shape)
