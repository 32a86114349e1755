"""What happens within one firing: the node's function, its attempts, and what it returned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from accord.comm.interrupt import interrupt
from accord.errors import GraphError, UsageError
from accord.flow.attempts import with_attempts
from accord.flow.scope import CallScope, Scope
from accord.graph.firing import Firing, Target
from accord.graph.shape import Command, Send, Shape
from accord.schedule.budget import Budget

if TYPE_CHECKING:
    from accord.agent.request import Retry


class Made(NamedTuple):
    """What a node returned that may serve for others."""

    result: Any


Memo = dict[tuple[str, bytes], asyncio.Future[Made | None]]
"""What nodes with ``cache`` have returned, by name and by what they saw."""


class NodeCall:
    """The call that one firing makes."""

    def __init__(self, firing: Firing, shape: Shape, memo: Memo) -> None:
        self._firing = firing
        self._node = firing.node
        self._shape = shape
        self._memo = memo
        self.inputs: Sequence[Any] | bytes
        self.preview: str | None
        if firing.sent:
            self.inputs, self.preview = [firing.payload], None
        else:
            reads = firing.node.reads
            seen = firing.state.digest_of(reads) if reads else firing.state.digest
            self.inputs, self.preview = seen, f"reads {', '.join(reads)}" if reads else None

    def body(self, scope: CallScope) -> Awaitable[Any]:
        """What the node returns."""
        node = self._node
        if node.priority is not None:
            scope.priority = node.priority
        if node.budget is not None:
            scope.budget = Budget(node.budget, node.title, scope.budget)
        if node.interrupts:
            return self._with_questions(scope)
        return self._work(scope)

    def _work(self, scope: CallScope) -> Awaitable[Any]:
        node = self._node
        if node.retry is not None:
            return self._with_retries(scope, node.retry)
        return self._memoized(scope) if node.cache else self._run(scope)

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
        name, firing, schema = self._node.name, self._firing, self._shape.schema
        given: dict[str, Any] = {}
        if "before" in self._node.interrupts:
            seen = {"before": name, "state": firing.state.values}
            given = _update_in(await interrupt(seen, name=name))
            given = schema.update(given, "the answer before " + self._node.title)
            digest = scope.execution.log.values.digest if self._shape.by_key else None
            depth = 2 * firing.depth - 1
            firing.state = firing.state.write(given, by="a person", depth=depth, of_value=digest)
        command = as_command(self.accept(await self._work(scope)))
        given |= command.update or {}
        if "after" in self._node.interrupts:
            answer = await interrupt({"after": name, "update": given}, name=name)
            given |= _update_in(answer)
        return _command(given, command.targets)

    async def _memoized(self, scope: Scope) -> Any:
        state, node = self._firing.state, self._node
        key = (node.name, state.digest_of(node.reads or state.schema.keys))
        while (known := self._memo.get(key)) is not None:
            if (found := await asyncio.shield(known)) is not None:
                return found.result
        made = self._memo[key] = asyncio.get_running_loop().create_future()
        try:
            result = await self._run(scope)
        except BaseException:
            del self._memo[key]
            made.set_result(None)  # whoever waits for it tries for themselves
            raise
        made.set_result(Made(result))
        return result

    def _run(self, scope: Scope) -> Awaitable[Any]:
        node, values = self._node, self._firing.state.values
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
            return _command(update, command.targets)
        return schema.update({node.writes: given} if node.writes else given, node.title)

    async def _with_retries(self, scope: CallScope, retry: Retry) -> Any:
        seed = f"{scope.execution.seed}/{scope.path}"
        return await with_attempts(
            scope,
            self._memoized if self._node.cache else self._run,
            lambda attempt: _pause_s(retry, attempt, seed),
        )


def _command(update: Mapping[str, Any], goto: Sequence[Target]) -> Any:
    made: Command[Any] = Command(update=update, goto=tuple(goto))
    return made


def amended(recorded: Any, update: Mapping[str, Any]) -> Any:
    """What is recorded of a node, had it written ``update`` as well."""
    command = as_command(recorded)
    written = {**(command.update or {}), **update}
    return _command(written, command.targets) if command.targets else written


def as_command(recorded: Any) -> Command[Any]:
    """What is recorded of a node, as a Command."""
    if isinstance(recorded, Command):
        return cast("Command[Any]", recorded)
    return Command(update=recorded)


def _update_in(answer: Any) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", answer)) if isinstance(answer, dict) else {}


def _pause_s(retry: Retry, attempt: int, seed: str) -> float | None:
    """How long to wait before the next attempt; None if there is none."""
    if attempt >= retry.attempts:
        return None
    pause_s = min(retry.cap_s, retry.base_s * 2 ** (attempt - 1))
    return pause_s * (0.5 + Random(f"{seed}/{attempt}").random() / 2)
