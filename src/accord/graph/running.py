"""A graph at work: the tasks around the machine that says which node fires when.

Each firing is a call at a place of its own, named by its label, whose causes are the ends of the
firings that it follows from. A chain of firings runs in one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, cast

from accord.clock import NANOSECONDS
from accord.errors import DeadlockError, GraphError
from accord.flow.call import call
from accord.flow.failure import ends_in, mark
from accord.flow.scope import CallScope, Scope, enter, leave
from accord.flow.suspend import Suspended, merged
from accord.graph.firing import Firing, Machine, Target
from accord.graph.history import THE_INPUT
from accord.graph.node import Memo, NodeCall, as_command
from accord.graph.shape import END, START, Command, Router, Send, Shape
from accord.graph.state import State
from accord.log.blobs import digest_of
from accord.log.events import CallFinished, CallStarted
from accord.sync.gather import Group

SHORT = 64
"""Outputs of so many bytes stand for themselves in a digest."""


class Running:
    """One execution of ``shape`` within ``scope``, the graph's own call."""

    def __init__(self, shape: Shape, scope: CallScope, *, keeps_writes: bool = False) -> None:
        self.shape = shape
        self._scope = scope
        self._execution = scope.execution
        self._log = scope.execution.log
        replay = self._execution.replay
        recorded = self._recorded if replay.is_recorded_below(scope.path) else None
        self.machine = Machine(shape, recorded, keeps_writes=keeps_writes)
        self._group = Group()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._dropped: set[str] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._ends: set[int] = set()
        """The last events of firings that did not come to a good end."""
        self._failure: Exception | None = None
        self._suspended: list[Suspended] = []
        self._memo: Memo = {}
        self._labels: dict[str, int] = {}
        """The firings so far, as the graph's scope tells its replay."""
        scope.adopted = self._labels
        self._path = f"{scope.path}/~"

    def first_state(self, values: dict[str, Any]) -> State:
        """The state that the input makes."""
        codec = self._log.values
        return State(self.shape.schema, {}, b"").write(
            self.shape.schema.first(values),
            by=THE_INPUT,
            depth=0,
            digest=digest_of(codec.digest(values)).encode(),
            of_value=codec.digest if self.shape.by_key else None,
        )

    async def run(self, state: State) -> State:
        """Fire nodes from the start, at ``state``, to the end; the state there."""
        try:
            async with self._group:
                targets = await self._first_targets(state)
                ready = self.machine.start(state, targets, self._scope.start)
                await self._start_all(ready)
        except BaseExceptionGroup:
            # Firings note only Exceptions, so a group without one is not ours to unwrap.
            if self._failure is None:
                raise
        finally:
            for timer in self._timers.values():
                timer.cancel()
        if self._failure is not None:
            mark(self._failure, self._log, *sorted(self._ends))
            raise self._failure
        if self._suspended and self.machine.result is None:
            suspended = merged(self._suspended)
            mark(suspended, self._log, *sorted(self._ends))
            raise suspended
        if self.machine.result is None:
            raise self._stuck()
        ends = {firing.end for firing in self.machine.last}
        self._scope.frontier = tuple(sorted(ends))
        return self.machine.result

    async def _start_all(self, ready: list[Firing]) -> None:
        """The first in this task, if nobody may have to cancel it alone; the others beside it."""
        if self.shape.only_to or not ready:
            self._start(ready)
            return
        self._start(ready[1:])
        await self._work(ready[0])

    def _start(self, firings: Iterable[Firing]) -> None:
        for firing in firings:
            self._execution.branches += 1
            self._group.start(self._beside(firing), copy_context())

    async def _beside(self, firing: Firing) -> None:
        try:
            await self._work(firing)
        finally:
            self._execution.branches -= 1

    async def _work(self, firing: Firing) -> None:
        """Fire, and go on with what that makes ready: a chain of firings runs in one task."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            slot = Slot(f"{self._path}{firing.label}", _causes(firing), self._scope, task)
            self._labels[f"~{firing.label}"] = 1
            token = enter(slot)
            self._tasks[firing.label] = task
            try:
                targets = await self._outcome(firing, slot)
                ready = self.machine.finish(firing, targets)
            except BaseException as error:
                if self._ended_badly(firing, slot, error):
                    return
                raise
            finally:
                leave(token)
                del self._tasks[firing.label]
            if self.shape.only_to:
                self._go_on_without(ready)
            if not ready:
                return
            firing = ready[0]
            if len(ready) > 1:
                self._start(ready[1:])

    def _ended_badly(self, firing: Firing, slot: Slot, error: BaseException) -> bool:
        """Note how; True if nobody waits for it any more."""
        self._ends.update(slot.take_causes())
        if firing.label in self._dropped:
            self._start(self.machine.drop(firing))
            return isinstance(error, Exception)
        if isinstance(error, Suspended):
            self._ends.update(ends_in(error, self._log))
            self._suspended.append(error)  # what it holds up waits, the others go on
            return True
        if isinstance(error, Exception) and self._failure is None:
            self._failure = error
            self._group.drop()
            error.add_note(f"in node {firing.node.name!r} of graph {self.shape.name!r}")
        return False

    async def _outcome(self, firing: Firing, slot: Slot) -> Sequence[Target]:
        """Where the firing leads; what it wrote is put on the state."""
        node, log = firing.node, self._log
        node_call = NodeCall(firing, self.shape, self._memo)
        given = await call(
            "node",
            node.name,
            node_call.inputs,
            node_call.body,
            timeout_s=node.timeout_s,
            preview=node_call.preview,
            accept=node_call.accept,
        )
        firing.end = slot.frontier[0]
        command: Command[Any] | None = None
        update: Mapping[str, Any] = given
        if not isinstance(given, dict):
            command = as_command(given)
            update = command.update or {}
        firing.after = firing.state.write(
            update,
            by=node.name,
            depth=2 * firing.depth,
            digest=self._digest(firing.end),
            of_value=log.values.digest if self.shape.by_key else None,
        )
        edges = self.shape.edges.get(node.name, ())
        routers = self.shape.routers.get(node.name)
        if command is None and routers is None:
            return edges
        routed = await self._route(routers, firing.after, firing) if routers else []
        gone = node_call.targets(command) if command is not None else []
        return [*edges, *routed, *gone]

    def _digest(self, end: int) -> bytes:
        """Stands for the state after a call: its key stands for the state before."""
        ended = self._log.envelopes[end].event
        assert isinstance(ended, CallFinished)
        started = self._log.envelopes[ended.call].event
        assert isinstance(started, CallStarted)
        output = bytes(ended.output)
        if len(output) > SHORT:
            output = digest_of(output).encode()
        return b"%b%b" % (started.key.encode(), output)

    async def _first_targets(self, state: State) -> list[Target]:
        edges = self.shape.edges.get(START, ())
        routers = self.shape.routers.get(START, ())
        return [*edges, *(await self._route(routers, state, None) if routers else ())]

    async def _route(
        self, routers: Iterable[Router], state: State, firing: Firing | None
    ) -> list[Target]:
        """Where the conditional edges lead. What they call has a place of its own."""
        label = "start" if firing is None else firing.label
        before = self._scope.frontier if firing is None else (firing.end,)
        scope = Scope(
            f"{self._scope.path}/~{label}→",
            before,
            self._execution,
            asyncio.current_task(),
            self._scope,
        )
        token = enter(scope)
        try:
            said = [(router, await self._said(router, state)) for router in routers]
        finally:
            leave(token)
        if firing is not None:
            firing.end = max(scope.take_causes())
        return [target for router, each in said for target in self._targets(router, each)]

    async def _said(self, router: Router, state: State) -> Any:
        try:
            said = router.function(self.shape.schema.make(state.values))
            return await cast("Awaitable[Any]", said) if router.is_async else said
        except Exception as error:
            error.add_note(f"in router {router.name!r} after {router.source!r}")
            raise

    def _targets(self, router: Router, said: Any) -> list[Target]:
        many = cast("Iterable[Any]", said) if isinstance(said, list | tuple | set) else [said]
        found: list[Target] = []
        for each in many:
            if isinstance(each, Send):
                self._check_target(router, each.node)
                found.append(each)
                continue
            target = each if router.targets is None else router.targets.get(each)
            self._check_target(router, target, each)
            found.append(cast("str", target))
        return found

    def _check_target(self, router: Router, target: Any, said: Any = None) -> None:
        if isinstance(target, str) and target in self.shape.index:
            return
        known = list(self.shape.index) if router.targets is None else list(router.targets)
        raise GraphError(
            f"router {router.name!r} after {router.source!r} of graph {self.shape.name!r} said "
            f"{said if said is not None else target!r}, which leads nowhere; it may say {known}, "
            "or a list of them"
        )

    def _recorded(self, label: str) -> frozenset[int] | None:
        causes = self._execution.replay.causes_at(f"{self._scope.path}/~{label}")
        return None if causes is None else frozenset(causes)

    def _go_on_without(self, ready: Iterable[Firing]) -> None:
        """Cancel what a join has gone on without; set timers for those that wait."""
        fired = [firing.number for firing in ready if firing.node.join.drops]
        if self.machine.result is not None:
            fired.append(self.shape.index[END])
        for number in fired:
            for firing in self.machine.stragglers(number):
                self._dropped.add(firing.label)
                if (task := self._tasks.get(firing.label)) is not None:
                    task.cancel()
        waiting = self.machine.joins_with_deadline()
        numbers = {number for number, _, _ in waiting}
        for number in [each for each in self._timers if each not in numbers]:
            self._timers.pop(number).cancel()
        for number, deadline_s, since in waiting:
            if number not in self._timers:
                passed_s = (self._log.now() - self._log.envelopes[since].at) / NANOSECONDS
                self._timers[number] = asyncio.get_running_loop().call_later(
                    deadline_s - passed_s, self._expire, number
                )

    def _expire(self, number: int) -> None:
        ready = self.machine.expire(number)
        self._go_on_without(ready)
        self._start(ready)

    def _stuck(self) -> DeadlockError:
        waiting = self.machine.statistics()
        return DeadlockError(
            f"graph {self.shape.name!r} has come to no end: nothing is at work, and "
            f"{waiting.pending} nodes wait"
        )


class Slot(Scope):
    """The place of one firing, beside others: the one call made in it is at the place itself."""

    __slots__ = ()

    def __init__(
        self, path: str, causes: tuple[int, ...], outer: CallScope, task: asyncio.Task[Any] | None
    ) -> None:
        super().__init__(path, causes, outer.execution, task, outer)
        self.handling = outer.handling
        self.began = path, causes

    @property
    def place(self) -> str:
        """As for any scope."""
        return self.path

    def next_path(self) -> str:
        """As for any scope."""
        return self.path


def _causes(firing: Firing) -> tuple[int, ...]:
    if len(firing.sources) == 1:
        return (firing.sources[0].end,)
    return tuple(sorted({source.end for source in firing.sources}))
