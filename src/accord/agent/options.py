"""What an agent may be told beside its name and its instructions, and whether that can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from accord.agent.context import RECALL, ContextSpec
from accord.agent.ending import Ending
from accord.agent.reading import Visibility, declared
from accord.agent.retry import Retry
from accord.agent.tool import Tool
from accord.engine.base import Engine
from accord.errors import UsageError
from accord.log.events import Reducer
from accord.reuse.results import Mode, checked
from accord.tokens.summary import SUMMARY_TOKENS

if TYPE_CHECKING:
    from accord.agent.agent import Agent
    from accord.comm.memory import Memory


class AgentOptions(TypedDict, total=False):
    """What an :class:`Agent` takes beside its name, its instructions and its type of answer."""

    tools: Sequence[Tool[..., Any]]
    model: str | None
    max_tokens: int
    temperature: float | None
    seed: int | None
    stop: Sequence[str]
    timeout_s: float | None
    retry: Retry | None
    repairs: int
    tool_rounds: int
    result_tokens: int
    loop_limit: int
    engine: Engine | None
    coordination: bool
    extra: Mapping[str, Any] | None
    priority: int | None
    deadline_s: float | None
    budget: int | None
    cheaper: str | None
    shares: str | Iterable[str]
    reads: str | Iterable[str] | Mapping[str, Visibility]
    sees: Visibility | None
    writes: str | Iterable[str] | Mapping[str, Reducer]
    expected_calls: int | None
    summary_tokens: int
    summariser: Agent[str] | None
    memory: Memory | None
    memory_items: int
    ending: Ending | None
    guard: Callable[..., Any] | None
    cache: Mode | None
    speculate: bool


DEFAULTS: dict[str, Any] = {
    "tools": (),
    "model": None,
    "max_tokens": 1024,
    "temperature": None,
    "seed": None,
    "stop": (),
    "timeout_s": None,
    "retry": None,
    "repairs": 2,
    "tool_rounds": 8,
    "result_tokens": 4000,
    "loop_limit": 3,
    "engine": None,
    "coordination": False,
    "extra": None,
    "priority": None,
    "deadline_s": None,
    "budget": None,
    "cheaper": None,
    "summariser": None,
    "memory": None,
    "ending": None,
    "guard": None,
    "cache": None,
    "speculate": False,
}
"""Of the options that are an agent's fields as they are."""
FIELDS = (*DEFAULTS, "spec", "writes")
_SEEN = ("shares", "reads", "sees", "expected_calls", "summary_tokens", "summariser", "memory")
_NOTHING_SEEN = ContextSpec()


def spec_of(who: str, options: AgentOptions) -> ContextSpec:
    """What the agent sees."""
    if options.keys().isdisjoint(_SEEN):
        return _NOTHING_SEEN  # one for all: agents come by the thousand
    reads, memory = options.get("reads", ()), options.get("memory")
    sees = options.get("sees") or ("diff" if reads else "nothing")
    declared("*", sees, who)
    if memory is not None and not hasattr(memory, "search"):
        raise UsageError(f"{who}: memory is an accord Memory, not {memory!r}")
    return ContextSpec(
        shares=declared(options.get("shares", ()), "full", who),
        reads=declared(reads, sees, who),
        sees=sees,
        expected_calls=options.get("expected_calls"),
        summary_tokens=options.get("summary_tokens", SUMMARY_TOKENS),
        writes_summaries=options.get("summariser") is not None,
        memory=memory.name if memory is not None else "",
        memory_items=options.get("memory_items", 5),
    )


_POSITIVE = (
    "max_tokens",
    "budget",
    "result_tokens",
    "loop_limit",
    "expected_calls",
    "summary_tokens",
    "memory_items",
)
_NOT_NEGATIVE = ("repairs", "tool_rounds")


def check(name: Any, options: AgentOptions) -> None:
    """Raise ``UsageError`` for what can be no agent, or none that does anything."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise UsageError(f"an agent needs a name of printable text, not {name!r}")
    who = f"agent {name!r}"
    given: dict[str, Any] = {**options}
    unknown = given.keys() - AgentOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(AgentOptions.__annotations__)
        raise UsageError(f"{who}: there is no option {min(unknown)!r}; there are {known}")
    for least, names in ((1, _POSITIVE), (0, _NOT_NEGATIVE)):
        for each in names:
            if given.get(each) is not None and given[each] < least:
                raise UsageError(f"{who}: {each} must be at least {least}, not {given[each]!r}")
    _check_terms(who, given)
    tools: Sequence[Any] = options.get("tools", ())
    for tool in tools:
        if not isinstance(tool, Tool):
            raise UsageError(f"{who}: {tool!r} is not a tool; put @tool on the function")
    names_of_tools = sorted(tool.name for tool in tools)
    if RECALL in names_of_tools:
        raise UsageError(f"{who}: {RECALL} is the tool that opens handles; name yours otherwise")
    if len(set(names_of_tools)) < len(names_of_tools):
        raise UsageError(f"{who}: two tools of one name in {names_of_tools}")


def _check_terms(who: str, given: Mapping[str, Any]) -> None:
    if given.get("cache") is not None:
        checked(given["cache"], who)
    if type(given.get("speculate", False)) is not bool:
        raise UsageError(f"{who}: speculate is True or False, not {given['speculate']!r}")
    if not (given.get("priority") is None or type(given["priority"]) is int):
        raise UsageError(f"{who}: priority is a whole number, not {given['priority']!r}")
    if given.get("deadline_s") is not None and not 0 < given["deadline_s"] < 1e9:
        raise UsageError(f"{who}: deadline_s is a time above 0, not {given['deadline_s']!r}")
    if given.get("budget") is not None and type(given["budget"]) is not int:
        raise UsageError(f"{who}: budget is a whole number of tokens, not {given['budget']!r}")
    if given.get("cheaper") and not given.get("budget"):
        raise UsageError(f"{who}: a cheaper model is for when a budget runs out: give a budget")
