"""A graph at work: the tasks around the machine that says which node fires when.

Each firing is a call at a place of its own, named by its label, whose causes are the ends of the
firings that it follows from. A chain of firings runs in one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
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
from accord.graph.node import Memo, NodeCall, as_command, state_after
from accord.graph.shape import END, START, Router, Send, Shape
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
        self._begun: set[str] = set()
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
                await self._begin(state)
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
            self._scope.frontier = tuple(sorted(self._ends)) or self._scope.frontier
            raise suspended
        if self.machine.result is None:
            raise self._stuck()
        ends = {firing.end for firing in self.machine.last}
        self._scope.frontier = tuple(sorted(ends))
        return self.machine.result

    async def _begin(self, state: State) -> None:
        try:
            targets = await self._first_targets(state)
            ready = self.machine.start(state, targets, self._scope.start)
        except Suspended as error:
            self._suspended.append(error)
            return
        except Exception as error:
            self._failure = error
            raise
        # The first in this task, if nobody may have to cancel it alone; the others beside it.
        self._start(ready if self.shape.only_to else ready[1:])
        if ready and not self.shape.only_to:
            await self._work(ready[0])

    def _start(self, firings: Iterable[Firing]) -> None:
        for firing in firings:
            self._execution.branches += 1
            task = self._group.start(self._work(firing), copy_context())
            task.add_done_callback(self._ended)
            self._tasks[firing.label] = task

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._execution.branches -= 1

    async def _work(self, firing: Firing) -> None:
        """Fire, and go on with what that makes ready: a chain of firings runs in one task."""
        task = asyncio.current_task()
        assert task is not None
        while True:
            slot = Slot(f"{self._path}{firing.label}", _causes(firing), self._scope, task)
            self._labels[f"~{firing.label}"] = 1
            self._begun.add(firing.label)
            self._tasks[firing.label] = task
            token = enter(slot)
            try:
                targets = await self._outcome(firing, slot)
                ready = self.machine.finish(firing, targets)
            except BaseException as error:
                if self._ended_badly(firing, slot, error):
                    return
                raise
            finally:
                leave(token)
                self._tasks.pop(firing.label, None)
            if self.shape.only_to:
                ready = self._go_on_without(ready)
            if not ready:
                return
            firing = ready[0]
            if len(ready) > 1:
                self._start(ready[1:])

    def _ended_badly(self, firing: Firing, slot: Slot, error: BaseException) -> bool:
        """Note how; True if nobody waits for it any more."""
        self._ends.update(slot.take_causes())
        if firing.label in self._dropped:
            self._start(self._go_on_without(self.machine.drop(firing)))
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
        try:
            given = await call(
                "node",
                node.name,
                node_call.inputs,
                node_call.body,
                timeout_s=node.timeout_s,
                accept=node_call.accept,
                preview=node_call.preview,
            )
        except BaseException:
            node_call.forget()
            raise
        firing.end = slot.frontier[0]
        node_call.remember(given, firing.end)
        firing.after = state_after(
            firing.state,
            given,
            by=node.name,
            depth=firing.depth,
            digest=self._digest(firing),
            of_value=log.values.digest if self.shape.by_key else None,
        )
        edges = self.shape.edges.get(node.name, ())
        routers = self.shape.routers.get(node.name)
        if routers is None and isinstance(given, dict):
            return edges
        routed = await self._route(routers, firing.after, firing) if routers else []
        gone = node_call.targets(as_command(given))
        return [*edges, *routed, *gone]

    def _digest(self, firing: Firing) -> bytes:
        """Stands for the state after a firing: the key of its call stands for the state before."""
        ended = self._log.envelopes[firing.end].event
        assert isinstance(ended, CallFinished)
        started = self._log.envelopes[ended.call].event
        assert isinstance(started, CallStarted)
        output = bytes(ended.output)
        if len(output) > SHORT:
            output = digest_of(output).encode()
        stands = b"%b%b" % (started.key.encode(), output)
        if firing.sent or firing.node.reads:  # its key stands for what it saw, not for the state
            return digest_of(b"%b\0%b" % (firing.state.digest, stands)).encode()
        return stands

    async def _first_targets(self, state: State) -> list[Target]:
        edges = self.shape.edges.get(START, ())
        routers = self.shape.routers.get(START, ())
        return [*edges, *(await self._route(routers, state, None) if routers else ())]

    async def _route(
        self, routers: Iterable[Router], state: State, firing: Firing | None
    ) -> list[Target]:
        """Where the conditional edges lead. What they call has a place of its own."""
        label = "" if firing is None else firing.label
        self._labels[f"~{label}→"] = 1
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
        many: list[Any] = [said]
        if isinstance(said, list | tuple):
            many = list(cast("Iterable[Any]", said))
        elif isinstance(said, set):  # whose own order is another in each process
            many = sorted(cast("set[Any]", said), key=str)
        found: list[Target] = []
        for each in many:
            if isinstance(each, Send):
                self._check_target(router, each.node)
                found.append(each)
                continue
            known = router.targets
            try:
                target = each if known is None else known.get(each)
            except TypeError:  # it cannot be a key
                target = None
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

    def _go_on_without(self, ready: list[Firing]) -> list[Firing]:
        """Of those that are ready, and of what that makes ready: what is not to be dropped.

        What a join has gone on without is cancelled, or not begun; timers are set for those joins
        that wait.
        """
        waiting = list(ready)
        going: list[Firing] = []
        while waiting:
            firing = waiting.pop(0)
            going.append(firing)
            if firing.node.join.drops:
                waiting += self._drop_for(firing.number)
        if self.machine.result is not None:
            while dropped := self._drop_for(self.shape.index[END]):
                going += dropped
        self._set_timers()
        return [firing for firing in going if firing.label not in self._dropped]

    def _drop_for(self, number: int) -> list[Firing]:
        """Drop what is only for a join that has fired; the firings that this makes ready."""
        ready: list[Firing] = []
        for firing in self.machine.stragglers(number):
            if firing.label in self._dropped:
                continue
            self._dropped.add(firing.label)
            self._labels[f"~{firing.label}"] = 1  # what it did the first time is not missed
            if (task := self._tasks.get(firing.label)) is not None:
                task.cancel()
            if firing.label not in self._begun:
                ready += self.machine.drop(firing)
        return ready

    def _set_timers(self) -> None:
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
        """The deadline of a join is over. Nobody waits for this, so a failure is kept."""
        try:
            self._start(self._go_on_without(self.machine.expire(number)))
        except Exception as error:  # noqa: BLE001  # raised when all firings have ended
            self._failure = self._failure or error
            self._group.drop()

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
        self.began = path, causes

    @property
    def place(self) -> str:
        """The place itself, which its one call has."""
        return self.path

    def next_path(self) -> str:
        """The place itself."""
        return self.path


def _causes(firing: Firing) -> tuple[int, ...]:
    if len(firing.sources) == 1:
        return (firing.sources[0].end,)
    return tuple(sorted({source.end for source in firing.sources}))
