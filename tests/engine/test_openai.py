"""The OpenAI-compatible engine against a server that does what a test says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accord.engine.base import (
    Message,
    Reply,
    Request,
    TextDelta,
    Timings,
    ToolCall,
    ToolSpec,
    Usage,
)
from accord.engine.client import ClientEngine
from accord.engine.failures import refused_field, retry_after_s
from accord.engine.http import HttpClient
from accord.engine.local import LocalEngine
from accord.engine.openai import OpenAIEngine
from accord.engine.select import select
from accord.engine.wire import ReplyFold, body, encode, is_strict
from accord.errors import (
    AuthenticationError,
    ContextTooLongError,
    EngineError,
    EngineProtocolError,
    EngineTimeoutError,
    EngineUnavailableError,
    ModelNotFoundError,
    RateLimitedError,
    RejectedError,
    UsageError,
)
from accord.testing.stub import (
    Answer,
    Script,
    StubServer,
    disconnect,
    error,
    events,
    hang,
    raw,
    text,
)

KEY = "sk-test-do-not-print"
HELLO = Request(messages=(Message("user", "hello"),), model="m")


async def collect(engine: Any, request: Request = HELLO) -> tuple[list[str], Reply]:
    """The pieces of one generation, and its reply, which must be last and only one."""
    got = [piece async for piece in engine.generate(request)]
    *deltas, reply = got
    assert isinstance(reply, Reply)
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    return [delta.text for delta in deltas], reply


async def once(engine: Any, request: Request = HELLO) -> Reply:
    try:
        return (await collect(engine, request))[1]
    finally:
        await engine.close()


def answered(*script: Script, request: Request = HELLO, **options: Any) -> tuple[list[str], Reply]:
    async def main() -> tuple[list[str], Reply]:
        async with StubServer() as stub:
            stub.script(*script)
            engine = OpenAIEngine(stub.url, api_key=KEY, **options)
            try:
                return await collect(engine, request)
            finally:
                await engine.close()
                assert len(stub.requests) == len(script), "an engine never retries"

    return asyncio.run(main())


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def end(reason: str = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **fields}


# The reply ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_streamed_and_whole_answers_give_the_same_reply(stream: bool) -> None:
    calls = (ToolCall("a", "read", '{"path":"x"}'), ToolCall("b", "read", '{"path":"y"}'))
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    pieces, reply = answered(
        text("Hé", "llo\u2028🌟", usage=usage, calls=calls, finish_reason="tool_calls"),
        stream=stream,
    )
    assert "".join(pieces) == reply.text == "Héllo\u2028🌟"
    assert len(pieces) == (2 if stream else 1)
    assert reply == Reply(
        text="Héllo\u2028🌟",
        tool_calls=calls,
        finish_reason="tool_calls",
        usage=Usage(prompt=7, completion=2, cached=4),
        model="stub",
        id="chatcmpl-stub",
    )


def test_usage_on_a_chunk_with_choices_counts() -> None:
    """STR-1."""
    usage = {
        "prompt_tokens": 16111,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 15872},
    }
    last = {"choices": [{"index": 0, "delta": {}}], "usage": usage}
    _, reply = answered(events(delta(content="ok"), end(), last))
    assert reply.usage == Usage(prompt=16111, completion=2, cached=15872)


def test_the_last_usage_wins_and_no_usage_is_none() -> None:
    first = {"prompt_tokens": 5, "completion_tokens": 1}
    _, reply = answered(
        events(
            {**delta(content="a"), "usage": first},
            {**end(), "usage": {**first, "completion_tokens": 2}},
            {"choices": [], "usage": None},
        )
    )
    assert reply.usage == Usage(prompt=5, completion=2)
    _, reply = answered(events(delta(content="a"), end()))
    assert reply.usage is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"timings": {"prompt_ms": 223.0, "predicted_ms": 59.0}},
            Timings(prefill_s=0.223, decode_s=0.059),
        ),
        (
            {
                "metrics": {
                    "queue_time_ms": 12.0,
                    "time_to_first_token_ms": 85.0,
                    "generation_time_ms": 1240.0,
                }
            },
            Timings(queue_s=0.012, prefill_s=0.085, decode_s=1.24),
        ),
        ({"timings": {"prompt_ms": "fast", "predicted_ms": -1}}, None),
        ({}, None),
    ],
)
def test_timings_are_the_engines_own(fields: dict[str, Any], expected: Timings | None) -> None:
    _, reply = answered(events(delta(content="a"), end(**fields)))
    assert reply.timings == expected


def test_reasoning_is_not_text() -> None:
    pieces, reply = answered(
        events(delta(reasoning_content="hmm", content=None), delta(content="yes"), end())
    )
    assert pieces == ["yes"]
    assert reply.text == "yes"


def piece(index: int | None, id_: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": id_, "function": function}])


A, B = '{"path":"a.rs"}', '{"path":"b.rs"}'


@pytest.mark.parametrize(
    ("chunks", "ids"),
    [
        pytest.param(
            [piece(0, "x", "read", ""), piece(0, None, None, A), piece(1, "y", "read", B)],
            ("x", "y"),
            id="by the protocol",
        ),
        pytest.param(
            [piece(0, "x", "read", A[:6]), piece(0, "x", "", A[6:]), piece(0, "y", "read", B)],
            ("x", "y"),
            id="all at index 0, id on each piece",
        ),
        pytest.param(
            [piece(0, None, "read", A[:6]), piece(0, None, None, A[6:]), piece(0, None, "read", B)],
            ("call_0", "call_1"),
            id="all at index 0, no ids",
        ),
        pytest.param(
            [piece(None, "", "read", A), piece(None, "", "read", B)],
            ("call_0", "call_1"),
            id="no index, empty ids",
        ),
        pytest.param(
            [piece(0, "call_0", "read", A), piece(1, None, "read", B)],
            ("call_0", "call_1"),
            id="a made-up id is never one that was given",
        ),
        pytest.param(
            [
                piece(0, "x", "read", A[:6]),
                piece(1, "y", "read", B[:6]),
                piece(0, None, None, A[6:]),
                piece(1, None, None, B[6:]),
            ],
            ("x", "y"),
            id="interleaved",
        ),
    ],
)
def test_parallel_tool_calls_come_apart(chunks: list[dict[str, Any]], ids: tuple[str, str]) -> None:
    """STR-9."""
    _, reply = answered(events(*chunks, end("tool_calls")))
    assert reply.tool_calls == (ToolCall(ids[0], "read", A), ToolCall(ids[1], "read", B))
    assert reply.finish_reason == "tool_calls"


def test_a_tool_call_without_arguments_has_an_empty_object() -> None:
    _, reply = answered(events(piece(0, "x", "now", ""), end("tool_calls")))
    assert reply.tool_calls == (ToolCall("x", "now", "{}"),)


def test_a_server_that_ignores_stream_is_understood() -> None:
    whole = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    pieces, _ = answered(
        raw(json.dumps(whole).encode(), headers={"content-type": "application/json"})
    )
    assert pieces == ["hi"]


def test_bytes_may_arrive_in_any_pieces() -> None:
    line = f"data: {json.dumps(delta(content='日🌟'), ensure_ascii=False)}\n\n".encode()
    rest = f"data: {json.dumps(end())}\n\ndata: [DONE]\n\n".encode()
    _, reply = answered(
        raw(*(bytes([b]) for b in line), rest, headers={"content-type": "text/event-stream"})
    )
    assert reply.text == "日🌟"


# The request ----------------------------------------------------------------------------------


def sent(request: Request, **options: Any) -> tuple[bytes, dict[str, Any]]:
    payload = body(request, "default-model", options.get("stream", True))
    wire = encode(payload)
    return wire, json.loads(wire)


def test_only_the_protocols_fields_reach_the_wire() -> None:
    call = ToolCall("c1", "read", "{}")
    messages = (
        Message("system", "be brief", origin="instructions"),
        Message("assistant", "", origin="history", tool_calls=(call,)),
        Message("tool", "done", tool_call_id="c1"),
    )
    _, wire = sent(Request(messages=messages, agent="planner"))
    assert wire == {
        "model": "default-model",
        "messages": [
            {"role": "system", "content": "be brief"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "read", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "content": "done", "tool_call_id": "c1"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_text_is_real_utf8_and_lone_surrogates_do_not_crash() -> None:
    """CKP-6: on the wire each lone surrogate becomes U+FFFD."""
    tool = ToolSpec("t", "天気を調べる", {"type": "object"})
    request = Request(messages=(Message("user", "日本語テキスト🌟\x00"),), tools=(tool,))
    wire, _ = sent(request)
    assert "日本語テキスト🌟".encode() in wire
    assert "天気を調べる".encode() in wire
    assert b"\\u65e5" not in wire
    wire, decoded = sent(Request(messages=(Message("user", "a\ud800b\ud83d\ude00"),)))
    assert decoded["messages"][0]["content"] == "a\ufffdb😀"


def test_tools_are_sorted_and_extra_is_merged_last() -> None:
    tools = (ToolSpec("b", "", {}), ToolSpec("a", "", {}))
    request = Request(
        messages=(), tools=tools, temperature=0.0, extra={"priority": 3, "temperature": 1}
    )
    _, wire = sent(request)
    assert [tool["function"]["name"] for tool in wire["tools"]] == ["a", "b"]
    assert wire["priority"] == 3
    assert wire["temperature"] == 1


def test_strict_is_claimed_only_where_it_holds() -> None:
    inner = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": inner}},
        "required": ["items"],
        "additionalProperties": False,
    }
    _, wire = sent(Request(messages=(), schema=schema))
    assert wire["response_format"]["json_schema"] == {
        "name": "output",
        "schema": schema,
        "strict": True,
    }
    assert not is_strict({**schema, "required": []})
    assert not is_strict({**schema, "properties": {"items": {**inner, "required": []}}})
    assert not is_strict({k: v for k, v in inner.items() if k != "additionalProperties"})


def test_a_body_that_is_no_json_is_refused_here() -> None:
    with pytest.raises(RejectedError, match="cannot be written as JSON"):
        encode({"temperature": float("nan")})


def test_stream_options_are_dropped_once_where_they_are_refused() -> None:
    async def main() -> None:
        async with StubServer() as stub:
            stub.script(error(400, "Unrecognized request argument: stream_options"))
            engine = OpenAIEngine(stub.url)
            with pytest.warns(UserWarning, match="'stream_options'"):
                await collect(engine)
            await collect(engine)
            await engine.close()
            assert ["stream_options" in r.body for r in stub.requests] == [True, False, False]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"error": {"message": "Unknown parameter: 'priority'.", "param": None}}, "priority"),
        ({"error": {"message": "no", "param": "service_tier"}}, "service_tier"),
        ({"detail": [{"loc": ["body", "priority"], "msg": "Extra", "input": 1}]}, "priority"),
        ({"message": "[{'type': 'extra_forbidden', 'loc': ('body', 'priority')}]"}, "priority"),
        ({"message": "Got priority 5 but Priority scheduling is not enabled."}, "priority"),
        ({"error": {"message": "Invalid prompt: unknown, the priority is not ours"}}, None),
        ({"detail": [{"loc": ["body", "messages"], "input": "of high priority"}]}, None),
        ("priority", None),
    ],
)
def test_a_field_is_refused_by_name_and_not_by_what_is_quoted(said: Any, field: str) -> None:
    assert refused_field(json.dumps(said), ("priority", "service_tier")) == field


def test_connections_are_kept_alive_and_the_key_is_sent() -> None:
    async def main() -> None:
        async with StubServer() as stub:
            engine = OpenAIEngine(stub.url, api_key=KEY)
            for _ in range(3):
                await collect(engine)
            await engine.close()
            assert stub.connections == 1
            assert stub.requests[0].headers["authorization"] == f"Bearer {KEY}"

    asyncio.run(main())


def test_a_connection_that_llama_cpp_will_close_is_not_used_again() -> None:
    stream = events(delta(content="a"), end())
    llama = Answer(parts=stream.parts, headers={**stream.headers, "server": "llama.cpp"})

    async def main() -> None:
        async with StubServer() as stub:
            stub.script(llama, llama)
            engine = OpenAIEngine(stub.url)
            await collect(engine)
            await collect(engine)
            await engine.close()
            assert stub.connections == 2

    asyncio.run(main())


def test_one_engine_serves_several_event_loops() -> None:
    with StubServer() as stub:
        engine = OpenAIEngine(stub.url)
        asyncio.run(once(engine))
        asyncio.run(once(engine))
        assert len(stub.requests) == 2


# Failures -------------------------------------------------------------------------------------

SSE = {"content-type": "text/event-stream"}


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        (error(401, f"bad key {KEY}"), AuthenticationError, "OPENAI_API_KEY"),
        (error(403, "no"), AuthenticationError, "403"),
        (error(404, "no such model"), ModelNotFoundError, "'m'"),
        (error(400, "nope"), RejectedError, "nope"),
        (
            error(400, "request (5031 tokens) exceeds", type="exceed_context_size_error"),
            ContextTooLongError,
            "5031",
        ),
        (error(400, "too long", code="context_length_exceeded"), ContextTooLongError, "too long"),
        (
            error(400, "This model's maximum context length is 2048 tokens."),
            ContextTooLongError,
            "2048",
        ),
        (error(413, "body"), RejectedError, "413"),
        (error(422, "field"), RejectedError, "field"),
        (error(429, "slow down", headers={"retry-after": "7"}), RateLimitedError, "wait 7 s"),
        (error(429, "no money", code="insufficient_quota"), RejectedError, "quota"),
        (error(500, "boom"), EngineUnavailableError, "boom"),
        (error(503, "busy", headers={"retry-after-ms": "1500"}), EngineUnavailableError, "1.5 s"),
        (
            raw(b"<html>hi</html>", headers={"content-type": "text/html"}),
            EngineProtocolError,
            "<html>",
        ),
        (raw(b"garbage", headers=SSE), EngineProtocolError, "garbage"),
        (raw(f"you sent {KEY}".encode(), headers=SSE), EngineProtocolError, r"you sent \*\*\*"),
        (error(200, f"denied {KEY}"), EngineProtocolError, r"denied \*\*\*"),
        (raw(b"data: {nope\n\n", headers=SSE), EngineProtocolError, "nope"),
        (raw(b"", status=301, headers={"location": "http://x/"}), EngineProtocolError, "http://x/"),
        (error(200, "inside"), EngineProtocolError, "inside"),
        (error(200, "later", code=503), EngineUnavailableError, "later"),
        (events({"choices": []}), EngineProtocolError, "without choices"),
        (
            events(delta(content="a"), {"error": {"message": "oom", "type": "server_error"}}),
            EngineUnavailableError,
            "oom",
        ),
        (
            events({"error": {"message": "x", "type": "exceed_context_size_error", "code": 400}}),
            ContextTooLongError,
            "x",
        ),
        (raw(b"HTTP?\r\n\r\n", headers={}), EngineProtocolError, "no chat completion"),
        (disconnect(), EngineUnavailableError, "closed the connection|failed"),
        (text("a", "b", ending="disconnect"), EngineUnavailableError, "closed|failed"),
        (events(delta(content="a"), done=False), EngineUnavailableError, "before the reply"),
    ],
)
def test_each_failure_has_its_class_and_says_where(
    script: Script, kind: type[EngineError], says: str
) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        answered(script)
    assert type(caught.value) is kind
    assert "127.0.0.1" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_cut_after_the_finish_reason_loses_nothing() -> None:
    _, reply = answered(events(delta(content="a"), end(), done=False, ending="disconnect"))
    assert reply.text == "a"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "2", "retry-after-ms": "300"}, 0.3),
        (
            {
                "retry-after": "Wed, 21 Oct 2015 07:28:30 GMT",
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_in_each_of_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


def test_a_server_that_is_not_there_is_named_with_what_to_do() -> None:
    async def main() -> None:
        engine = OpenAIEngine("http://127.0.0.1:9/v1")
        with pytest.raises(EngineUnavailableError, match=r"OPENAI_BASE_URL.*--engine local"):
            await engine.start()
        with pytest.raises(EngineUnavailableError, match=r"127.0.0.1:9"):
            await collect(engine)

    asyncio.run(main())


@pytest.mark.parametrize("script", [hang(), text("a", ending="hang")])
def test_silence_is_a_timeout(script: Script) -> None:
    with pytest.raises(EngineTimeoutError, match="did not answer in time"):
        answered(script, read_timeout_s=0.1)


def test_closing_early_closes_the_connection() -> None:
    async def main() -> None:
        async with StubServer() as stub:
            stub.script(text("a", ending="hang"))
            engine = OpenAIEngine(stub.url)
            async with aclosing(engine.generate(HELLO)) as pieces:
                assert await anext(pieces) == TextDelta("a")
            await asyncio.to_thread(stub.wait_until, lambda s: bool(s.aborts), timeout_s=1)
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("script", [hang(), text("a", ending="hang")])
def test_cancellation_closes_the_connection(script: Script) -> None:
    """CAN-5: before the first token, and in the middle of a reply."""

    async def main() -> None:
        async with StubServer() as stub:
            stub.script(script)
            engine = OpenAIEngine(stub.url)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(collect(engine))
                await asyncio.to_thread(stub.wait_until, lambda s: bool(s.requests))
                task.cancel()
            assert task.cancelled()
            await asyncio.to_thread(stub.wait_until, lambda s: bool(s.aborts), timeout_s=1)
            await engine.close()

    asyncio.run(main())


# Capabilities ---------------------------------------------------------------------------------


def started(engine_of: Any = OpenAIEngine, **server: Any) -> tuple[Any, StubServer]:
    async def main() -> tuple[Any, StubServer]:
        async with StubServer(**server) as stub:
            engine = engine_of(stub.url)
            found = await engine.start()
            assert await engine.start() is found
            counted = await found.tokenizer("hello world") if found.tokenizer else None
            await engine.close()
            return (found, counted), stub

    return asyncio.run(main())


def json_answer(payload: Any) -> Answer:
    return raw(json.dumps(payload).encode(), headers={"content-type": "application/json"})


def test_llama_cpp_tells_slots_window_and_tokens() -> None:
    entry = {"id": "smol", "owned_by": "llamacpp", "meta": {"n_ctx": 512, "n_ctx_train": 8192}}
    props = {"total_slots": 2, "default_generation_settings": {"n_ctx": 2048}}
    routes = {"/props": json_answer(props), "/tokenize": json_answer({"tokens": [1, 2]})}
    (found, counted), _ = started(models=[entry], routes=routes)
    assert (found.model, found.concurrency, found.window) == ("smol", 2, 2048)
    assert (found.kv_tokens, found.prefix_cache, counted) == (4096, True, 2)


def test_vllm_tells_window_kv_and_tokens() -> None:
    entry = {"id": "smol", "owned_by": "vllm", "max_model_len": 4096}
    metrics = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="200"} 1.0\n'
    routes = {"/metrics": raw(metrics), "/tokenize": json_answer({"count": 3, "tokens": [1, 2, 3]})}
    (found, counted), stub = started(models=[entry], routes=routes)
    assert (found.window, found.kv_tokens, counted) == (4096, 3200, 3)
    asked = next(r.body for r in stub.other_requests if r.path == "/tokenize")
    assert (asked["model"], asked["prompt"]) == ("smol", "a")


def test_a_hosted_api_needs_none_of_it() -> None:
    (found, counted), stub = started(models=["gpt-a", "gpt-b"])
    assert (found.model, found.window, found.concurrency, counted) == ("gpt-a", None, None, None)
    assert [r.path for r in stub.other_requests] == ["/v1/models"]


def test_a_server_without_models_is_no_failure() -> None:
    (found, _), _ = started(lambda url: OpenAIEngine(url, model="m", concurrency=3), models=None)
    assert (found.model, found.concurrency) == ("m", 3)


def test_an_unknown_model_is_told_which_are_served() -> None:
    async def main() -> None:
        async with StubServer(models=["one", "two"]) as stub:
            stub.script(error(404, "model not found"))
            engine = OpenAIEngine(stub.url, model="three")
            await engine.start()
            with pytest.raises(ModelNotFoundError, match=r"'three'.*one, two"):
                await collect(engine, Request(messages=()))
            await engine.close()

    asyncio.run(main())


# Where to --------------------------------------------------------------------------------------


def test_the_name_holds_no_secret() -> None:
    engine = OpenAIEngine("https://user:pass@host:8000/v1/?key=k", api_key=KEY)
    assert engine.name == "https://host:8000/v1"
    assert OpenAIEngine("http://host:8000").name == "http://host:8000/v1"


@pytest.mark.parametrize("url", ["", "host:8000", "ftp://x/v1", "http://", "http://h:x/v1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"http://host:port/v1"):
        OpenAIEngine(url)


def test_a_key_that_is_none_is_refused_without_printing_it() -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        OpenAIEngine("http://h", api_key="sk-ключ")
    assert "sk-" not in str(caught.value)


def test_select_takes_words_paths_and_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select(None).name == "local"
    assert isinstance(select("local:/tmp/x.gguf"), LocalEngine)
    assert select("http://h:1/v1").name == "http://h:1/v1"
    with pytest.raises(UsageError, match=r"'gpt-5'.*local:PATH"):
        select("gpt-5")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h:2/v1")
    assert select(None).name == "http://h:2/v1"


def test_a_local_models_name_finds_it_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert select("local:models/x.gguf").name == f"local:{tmp_path}/models/x.gguf"
    assert select("local:~/x.gguf").name == f"local:{Path.home()}/x.gguf"


@pytest.mark.parametrize("spec", ["local", "local:/tmp/x.gguf", None])
def test_a_model_that_the_local_engine_would_ignore_is_refused(spec: str | None) -> None:
    with pytest.raises(UsageError, match=r"'big'.*local:PATH"):
        select(spec, model="big")


def test_the_environments_proxy_is_used_but_never_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def through(stub: StubServer, url: str) -> int:
        client = HttpClient(url)
        answer = await client.fetch("GET", url + "/x", headers={})
        await client.close()
        return answer.status

    with StubServer() as proxy, StubServer() as direct:
        where = proxy.url.removesuffix("/v1").replace("://", "://me:secret@")
        monkeypatch.setenv("http_proxy", where)
        monkeypatch.setenv("no_proxy", "")
        assert asyncio.run(through(proxy, "http://engine.invalid")) == 404
        assert proxy.other_requests[0].path == "http://engine.invalid/x"
        assert proxy.other_requests[0].headers["proxy-authorization"].startswith("Basic ")
        asyncio.run(through(direct, direct.url))
        assert len(proxy.other_requests) == 1


def test_the_client_library_is_imported_late() -> None:
    code = (
        "import sys, accord.engine.openai, accord.engine.local; print('httpcore2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


# A client of the caller's -----------------------------------------------------------------------


class FakeStream:
    def __init__(self, chunks: list[dict[str, Any]]) -> None:
        self.chunks = iter(chunks)
        self.closed = False

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Any:
        for chunk in self.chunks:
            return SimpleNamespace(model_dump=chunk.copy)
        raise StopAsyncIteration

    async def close(self) -> None:
        self.closed = True


class FakeClient:
    base_url = "https://api.example/v1/"

    def __init__(self, result: FakeStream | Exception) -> None:
        self.result = result
        self.options: dict[str, Any] = {}
        self.sent: dict[str, Any] = {}
        self.chat = SimpleNamespace(completions=self)

    def with_options(self, **options: Any) -> FakeClient:
        self.options = options
        return self

    async def create(self, **payload: Any) -> FakeStream:
        self.sent = payload
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_callers_client_is_used_without_its_retries() -> None:
    stream = FakeStream(
        [delta(content="hi"), end(usage={"prompt_tokens": 1, "completion_tokens": 1})]
    )
    client = FakeClient(stream)
    request = Request(messages=(Message("user", "q"),), extra={"priority": 1})
    pieces, reply = asyncio.run(collect(ClientEngine(client, model="m"), request))
    assert (pieces, reply.usage) == (["hi"], Usage(prompt=1, completion=1))
    assert client.options == {"max_retries": 0}
    assert (client.sent["model"], client.sent["extra_body"]) == ("m", {"priority": 1})
    assert stream.closed


def test_a_callers_client_fails_in_our_classes() -> None:
    limited = RuntimeError("slow down")
    limited.status_code = 429  # type: ignore[attr-defined]
    limited.response = SimpleNamespace(headers={"Retry-After": "3"})  # type: ignore[attr-defined]
    with pytest.raises(RateLimitedError) as caught:
        asyncio.run(collect(ClientEngine(FakeClient(limited))))
    assert caught.value.retry_after_s == 3
    with pytest.raises(EngineUnavailableError, match="ConnectionError"):
        asyncio.run(collect(ClientEngine(FakeClient(ConnectionError("gone")))))
    with pytest.raises(EngineUnavailableError, match="before the reply"):
        asyncio.run(collect(ClientEngine(FakeClient(FakeStream([delta(content="a")])))))


# The stub itself --------------------------------------------------------------------------------


def test_the_stub_answers_anything_and_says_what_it_saw_as_a_process() -> None:
    command = [sys.executable, "-m", "accord.testing.stub", "--delay-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            request = Request(messages=(Message("user", "q"),), schema=schema)
            first = asyncio.run(once(OpenAIEngine(url), request))
            assert asyncio.run(once(OpenAIEngine(url, stream=False), request)) == first
            assert json.loads(first.text) == {"n": 0}
            with urllib.request.urlopen(url.removesuffix("/v1") + "/requests") as seen:
                assert json.load(seen)["count"] == 2
        finally:
            process.kill()


def test_a_fold_without_a_finish_reason_has_a_default() -> None:
    fold = ReplyFold()
    fold.add(delta(content="a"))
    assert fold.reply().finish_reason == "stop"
