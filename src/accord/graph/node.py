"""What happens within one firing: the node's function, its attempts, and what it returned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from accord.comm.interrupt import interrupt
from accord.errors import GraphError, StateError, UsageError
from accord.flow.attempts import with_attempts
from accord.flow.scope import CallScope, Scope
from accord.graph.firing import Firing, Target
from accord.graph.shape import Command, Send, Shape
from accord.graph.state import Digest, State
from accord.log.events import PAST_DEADLINE
from accord.observe.earlier import Expectations, Expected
from accord.schedule.budget import Budget

if TYPE_CHECKING:
    from accord.agent.retry import Retry


class Made(NamedTuple):
    """What a node returned that may serve for others, and the event with which it ended."""

    result: Any
    end: int


NODE_S = 10.0
"""What a node is taken to take, in a run of which no earlier one tells: a few short requests."""

Memo = dict[tuple[str, bytes], asyncio.Future[Made | None]]
"""What nodes with ``cache`` have returned, by name and by what they saw."""


class NodeCall:
    """The call that one firing makes."""

    def __init__(self, firing: Firing, shape: Shape, memo: Memo) -> None:
        self._firing = firing
        self._node = firing.node
        self._shape = shape
        self._memo = memo
        self._seen = firing.state
        """What the node sees."""

    @property
    def inputs(self) -> Sequence[Any] | bytes:
        """What the call depends on."""
        if self._firing.sent:
            return [self._firing.payload]
        reads, state = self._node.reads, self._firing.state
        return state.digest_of(reads) if reads else state.digest

    @property
    def preview(self) -> str | None:
        """What people are shown of it."""
        if self._firing.past_deadline:
            return PAST_DEADLINE
        reads = self._node.reads
        return f"reads {', '.join(reads)}" if reads and not self._firing.sent else None

    def body(self, scope: CallScope) -> Awaitable[Any]:
        """What the node returns."""
        node = self._node
        if (expectations := scope.execution.expectations) is not None:
            self._announce(scope, expectations)
        scope.remaining_s += NODE_S * self._shape.ways[self._shape.index[node.name]]
        if node.priority is not None:
            scope.priority = node.priority
        if node.budget is not None:
            scope.budget = Budget(node.budget, node.title, scope.budget)
        if node.interrupts:
            return self._with_questions(scope)
        return self._work(scope)

    def _announce(self, scope: CallScope, expectations: Expectations) -> None:
        """The agents of the nodes that this one leads to come next."""
        shape, graph = self._shape, scope.path.rpartition("/")[0]
        after = set(shape.leads_to(self._node.name))
        for node in shape.nodes:
            for agent in node.agents if node.name in after else ():
                place = f"{graph}/~{node.name}/0"  # of its first firing
                expectations.agents[agent.name] = agent
                expectations.add(Expected(agent.name, place, frozenset({scope.path})))

    def _work(self, scope: CallScope) -> Awaitable[Any]:
        return self._memoized(scope) if self._node.cache else self._attempts(scope)

    def _attempts(self, scope: CallScope) -> Awaitable[Any]:
        retry = self._node.retry
        return self._run(scope) if retry is None else self._with_retries(scope, retry)

    def targets(self, command: Command[Any]) -> list[Target]:
        """Where the node's own Command leads."""
        node, known = self._node, self._shape.index
        for each in command.targets:
            name = each.node if isinstance(each, Send) else each
            if name not in known or (node.goes_to is not None and name not in node.goes_to):
                may = list(known) if node.goes_to is None else list(node.goes_to)
                raise GraphError(
                    f"node {node.name!r} of graph {self._shape.name!r} goes to {name!r}, and may "
                    f"go to {may or 'no other node'}; say so when adding it: "
                    f"add_node({node.name!r}, ..., goes_to=[{name!r}])"
                )
        return command.targets

    async def _with_questions(self, scope: CallScope) -> Any:
        """A person is asked before the node, with what it would see; and after, with what it gave.

        An answer that is a dict is written to the state: before what the node writes, or over it.
        """
        name = self._node.name
        before: dict[str, Any] = {}
        if "before" in self._node.interrupts:
            before = await self._answer({"before": name, "state": self._seen.values})
            digest = scope.execution.log.values.digest if self._shape.by_key else None
            self._seen = _amended_by_a_person(self._seen, before, self._firing.depth, digest)
        command = as_command(self.accept(await self._work(scope)))
        update = dict(command.update or {})
        if "after" in self._node.interrupts:
            update |= await self._answer({"after": name, "update": update})
        return replace(command, update=update, before=before)

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What a person has to write; asked again, with the reason, if it does not fit."""
        while True:
            answer = await interrupt(question, name=self._node.name)
            try:
                return self._shape.schema.update(_update_in(answer), "the answer")
            except StateError as error:
                question = {**question, "refused": str(error)}

    def remember(self, given: Any, end: int) -> None:
        """What the call gave, with event ``end``, serves for others, also if the log gave it."""
        if self._node.cache:
            made = self._memo.setdefault(self._memo_key, asyncio.get_running_loop().create_future())
            if not made.done():
                made.set_result(Made(given, end))

    def forget(self) -> None:
        """The call gave nothing: whoever waits for it tries for themselves."""
        if self._node.cache and (made := self._memo.get(self._memo_key)) and not made.done():
            del self._memo[self._memo_key]
            made.set_result(None)

    @property
    def _memo_key(self) -> tuple[str, bytes]:
        state, node = self._firing.state, self._node
        return node.name, state.digest_of(node.reads or state.schema.keys)

    async def _memoized(self, scope: CallScope) -> Any:
        # What has begun to run goes on running, though another was first this time.
        if not scope.execution.replay.is_recorded_below(scope.path):
            while (known := self._memo.get(self._memo_key)) is not None:
                if (found := await asyncio.shield(known)) is not None:
                    scope.follow(found.end)
                    return as_command(found.result)
        self._memo.setdefault(self._memo_key, asyncio.get_running_loop().create_future())
        return await self._attempts(scope)

    def _run(self, scope: Scope) -> Awaitable[Any]:
        node, values = self._node, self._seen.values
        if self._firing.sent:
            arguments: Sequence[Any] = [self._firing.payload]
        elif node.writes:
            arguments = [self._value(values, key) for key in node.reads]
        elif node.reads:
            arguments = [{key: values[key] for key in node.reads if key in values}]
        else:
            arguments = [self._shape.schema.make(values)]
        assert node.body is not None
        return node.body(scope, arguments)

    def _value(self, values: Mapping[str, Any], key: str) -> Any:
        try:
            return values[key]
        except KeyError:
            raise UsageError(
                f"node {self._node.name!r} reads {key!r}, which nobody before it has written; "
                f"give it in the input, or add an edge from the node that writes it"
            ) from None

    def accept(self, given: Any) -> Any:
        """What is recorded of what it returned: a dict of what it wrote, or a Command."""
        node, schema = self._node, self._shape.schema
        if type(given) is dict and not node.writes and schema.is_plain(cast("Any", given)):
            return cast("Any", given)
        if isinstance(given, Command):
            command = cast("Command[Any]", given)
            update = schema.update(command.update, node.title)
            return replace(command, update=update, goto=tuple(command.targets))
        return schema.update({node.writes: given} if node.writes else given, node.title)

    async def _with_retries(self, scope: CallScope, retry: Retry) -> Any:
        seed = f"{scope.execution.seed}/{scope.path}"
        return await with_attempts(
            scope,
            self._run,
            lambda attempt: retry.backoff_s(attempt, Random(f"{seed}/{attempt}")),
        )


def amended(recorded: Any, update: Mapping[str, Any]) -> Any:
    """What is recorded of a node, had it written ``update`` as well."""
    command = as_command(recorded)
    written = {**(command.update or {}), **update}
    return replace(command, update=written) if isinstance(recorded, Command) else written


def state_after(
    state: State,
    recorded: Any,
    *,
    by: str,
    depth: int,
    digest: bytes = b"",
    of_value: Digest | None = None,
) -> State:
    """The state after a node at ``depth``, of which this was ``recorded``."""
    update: Mapping[str, Any] = recorded
    if not isinstance(recorded, dict):
        command = as_command(recorded)
        update = command.update or {}
        if command.before:
            state = _amended_by_a_person(state, command.before, depth, of_value)
    return state.write(update, by=by, depth=2 * depth, digest=digest, of_value=of_value)


def _amended_by_a_person(
    state: State, answer: Mapping[str, Any], depth: int, of_value: Digest | None
) -> State:
    return state.write(
        answer, by="a person", depth=2 * depth - 1, digest=state.digest, of_value=of_value
    )


def as_command(recorded: Any) -> Command[Any]:
    """What is recorded of a node, as a Command."""
    if isinstance(recorded, Command):
        return cast("Command[Any]", recorded)
    return Command(update=recorded)


def _update_in(answer: Any) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", answer)) if isinstance(answer, dict) else {}
