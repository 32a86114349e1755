"""A graph as it is: nodes, edges, routers, and which node can lead to which.

Sets of nodes are integers, one bit a node: which of them can be reached is asked at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from accord.agent.agent import Agent
from accord.agent.retry import Retry
from accord.graph.schema import Schema

START = "__start__"
END = "__end__"

NodeUntil = Literal["all", "any", "each"] | int
"""What a node waits for. ``all`` inputs that can still come; the first (``any``) or ``k`` of them,
and those that come later are dropped; or it fires for ``each`` input."""


@dataclass(frozen=True, slots=True)
class Send:
    """Fires ``node`` on ``state`` instead of the graph's own: once for each Send."""

    node: str
    state: Any


N = TypeVar("N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[N]):
    """What a node may return: an update, and where to go next, beside its edges.

    ``-> Command[Literal["a", "b"]]`` says which nodes it may go to.
    """

    update: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    """What a person wrote to the state before the node, which the node has seen."""
    goto: str | Send | tuple[str | Send, ...] | list[str | Send] = ()

    @property
    def targets(self) -> list[str | Send]:
        """Where to go, as a list."""
        return [self.goto] if isinstance(self.goto, str | Send) else list(self.goto)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """How a node, or the end of the graph, waits for its inputs."""

    until: NodeUntil = "all"
    deadline_s: float | None = None

    def fault(self) -> str:
        """What is wrong with it; empty if nothing is."""
        until: Any = self.until
        if until not in ("all", "any", "each") and not (type(until) is int and until >= 1):
            return f"waits until 'all', 'any', 'each' or a number of inputs, not {until!r}"
        if self.deadline_s is not None and not self.deadline_s > 0:
            return f"has a deadline_s above 0 or None, not {self.deadline_s!r}"
        return ""

    @property
    def wanted(self) -> int | None:
        """How many inputs it takes; None for all that can still come."""
        return 1 if self.until == "any" else self.until if isinstance(self.until, int) else None

    @property
    def drops(self) -> bool:
        """It may go on while others are still at work."""
        return self.wanted is not None or self.deadline_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node and its policies, see :meth:`accord.graph.build.StateGraph.add_node`.

    ``goes_to`` are the nodes that its Commands may name; None if it may name any.
    """

    name: str
    body: Callable[..., Any] | None
    reads: tuple[str, ...] = ()
    writes: str = ""
    join: Join = Join()
    retry: Retry | None = None
    timeout_s: float | None = None
    cache: bool = False
    priority: int | None = None
    budget: int | None = None
    goes_to: tuple[str, ...] | None = ()
    agents: tuple[Agent[Any], ...] = ()
    """Those that its function names: what may be read ahead for it."""
    interrupts: tuple[str, ...] = ()
    """When a person is asked: ``before`` it, ``after`` it."""

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"node {self.name!r}"


@dataclass(frozen=True, slots=True)
class Router:
    """A conditional edge: ``function(state)`` says where to go from ``source``.

    ``targets`` translates what it says into nodes; None if it names any node itself.
    ``exclusive`` says that it takes one of them.
    """

    source: str
    name: str
    function: Callable[..., Any]
    is_async: bool
    targets: Mapping[Any, str] | None
    exclusive: bool = False


@dataclass(frozen=True)
class Shape:
    """A graph that has been checked. Nodes have numbers in the order in which they were added."""

    name: str
    schema: Schema
    nodes: tuple[Node, ...]
    edges: Mapping[str, tuple[str, ...]]
    routers: Mapping[str, tuple[Router, ...]]
    end: Join
    max_loops: int

    @cached_property
    def takes_one(self) -> list[bool]:
        """For each node, and the end: one token is enough, if no other can come."""
        return [*(node.join == Join() for node in self.nodes), False]

    @cached_property
    def by_key(self) -> bool:
        """Some node depends on some keys only, so keys have digests of their own."""
        return any(node.reads or node.cache for node in self.nodes)

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each node; the end has the last one."""
        return {name: number for number, name in enumerate([*self.names, END])}

    @cached_property
    def names(self) -> list[str]:
        """The nodes, in the order in which they were added."""
        return [node.name for node in self.nodes]

    def leads_to(self, name: str) -> Iterator[str]:
        """Where one may go from a node, or from the start, in one step."""
        yield from self.edges.get(name, ())
        anywhere = any(router.targets is None for router in self.routers.get(name, ()))
        for router in self.routers.get(name, ()):
            yield from dict.fromkeys((router.targets or {}).values())
        if name != START:
            goes_to = self.nodes[self.index[name]].goes_to
            anywhere = anywhere or goes_to is None
            yield from goes_to or ()
        if anywhere:
            yield from self.index

    @cached_property
    def successors(self) -> list[list[int]]:
        """The numbers of the nodes that each one may go to."""
        index = self.index
        return [list({index[each]: None for each in self.leads_to(name)}) for name in self.names]

    @cached_property
    def reaches(self) -> list[int]:
        """For each node, those that can come after it (itself, if it is on a cycle)."""
        return reachable([*self.successors, []])

    @cached_property
    def ways(self) -> list[int]:
        """For each node, how many nodes there are on the longest way from it to the end.

        A cycle counts once: nobody knows how often it goes round.
        """
        found = [0] * len(self.nodes)
        # What a node leads to, and is on no cycle with, reaches less than it does.
        for each in sorted(range(len(found)), key=lambda n: self.reaches[n].bit_count()):
            after = [n for n in self.successors[each] if n < len(found)]
            found[each] = 1 + max(
                (found[n] for n in after if not self.reaches[n] >> each & 1), default=0
            )
        return found

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """The numbers of the nodes that each one, or the end, may come right after."""
        found: list[list[int]] = [[] for _ in self.index]
        for number, after in enumerate(self.successors):
            for each in after:
                found[each].append(number)
        return found

    def names_before(self, number: int) -> list[str]:
        """The nodes that a node, or the end, may come right after."""
        return [self.names[each] for each in self.predecessors[number]]

    @cached_property
    def reached_by(self) -> list[int]:
        """For each node those that it can come after; the end comes after all."""
        found = reachable(self.predecessors)
        found[-1] = (1 << len(self.nodes)) - 1
        return found

    @cached_property
    def only_to(self) -> dict[int, int]:
        """For each node that drops late inputs: the nodes from which all ways lead through it."""
        nodes = [*self.nodes, None]
        joins = [self.end if node is None else node.join for node in nodes]
        return {each: self._only_to(each) for each, join in enumerate(joins) if join.drops}

    def _only_to(self, number: int) -> int:
        end = self.index[END]
        if number == end:
            return (1 << end) - 1
        free = 0
        waiting = [n for n, after in enumerate(self.successors) if not after or end in after]
        while waiting:
            each = waiting.pop()
            if each != number and not free >> each & 1:
                free |= 1 << each
                waiting.extend(self.predecessors[each])
        return self.reached_by[number] & ~free & ~(1 << number)


def members(mask: int) -> Iterator[int]:
    """The numbers in a set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def reachable(successors: list[list[int]]) -> list[int]:
    """For each node, the set of those that can come after it. Linear in edges, but for the sets.

    After Tarjan (1972): components of cycles come up last first, so each is made of known ones.
    """
    count = len(successors)
    order, low = [-1] * count, [0] * count
    found = [0] * count
    on_stack = [False] * count
    path: list[int] = []
    number = 0
    for root in range(count):
        if order[root] >= 0:
            continue
        work: list[tuple[int, Iterator[int]]] = [(root, iter(successors[root]))]
        order[root] = low[root] = number
        number += 1
        path.append(root)
        on_stack[root] = True
        while work:
            node, rest = work[-1]
            for after in rest:
                if order[after] < 0:
                    order[after] = low[after] = number
                    number += 1
                    path.append(after)
                    on_stack[after] = True
                    work.append((after, iter(successors[after])))
                    break
                if on_stack[after]:
                    low[node] = min(low[node], order[after])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == order[node]:
                    _close(node, path, on_stack, successors, found)
    return found


def _close(
    node: int,
    path: list[int],
    on_stack: list[bool],
    successors: list[list[int]],
    found: list[int],
) -> None:
    """The component whose first node is ``node`` is complete: all of it reaches the same."""
    component: list[int] = []
    while not component or component[-1] != node:
        component.append(path.pop())
        on_stack[component[-1]] = False
    own = _set(component)
    mask = own if len(component) > 1 or node in successors[node] else 0
    for each in component:
        for after in successors[each]:
            if not own >> after & 1:
                mask |= found[after] | 1 << after
    for each in component:
        found[each] = mask


def _set(numbers: Iterable[int]) -> int:
    mask = 0
    for each in numbers:
        mask |= 1 << each
    return mask
