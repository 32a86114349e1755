"""Agents: prompts, typed replies, bounded repair, tools."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from accord import Agent, Retry, run, tool
from accord.agent.schema import OutputType
from accord.engine.base import Reply, Request, TextDelta, ToolCall, Usage
from accord.engine.wire import body
from accord.errors import (
    AuthenticationError,
    EngineUnavailableError,
    OutputError,
    RateLimitedError,
    RejectedError,
    ToolError,
    UnserializableError,
    UsageError,
)
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine


@dataclass
class Point:
    x: int
    label: str = "origin"


class Record(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(max_length=8)]
    kind: Literal["a", "b"]


class Row(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    points: list[int]


def ask(agent: Agent[Any], *inputs: Any, script: Any) -> tuple[Any, ScriptedEngine]:
    engine = ScriptedEngine(script)
    return run(agent, *inputs, engine=engine, log="memory").output, engine


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (str, "plain {text}", "plain {text}"),
        (int, "3", 3),
        (list[str], '["a", "b"]', ["a", "b"]),
        (Point, '{"x": 1, "label": "p"}', Point(1, "p")),
        (Point, '```json\n{"x": 1}\n```', Point(1)),
        (Record, '{"name": "n", "kind": "a"}', Record("n", "a")),
        (Row, '{"id": 1}', {"id": 1}),
        (Model, '{"points": [1, 2]}', Model(points=[1, 2])),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (list[Model], '[{"points": [1]}]', [Model(points=[1])]),
    ],
)
def test_a_reply_becomes_the_declared_type(declared: Any, text: str, value: Any) -> None:
    assert ask(Agent("a", output=declared), "go", script=text)[0] == value


def test_the_schema_goes_to_the_engine_and_its_short_form_into_the_prompt() -> None:
    _, engine = ask(Agent("a", "Do.", output=Point), "go", script='{"x": 1}')
    request = engine.requests[0]
    assert request.schema is not None
    sent = body(request, "model", stream=False)
    assert "json_schema" in json.dumps(sent["response_format"])
    assert request.messages[0].content == 'Do.\nReply with JSON: {"x": integer, "label": string}'


def test_a_type_that_contains_itself_has_a_schema() -> None:
    class Tree(msgspec.Struct):
        label: str
        children: list[Any]

    assert "children" in OutputType(Tree).instruction()


def test_a_type_without_a_schema_is_refused_when_the_agent_is_made() -> None:
    with pytest.raises(UsageError, match="has no JSON schema"):
        Agent("a", output=type(json))


def test_a_wrong_reply_is_sent_back_with_the_error_and_history_only_grows() -> None:
    value, engine = ask(Agent("a", output=Point), "go", script=['{"x": "one"}', '{"x": 1}'])
    assert value == Point(1)
    first, second = (request.messages for request in engine.requests)
    assert second[: len(first)] == first
    assert [message.role for message in second[len(first) :]] == ["assistant", "user"]
    assert "Expected `int`, got `str` - at `$.x`" in second[-1].content


def test_repair_is_bounded_and_the_error_shows_schema_and_text() -> None:
    with pytest.raises(OutputError) as caught:
        ask(Agent("a", output=Point, repairs=2), "go", script="nonsense")
    assert caught.value.text == "nonsense"
    assert caught.value.schema is not None
    assert "in 3 attempts" in str(caught.value)
    assert '"properties"' in str(caught.value)
    assert "nonsense" in str(caught.value)


def test_a_reply_cut_at_its_limit_says_so() -> None:
    cut = Reply(text='{"x": ', finish_reason="length")
    with pytest.raises(OutputError, match=r"cut off at 7 tokens[\s\S]*Raise max_tokens"):
        ask(Agent("a", output=Point, max_tokens=7, repairs=1), "go", script=cut)


def test_failed_turns_are_counted() -> None:
    """STR-11: usage of a reply that had to be sent back is in the sum."""
    usage = Usage(prompt=10, completion=5)
    replies = [Reply(text="bad", usage=usage), Reply(text='{"x": 1}', usage=usage)]
    result = run(Agent("a", output=Point), "go", engine=ScriptedEngine(replies), log=MemoryStore())
    assert (result.usage.prompt, result.usage.completion) == (20, 10)


def test_inputs_reach_the_prompt_as_text_in_the_fewest_tokens() -> None:
    """TOK-11, TOK-15: no escapes, no class paths, no framework metadata."""
    agent = Agent("a", "翻译。")
    _, engine = ask(agent, Point(1, "日本語🌟"), "plain", script="ok")
    request = engine.requests[0]
    assert request.messages[1].content == "x: 1\nlabel: 日本語🌟\n\nplain"
    sent = body(request, "model", stream=False)
    assert set(sent) <= {"model", "messages", "max_tokens", "stream"}
    for message in sent["messages"]:
        assert set(message) == {"role", "content"}


def test_an_input_that_is_no_text_is_refused() -> None:
    async def flow() -> str:
        return await Agent("a")(object())

    with pytest.raises(UnserializableError, match="the input of agent a"):
        run(flow, engine=ScriptedEngine(), log="memory")


@tool(pure=True)
def search(query: str, limit: int = 3) -> dict[str, str]:
    """在文档中搜索。"""
    return {"r": f"日本語テキスト🌟 {query} {limit}"}


@tool
async def broken(query: str) -> str:
    """Never works."""
    raise RuntimeError(f"no {query}")


def call(name: str, arguments: str, call_id: str = "c1") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def test_a_tools_schema_comes_from_its_hints_and_docstring() -> None:
    assert search.spec.name == "search"
    assert search.spec.description == "在文档中搜索。"
    assert search.spec.parameters["properties"]["limit"]["type"] == "integer"
    assert search.spec.parameters["required"] == ["query"]


def test_tools_run_and_every_call_is_answered_once() -> None:
    asked = [call("search", '{"query":"a"}', "1"), call("broken", '{"query":"b"}', "2")]
    agent = Agent("a", tools=[search, broken])
    value, engine = ask(agent, "go", script=[asked, "done"])
    assert value == "done"
    answers = [m for m in engine.requests[1].messages if m.role == "tool"]
    assert [answer.tool_call_id for answer in answers] == ["1", "2"]
    assert answers[0].content == "r: 日本語テキスト🌟 a 3"
    assert answers[1].content == "error: RuntimeError: no b"
    wire = json.dumps(body(engine.requests[1], "m", stream=False), ensure_ascii=False)
    assert "\\u65e5" not in wire
    assert "在文档中搜索" in wire


def test_malformed_arguments_are_asked_for_again_while_valid_siblings_run() -> None:
    """STR-11."""
    asked = [call("search", '{"query": "a",}', "1"), call("search", '{"query":"b"}', "2")]
    agent = Agent("a", tools=[search])
    value, engine = ask(agent, "go", script=[asked, [call("search", '{"query":"a"}')], "done"])
    assert value == "done"
    history = engine.requests[1].messages
    assert [m.arguments for m in history[-3].tool_calls] == ["{}", '{"query":"b"}']
    assert history[-2].content.startswith("error: invalid arguments")
    assert "b 3" in history[-1].content


def test_corrections_of_tool_calls_are_bounded() -> None:
    agent = Agent("a", tools=[search], repairs=2)
    with pytest.raises(ToolError, match="no tool 'find'"):
        ask(agent, "go", script=lambda _: [call("find", "{}")])


def test_tool_rounds_are_bounded() -> None:
    agent = Agent("a", tools=[search], tool_rounds=3)
    with pytest.raises(ToolError, match="more than 3 replies"):
        ask(agent, "go", script=lambda _: [call("search", '{"query":"a"}')])


def test_definitions_are_checked_where_they_are_made() -> None:
    def plain() -> None: ...

    for make, message in (
        (lambda: Agent(""), "needs a name"),
        (lambda: Agent("a\ud800"), "needs a name"),
        (lambda: Agent("a", max_tokens=0), "max_tokens must be at least 1"),
        (lambda: Agent("a", tools=[plain]), "put @tool on the function"),  # pyright: ignore[reportArgumentType]
        (lambda: Agent("a", tools=[search, search]), "two tools of one name"),
        (lambda: Retry(attempts=0), "at least one attempt"),
    ):
        with pytest.raises(UsageError, match=message):
            make()
    with pytest.raises(AttributeError):
        Agent("a").name = "b"  # pyright: ignore[reportAttributeAccessIssue]


def test_attempts_are_bounded_by_one_owner() -> None:
    """RTL-3: an engine that always refuses is asked as often as was said, and no more."""
    engine = ScriptedEngine(lambda _: RateLimitedError("no", retry_after_s=0.0))
    agent = Agent("a", retry=Retry(attempts=5, base_s=0.0))
    with pytest.raises(RateLimitedError):
        run(agent, "go", engine=engine, log="memory")
    assert len(engine.requests) == 5


@pytest.mark.parametrize("error", [AuthenticationError("401"), RejectedError("400")])
def test_a_refusal_is_final(error: Exception) -> None:
    """RTL-5."""
    engine = ScriptedEngine(lambda _: error)
    with pytest.raises(type(error)):
        run(Agent("a"), "go", engine=engine, log="memory")
    assert len(engine.requests) == 1


def test_an_engine_that_asks_for_too_much_patience_is_given_up() -> None:
    engine = ScriptedEngine(lambda _: RateLimitedError("tomorrow", retry_after_s=86400))
    with pytest.raises(RateLimitedError):
        run(Agent("a"), "go", engine=engine, log="memory")
    assert len(engine.requests) == 1


def test_every_billed_attempt_is_counted_under_one_call() -> None:
    """USG-14: what a broken stream had sent was paid for."""

    class Breaks(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
            broken = len(self.requests) == 0
            async for piece in super().generate(request):
                yield piece
                if broken:
                    raise EngineUnavailableError("cut")

    engine = Breaks(Reply(text="word " * 50, usage=Usage(prompt=9, completion=50)), pieces=2)
    result = run(Agent("a", retry=Retry(base_s=0.0)), "go", engine=engine, log=MemoryStore())
    agent = result.tax.agents["a"]
    assert agent.calls == agent.requests == 1
    assert agent.completion > 50
    assert result.tax.tokens.estimated
    assert result.tax.closes
