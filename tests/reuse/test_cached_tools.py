"""Equal calls of pure tools that are answered as before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from accord import Agent, Blackboard, gather, step, tool
from accord.engine.base import Reply, Request, ToolCall
from accord.errors import (
    UsageError,
)
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine
from tests.reuse.cached import (
    Folder,
    Kind,
    an_agent,
    reply,
    result_of,
    saved,
    seconds,
)
from tests.sync import replays

folder = Folder()


@pytest.fixture(autouse=True)
def an_empty_folder() -> None:
    folder.files.clear()
    folder.looks = 0


@tool(pure=True)
def listing(where: str) -> list[str]:
    """Lists a folder."""
    return folder.list()


@tool(pure=True, name="listing", cache=False)
def fresh_listing(where: str) -> list[str]:
    """Lists a folder."""
    return folder.list()


@tool(pure=True, name="listing", cache=lambda arguments, result: bool(result))
def listing_if_there(where: str) -> list[str]:
    """Lists a folder."""
    return folder.list()


@tool(name="listing")
def listing_with_effects(where: str) -> list[str]:
    """Lists a folder."""
    return folder.list()


@tool
def create(name: str) -> str:
    """Makes a file."""
    folder.files.append(name)
    return "made"


def asks_for(name: str, arguments: str) -> Reply:
    wanted = ToolCall("1", name, arguments)
    return reply(text="", tool_calls=(wanted,), finish_reason="tool_calls")


def looks(request: Request) -> Any:
    """Asks for the listing, then says what it was."""
    if request.messages[-1].role != "tool":
        return asks_for("listing", '{"where": "/"}')
    return f"there is {request.messages[-1].content}"


def looker_with(*tools: Any, **options: Any) -> Agent[str]:
    return an_agent(tools=tools, **{"cache": "on", **options})


looker = looker_with(listing)


def looked(agent: Agent[str], engine: Any = None) -> tuple[list[str], Result[Any]]:
    """What it says, then again after a file was made."""

    async def flow() -> list[str]:
        before = await agent("q")
        folder.files.append("new")
        return [before, await agent("q")]

    result = result_of(flow, engine or ScriptedEngine(looks))
    return result.output, result


def test_equal_calls_of_a_pure_tool_are_one_where_that_is_asked_for() -> None:
    told, result = looked(looker)
    assert told == ["there is []"] * 2
    assert (folder.looks, len(saved(result, "tool")), len(saved(result))) == (1, 1, 2)
    assert result.tax.closes


@pytest.mark.parametrize("each", [fresh_listing, listing_if_there, listing_with_effects])
def test_a_tool_that_says_no_is_called_each_time(each: Any) -> None:
    """CAC-10: what the folder holds has changed, and the listing says so."""
    told, result = looked(looker_with(each))
    assert told == ["there is []", 'there is ["new"]']
    assert folder.looks == 2
    assert not saved(result, "tool")


@pytest.mark.parametrize("each", [fresh_listing, listing_if_there])
def test_a_tool_that_says_no_is_called_each_time_in_one_call_of_its_agent_too(each: Any) -> None:
    """CAC-10."""
    steps = [
        ("listing", '{"where": "/"}'),
        ("create", '{"name": "new"}'),
        ("listing", '{"where": "/"}'),
    ]

    def works(request: Request) -> Any:
        done = sum(message.role == "tool" for message in request.messages)
        return asks_for(*steps[done]) if done < len(steps) else request.messages[-1].content

    result = result_of(looker_with(each, create), ScriptedEngine(works), "q")
    assert result.output == '["new"]'


def test_a_tool_that_says_yes_to_a_result_is_not_called_for_it_again() -> None:
    folder.files.append("old")
    told, _ = looked(looker_with(listing_if_there))
    assert told == ['there is ["old"]'] * 2


@pytest.mark.parametrize("options", [{"cache": None}, {"cache": "off"}, {"cache": None, "seed": 1}])
def test_tools_are_called_unless_it_is_asked_for(options: Any) -> None:
    told, result = looked(looker_with(listing, **options))
    assert told == ["there is []", 'there is ["new"]']
    assert not saved(result, "tool")


def test_prompts_that_differ_in_what_a_tool_gave_are_two() -> None:
    """CAC-11: nothing near is taken for the same."""
    engine = ScriptedEngine(looks)
    looked(looker_with(fresh_listing), engine)
    last = [r.messages[-1].content for r in engine.requests if r.messages[-1].role == "tool"]
    assert last == ["[]", '["new"]']


class HandlerA:
    @staticmethod
    def handle(text: str) -> str:
        """Handles it."""
        return KIND.of(1) + text


class HandlerB:
    @staticmethod
    def handle(text: str) -> str:
        """Handles it."""
        return KIND.of(1) + text


KIND = Kind()


def test_tools_of_one_name_and_one_code_have_results_of_their_own() -> None:
    """CAC-5."""

    def handles(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return asks_for("handle", '{"text": "x"}')
        return request.messages[-1].content

    agents = [
        Agent("a", tools=[tool(each.handle, pure=True)], cache="on")
        for each in (HandlerA, HandlerB)
    ]

    async def flow() -> list[str]:
        return [await agent(str(each)) for each in range(2) for agent in agents]

    assert result_of(flow, ScriptedEngine(handles)).output == ["1:x", "2:x", "1:x", "2:x"]


@tool(pure=True)
def load(document: str, tenant: str = "") -> str:
    """Loads it."""
    return f"{document} of {tenant}"


def test_arguments_that_read_alike_in_a_row_are_two_calls() -> None:
    """CAC-7."""

    def loads(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return asks_for("load", request.messages[-1].content)
        return request.messages[-1].content

    agent = Agent("a", tools=[load], cache="on")

    async def flow() -> list[str]:
        one = await agent('{"document": "doc1", "tenant": "acme"}')
        return [one, await agent('{"document": "doc1str:orgstr:acme"}')]

    told = result_of(flow, ScriptedEngine(loads)).output
    assert told == ["doc1 of acme", "doc1str:orgstr:acme of "]


@tool(pure=True)
async def slow_listing(where: str) -> list[str]:
    """Lists a folder."""
    await asyncio.sleep(2)
    return folder.list()


def test_of_equal_calls_of_a_pure_tool_at_once_one_is_made() -> None:
    agent = Agent("a", tools=[slow_listing], cache="on")

    def each_looks(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return asks_for("slow_listing", '{"where": "/"}')
        return "done"

    async def flow() -> list[str]:
        return await gather(agent(str(number)) for number in range(20))

    result = result_of(flow, ScriptedEngine(each_looks))
    assert (folder.looks, seconds(result)) == (1, 2)
    assert len(saved(result, "tool")) == 19
    assert result.tax.closes


@tool(pure=True, name="listing")
def strange_listing(where: str) -> Any:
    """Lists a folder."""
    folder.looks += 1
    return {"sizes": {1: 2}, "names": ("a", "b")}


@tool(pure=True)
async def settled(text: str) -> str:
    """Takes a while."""
    await replays.wait()
    return text.upper()


def test_cut_anywhere_and_resumed_a_run_with_tools_that_wait_comes_to_the_same() -> None:
    def settles(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return asks_for("settled", '{"text": "x"}')
        return request.messages[-1].content

    agent = Agent("a", tools=[settled], cache="on", engine=ScriptedEngine(settles))

    async def flow() -> list[str]:
        parts = await gather(agent(str(number)) for number in range(3))
        await replays.book("parts")
        return [*parts, await agent("0")]

    full = replays.cut_anywhere(flow)
    assert full.value == ["X"] * 4


def test_a_result_that_json_would_change_is_not_kept() -> None:
    told, _ = looked(looker_with(strange_listing))
    assert told[0] == told[1]
    assert folder.looks == 2


@tool(pure=True)
async def read_board() -> Any:
    """Reads what the run has written."""
    return board.read("key")


@tool(pure=True)
async def look_further(where: str) -> str:
    """Reads it, a call further on."""
    return str(await gather(asked_further(where)))


@step(pure=True)
async def asked_further(where: str) -> Any:
    return board.read(where)


board = Blackboard()


@pytest.mark.parametrize(
    ("each", "arguments"), [(read_board, "{}"), (look_further, '{"where": "key"}')]
)
def test_what_a_tool_reads_of_the_run_is_no_result_for_others(each: Any, arguments: str) -> None:
    """It depends on more than its arguments."""

    def reads(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return asks_for(each.name, arguments)
        return request.messages[-1].content

    agent = Agent("a", tools=[each], cache="on")

    async def flow() -> list[str]:
        told: list[str] = []
        for value in ("one", "two"):
            board.write("key", value)
            told.append(await agent("q"))
        return told

    one, two = result_of(flow, ScriptedEngine(reads)).output
    assert ("one" in one, "two" in two) == (True, True)


def test_a_tool_that_fails_is_called_again() -> None:
    @tool(pure=True, name="listing")
    def failing(where: str) -> str:
        """Lists a folder."""
        folder.looks += 1
        raise ValueError("no")

    looked(looker_with(failing))
    assert folder.looks == 2


def test_the_veto_of_a_tool_is_a_bool_or_a_function() -> None:
    no: Any = "no"
    with pytest.raises(UsageError, match="cache is a bool or a function, not 'no'"):
        tool(len, cache=no)
