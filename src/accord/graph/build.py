"""Building a graph: nodes, edges, conditional edges. Natural to those who know LangGraph.

::

    class State(TypedDict):
        topic: str
        notes: Annotated[list[str], append]
        text: str


    graph = StateGraph(State)
    graph.add_node("plan", plan)
    graph.add_node("search", search)
    graph.add_node("write", write)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda state: [Send("search", q) for q in state["notes"]])
    graph.add_edge("search", "write")
    app = graph.compile()
    app.invoke({"topic": "harbours"})

Choose a graph where the control flow itself is data: drawn, interrupted, forked at any node. Where
it is just code, a flow with ``gather`` is shorter. A node costs what a recorded call costs, two
events, and no superstep: it fires as soon as its own inputs are ready.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import (
    Any,
    Literal,
    TypedDict,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from accord.agent.prefetch import agents_used_by
from accord.agent.retry import Retry
from accord.errors import GraphError
from accord.flow.function import is_async
from accord.flow.scope import CallScope, Scope
from accord.flow.step import Step
from accord.flow.thread import in_thread
from accord.graph.app import Graph
from accord.graph.check import check
from accord.graph.schema import Schema
from accord.graph.shape import END, START, Command, Join, Node, NodeUntil, Router, Shape

Function = Callable[..., Any]
Targets = Mapping[Any, str] | Sequence[str]
_NAME = re.compile(r"[^/\[\]<>→~\x00-\x1f]+")
_NUMBERED = re.compile(r".*\.\d+")


class NodeOptions(TypedDict, total=False):
    """What :meth:`StateGraph.add_node` takes beside name and function."""

    reads: str | Sequence[str]
    writes: str
    until: NodeUntil
    deadline_s: float | None
    retry: Retry | int | None
    timeout_s: float | None
    cache: bool
    priority: int | None
    budget: int | None
    goes_to: Sequence[str] | None


class StateGraph:
    """A graph to be built. ``state`` is the class of its state, see :mod:`accord.graph.schema`.

    ``defaults`` are options for all nodes; a node's own come first.
    """

    def __init__(self, state: type[Any], **defaults: Unpack[NodeOptions]) -> None:
        self.schema = Schema(state)
        self._defaults = defaults
        self._nodes: dict[str, Node] = {}
        self._edges: dict[str, dict[str, None]] = {}
        self._routers: dict[str, list[Router]] = {}

    def add_node(
        self,
        name: str | Function,
        function: Function | None = None,
        /,
        **options: Unpack[NodeOptions],
    ) -> StateGraph:
        """Add a node: an async or sync function of the state, an agent, a step, a compiled graph.

        It returns a dict of the keys that it writes, nothing, or a :class:`Command`. Options:

        ``reads``       the keys that it sees; others do not make it run again in a fork
        ``writes``      the key that its result is put under; it is called with the values of
                        ``reads`` then: ``add_node("write", writer, reads="topic", writes="text")``
        ``until``       what it waits for, see :data:`accord.graph.shape.NodeUntil`
        ``deadline_s``  it goes on with the inputs that came within this time of the first
        ``retry``       attempts, or a :class:`accord.Retry`; a failed one makes its calls anew
        ``timeout_s``   bounds all its attempts together
        ``cache``       runs once in a run for equal inputs
        ``priority``    of its requests in front of the engine, larger is more urgent
        ``budget``      the most tokens that its requests may use in one firing
        ``goes_to``     the nodes that its Commands may name, if their type does not say

        A sync function runs in a thread. What must not happen twice belongs in a step.
        """
        if not isinstance(name, str):
            name, function = _name_of(name), name
        given = cast("NodeOptions", {**self._defaults, **options})
        self._check_name(name)
        if function is None or not callable(function):
            raise GraphError(
                f"node {name!r} needs a function, an agent or a graph, not {function!r}"
            )
        _check_options(name, given)
        reads = given.get("reads", ())
        reads = (reads,) if isinstance(reads, str) else tuple(reads)
        for key in (*reads, *filter(None, [given.get("writes", "")])):
            self._check_key(name, key)
        retry = given.get("retry")
        goes_to = given.get("goes_to", _goes_to(function))
        self._nodes[name] = Node(
            name=name,
            body=_body(function, self.schema, plain=bool(given.get("writes"))),
            reads=reads,
            writes=given.get("writes", ""),
            join=Join(until=given.get("until", "all"), deadline_s=given.get("deadline_s")),
            retry=Retry(attempts=retry) if isinstance(retry, int) else retry,
            timeout_s=given.get("timeout_s"),
            cache=given.get("cache", False),
            priority=given.get("priority"),
            budget=given.get("budget"),
            goes_to=None if goes_to is None else tuple(goes_to),
            agents=tuple(agents_used_by(function)),
        )
        return self

    def add_edge(self, source: str | Sequence[str], target: str) -> StateGraph:
        """Let ``target`` follow ``source``. Of several sources it waits for all that can come."""
        if not isinstance(cast("Any", target), str):
            raise GraphError(f"an edge leads to one node, by name, not to {target!r}")
        sources: Any = [source] if isinstance(source, str) else source
        if not isinstance(sources, list | tuple):
            raise GraphError(f"an edge begins at a node, or a list of them, not at {source!r}")
        for each in cast("Sequence[str]", sources):
            if each == END or target == START:
                raise GraphError(
                    f"an edge leads from the start to the end, not {each!r} → {target!r}"
                )
            self._edges.setdefault(each, {})[target] = None
        return self

    def add_conditional_edges(
        self, source: str, router: Function, targets: Targets | None = None
    ) -> StateGraph:
        """Let ``router(state)`` say where to go from ``source``.

        It returns a node, a :class:`Send`, or a list of them; or a key of ``targets``, where that
        is a dict. What it may say is read off its ``-> Literal[...]`` if ``targets`` is not given.
        It is asked again on a replay, so it has to say the same of the same state; an async one
        may make recorded calls.
        """
        if not callable(router):
            raise GraphError(
                f"the router after {source!r} is a function of the state, not {router!r}"
            )
        said, exclusive = _said(router)
        known: Mapping[Any, str] | None = None
        if targets is not None:
            known = (
                dict(targets) if isinstance(targets, Mapping) else {each: each for each in targets}
            )
        elif said:
            known = {each: each for each in said}
        self._routers.setdefault(source, []).append(
            Router(
                source=source,
                name=str(getattr(router, "__name__", type(router).__name__)),
                function=router,
                is_async=is_async(router) or isinstance(router, Step),
                targets=known,
                exclusive=exclusive,
            )
        )
        return self

    def add_sequence(self, *nodes: tuple[str, Function] | Function) -> StateGraph:
        """Add nodes one after the other: functions, or pairs of name and function."""
        before = ""
        for each in nodes:
            pair: Any = each
            name, function = pair if isinstance(each, tuple) else (_name_of(pair), pair)
            self.add_node(name, function)
            if before:
                self.add_edge(before, name)
            before = name
        return self

    def set_entry_point(self, node: str) -> StateGraph:
        """``add_edge(START, node)``."""
        return self.add_edge(START, node)

    def set_finish_point(self, node: str) -> StateGraph:
        """``add_edge(node, END)``."""
        return self.add_edge(node, END)

    def compile(
        self,
        *,
        name: str = "",
        until: NodeUntil = "all",
        deadline_s: float | None = None,
        max_loops: int = 1000,
        interrupt_before: Sequence[str] = (),
        interrupt_after: Sequence[str] = (),
        **others: Any,
    ) -> Graph:
        """The graph, checked; raises :class:`accord.errors.GraphError` for what cannot work.

        ``until`` and ``deadline_s`` say when it has come to its end, as for a node: with ``"any"``,
        the first to get there ends it. ``max_loops`` bounds how often a node fires.
        Runs are durable by themselves: there is no checkpointer to give.
        """
        if others:
            raise GraphError(
                f"compile has no option {min(others)!r}. Every run is durable by itself: there is "
                "no checkpointer, and its name is the thread, as in run(graph, input, run_id=...)"
            )
        if max_loops < 1:
            raise GraphError(f"max_loops is at least 1, not {max_loops}")
        for each in (*interrupt_before, *interrupt_after):
            if each not in self._nodes:
                raise GraphError(
                    f"there is no node {each!r} to interrupt; there are {[*self._nodes]}"
                )
        asks = {"before": interrupt_before, "after": interrupt_after}
        nodes = tuple(
            replace(node, interrupts=tuple(when for when, names in asks.items() if each in names))
            for each, node in self._nodes.items()
        )
        shape = Shape(
            name=name or self.schema.name,
            schema=self.schema,
            nodes=nodes,
            edges={source: tuple(targets) for source, targets in self._edges.items()},
            routers={source: tuple(routers) for source, routers in self._routers.items()},
            end=Join(until=until, deadline_s=deadline_s),
            max_loops=max_loops,
        )
        check(shape)
        return Graph(shape)

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or not name.isprintable() or _NUMBERED.fullmatch(name):
            raise GraphError(
                f"a node's name is printable text without / [ ] < > → ~ or .number, not {name!r}"
            )
        if name in (START, END):
            raise GraphError(f"{name!r} is not a name for a node: it is the graph's own")
        if name in self._nodes:
            raise GraphError(f"there is a node {name!r} already; give this one another name")

    def _check_key(self, name: str, key: str) -> None:
        if key not in self.schema.keys:
            raise GraphError(
                f"node {name!r} reads or writes {key!r}, which {self.schema.name} has not; it has "
                f"{list(self.schema.keys)}"
            )


def _name_of(function: Function) -> str:
    return str(getattr(function, "name", None) or getattr(function, "__name__", ""))


def _check_options(name: str, given: NodeOptions) -> None:
    unknown = given.keys() - NodeOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(NodeOptions.__annotations__)
        raise GraphError(f"node {name!r}: there is no option {min(unknown)!r}; there are {known}")
    for each in ("deadline_s", "timeout_s", "budget"):
        value: Any = given.get(each)
        if value is not None and not (type(value) in (int, float) and value > 0):
            raise GraphError(f"node {name!r}: {each} is a number above 0 or None, not {value!r}")
    retry: Any = given.get("retry")
    if not (retry is None or isinstance(retry, Retry) or (type(retry) is int and retry >= 1)):
        raise GraphError(
            f"node {name!r}: retry is a number of attempts, at least 1, or a Retry, not {retry!r}"
        )
    priority: Any = given.get("priority")
    if not (priority is None or type(priority) is int):
        raise GraphError(f"node {name!r}: priority is a whole number, not {priority!r}")
    reads: Any = given.get("reads", ())
    if not isinstance(reads, str | list | tuple):
        raise GraphError(f"node {name!r}: reads is a key, or a list of keys, not {reads!r}")


def _body(function: Function, schema: Schema, *, plain: bool) -> Function:
    """``function`` as ``await body(scope, arguments)``."""

    def of_graph(_scope: Scope, arguments: Sequence[Any]) -> Any:
        assert isinstance(function, Graph)
        return function.within(schema, arguments[0])

    def on_the_loop(_scope: Scope, arguments: Sequence[Any]) -> Any:
        return function(*arguments)

    def in_a_thread(scope: Scope, arguments: Sequence[Any]) -> Any:
        return in_thread(_call_of(scope), partial(function, *arguments))

    if isinstance(function, Graph) and not plain:
        return of_graph
    return on_the_loop if is_async(function) or isinstance(function, Step) else in_a_thread


def _call_of(scope: Scope) -> CallScope:
    while not isinstance(scope, CallScope):
        assert scope.outer is not None
        scope = scope.outer
    return scope


def _said(router: Function) -> tuple[tuple[str, ...], bool]:
    """What a router may return, as far as its type tells; and whether it is one of them."""
    returned = _returned(router)
    if get_origin(returned) is Literal:
        return get_args(returned), True
    if get_origin(returned) in (list, tuple, set, Sequence):
        inner = get_args(returned)[:1]
        if inner and get_origin(inner[0]) is Literal:
            return get_args(inner[0]), False
    return (), False


def _goes_to(function: Function) -> tuple[str, ...] | None:
    """The nodes that a function's Commands may name: None for any, empty if it returns none."""
    returned = _returned(function)
    found: tuple[str, ...] = ()
    for each in get_args(returned) if get_origin(returned) in (Union, UnionType) else [returned]:
        if each is Command:
            return None
        if get_origin(each) is Command and get_origin(get_args(each)[0]) is Literal:
            found += get_args(get_args(each)[0])
    return found


def _returned(function: Function) -> Any:
    call = getattr(function, "__call__", function)  # noqa: B004  # an object's types are its call's
    target = function if inspect.isroutine(function) else call
    try:
        return get_type_hints(target).get("return")
    except (NameError, TypeError, AttributeError):
        return None
