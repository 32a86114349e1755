"""Small LangGraph programs that the tests share."""

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class Talk(TypedDict):
    messages: Annotated[list[str], operator.add]


def config(thread: str = "1", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}, "recursion_limit": 2000}


def talk(steps: int, size: int = 1024) -> StateGraph:
    """One node that says something ``steps`` times."""

    def say(state: Talk) -> dict[str, list[str]]:
        return {"messages": [f"{len(state['messages']):06}".ljust(size, ".")]}

    def go_on(state: Talk) -> str:
        return "say" if len(state["messages"]) < steps else END

    builder = StateGraph(Talk)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", go_on)
    return builder


def fan_out() -> StateGraph:
    """Three nodes side by side, then one."""
    builder = StateGraph(Talk)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda _, name=name: {"messages": [name]})
        builder.add_edge(START, name)
        builder.add_edge(name, "end")
    builder.add_node("end", lambda state: {"messages": ["+".join(state["messages"])]})
    return builder


def asking() -> StateGraph:
    """Asks a human between two nodes."""

    def ask(_: Talk) -> dict[str, list[str]]:
        return {"messages": [f"answer: {interrupt('go on?')}"]}

    builder = StateGraph(Talk)
    builder.add_node("before", lambda _: {"messages": ["before"]})
    builder.add_node("ask", ask)
    builder.add_node("after", lambda _: {"messages": ["after"]})
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    builder.add_edge("ask", "after")
    return builder


def answer(value: str) -> Command:
    return Command(resume=value)
