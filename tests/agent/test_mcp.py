"""MCP servers as tools, against real server processes.

They run on the installed release of ``mcp``; for another, in an environment of its own::

    python -m venv /tmp/mcp1 && /tmp/mcp1/bin/pip install . pytest hypothesis 'mcp<2'
    /tmp/mcp1/bin/python -m pytest tests/agent/test_mcp.py
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from subprocess import DEVNULL
from threading import Thread
from typing import Any

import pytest

from accord import Agent, Runtime, gather, run
from accord.agent.mcp import mcp_tools
from accord.agent.tool import Tool
from accord.engine.base import ToolCall
from accord.errors import CallTimeoutError, ToolError, UsageError
from accord.log.store.memory import MemoryStore
from accord.testing.scripted import ScriptedEngine
from accord.tokens.encode import encode

pytest.importorskip("mcp", reason='needs mcp: pip install "accord[mcp]"')

# 1.x forgets to close its streams if a server dies while it is being greeted.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")

HERE = Path(__file__).parent
SERVER = shlex.join([sys.executable, str(HERE / "mcp_server.py")])

NAMED = r"MCP server http://127\.0\.0\.1:\d+/mcp "

Tools = dict[str, Tool[..., Any]]


@pytest.fixture
def plain(tmp_path: Path) -> list[str]:
    return [sys.executable, str(HERE / "mcp_server_plain.py"), str(tmp_path / "journal")]


def with_tools(
    server: str | list[str], use: Callable[[Tools], Coroutine[Any, Any, None]], **options: Any
) -> None:
    """Run ``use`` on the server's tools, and see that no task is left."""

    async def main() -> None:
        async with mcp_tools(server, **options) as tools:
            await use({tool.name: tool for tool in tools})
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def asked(name: str, arguments: str, call_id: str = "1") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def test_an_agent_uses_the_tools_of_a_server() -> None:
    engine = ScriptedEngine(
        [
            [asked("echo", '{"text": "日本🌟"}', "1"), asked("point", '{"x": 1}', "2")],
            [asked("fail", '{"why": "geht nicht 🌟"}', "3"), asked("picture", "{}", "4")],
            [asked("echo", '{"times": 1}', "5"), asked("echo", '["a"]', "6")],
            "done",
        ]
    )

    async def flow() -> str:
        async with mcp_tools(SERVER) as tools:
            return await Agent("a", "Do.", tools=tools)("go")

    assert run(flow, engine=engine, log="memory").output == "done"
    [echo] = [tool for tool in engine.requests[0].tools if tool.name == "echo"]
    assert echo.description == "Wiederholt – 繰り返す 🌟."
    assert echo.parameters["required"] == ["text"]
    answers = {m.tool_call_id: m.content for m in engine.requests[-1].messages if m.role == "tool"}
    assert answers["1"] == "日本🌟"
    assert answers["2"] == encode({"x": 1, "label": "原点"})
    assert answers["3"] == "error: ToolError: Error executing tool fail: geht nicht 🌟"
    assert (
        answers["4"]
        == "see\n[image image/png, 3 bytes]\n[application/pdf of file:///a.pdf, 2 bytes]"
    )
    assert "Field required" in answers["5"]
    assert answers["6"].startswith("error: invalid arguments '[\"a\"]'")


def test_one_of_five_parallel_calls_is_cancelled_and_four_finish() -> None:
    """CAN-9: pydantic/pydantic-ai#2355, "cancel scope in a different task"."""

    async def flow() -> list[Any]:
        async with mcp_tools(SERVER) as tools:
            wait, hang, die = (
                next(tool for tool in tools if tool.name == name)
                for name in ("wait", "hang", "die")
            )

            async def late(answer: str) -> str:
                return await wait.answer(asked("wait", f'{{"seconds": 0.2, "answer": "{answer}"}}'))

            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(late(f"a{n}"), name=f"call {n}") for n in range(5)]
                await asyncio.sleep(0.05)
                calls[2].cancel()
            assert calls[2].cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await hang.answer(asked("hang", "{}"))
            ends = await gather(
                [hang.answer(asked("hang", "{}")), die.answer(asked("die", "{}"))],
                policy="isolate",
            )
            assert all(isinstance(end, ToolError) and "is gone" in str(end) for end in ends)
            return [call.result() for call in calls if not call.cancelled()]

    assert run(flow, engine=ScriptedEngine(), log="memory").output == ["a0", "a1", "a3", "a4"]


def test_a_server_over_http(unused_port: int) -> None:
    url = f"http://user:key@127.0.0.1:{unused_port}/mcp?key=secret"
    command = [*shlex.split(SERVER), str(unused_port)]

    async def use(tools: Tools) -> None:
        assert await tools["echo"](text="日本🌟") == "日本🌟"
        with pytest.raises((ToolError, CallTimeoutError), match=NAMED) as caught:
            await tools["die"]()
        assert "secret" not in str(caught.value)
        with pytest.raises(ToolError, match=NAMED):
            await tools["echo"](text="a")

    with subprocess.Popen(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            wait_for_port(unused_port)
            with_tools(url, use, timeout_s=2)
        finally:
            process.kill()
    with pytest.raises(ToolError, match=NAMED + "did not start .*; see that it runs"):
        with_tools(url, unused, timeout_s=2)


def test_headers_go_to_the_server_and_no_secret_into_messages(unused_port: int) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.add(self.headers["X-Key"])
            self.send_error(401)

        def log_message(self, *args: object) -> None: ...

    keys: set[str | None] = set()
    with HTTPServer(("127.0.0.1", unused_port), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{unused_port}/mcp?key=secret"
        with pytest.raises(ToolError, match=NAMED + "did not start") as caught:
            with_tools(url, unused, headers={"X-Key": "secret"})
        server.shutdown()
    assert keys == {"secret"}
    assert "secret" not in str(caught.value)


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            probe.settimeout(0.05)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
            asyncio.run(asyncio.sleep(0.05))
    pytest.fail(f"nothing listens on port {port}")


def test_what_a_server_did_is_not_done_again_on_a_resume(plain: list[str]) -> None:
    broken = True

    async def flow() -> str:
        async with mcp_tools(plain) as tools:
            answer = await Agent("a", tools=tools)("go")
        if broken:
            raise RuntimeError("later")
        return answer

    script = [[asked("charge", '{"value": "5 €"}')], "done"]
    runtime = Runtime(engine=ScriptedEngine(script), log=MemoryStore())
    with pytest.raises(RuntimeError, match="later"):
        runtime.run(flow, run_id="r")
    broken = False
    assert runtime.resume("r", flow).output == "done"
    assert Path(plain[-1]).read_text(encoding="utf-8") == "5 €\n"


def test_tools_have_effects_unless_the_server_is_believed(plain: list[str]) -> None:
    async def careful(tools: Tools) -> None:
        assert sorted(tools) == ["charge", "die", "hang", "look", "pid"]
        assert [name for name, tool in tools.items() if tool.pure] == []

    async def trusting(tools: Tools) -> None:
        assert [name for name, tool in tools.items() if tool.pure] == ["b_look"]
        assert await tools["b_look"]() == "k"

    with_tools(plain, careful)
    env = {"ACCORD_TEST_KEY": "k"}
    with_tools(plain, trusting, trust_read_only=True, prefix="b_", env=env)


def test_a_server_that_dies_fails_its_calls_and_later_ones_at_once(plain: list[str]) -> None:
    async def during(tools: Tools) -> None:
        for name in ("die", "pid", "pid"):
            with pytest.raises(
                ToolError, match=r"mcp_server_plain[\s\S]* is gone .*again"
            ) as caught:
                await tools[name]()
            assert str(caught.value).endswith("it wrote last:\n  Lebt wohl")

    async def before(tools: Tools) -> None:
        os.kill(int(await tools["pid"]()), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ToolError, match="is gone"):
                await tools["pid"]()

    for story in (during, before):
        with_tools(plain, story)


def test_a_call_of_a_server_that_hangs_is_bounded(plain: list[str]) -> None:
    async def use(tools: Tools) -> None:
        pids.append(int(await tools["pid"]()))
        with pytest.raises(CallTimeoutError, match=r"tool hang of MCP server .* timeout_s=1;"):
            await tools["hang"]()
        os.kill(pids[0], signal.SIGKILL)  # else it is given two seconds to stop by itself

    pids: list[int] = []
    with_tools(plain, use, timeout_s=1)


def test_however_the_block_ends_the_server_has_stopped(plain: list[str]) -> None:
    pids: list[int] = []

    async def work(tools: list[Tool[..., Any]]) -> None:
        [pid] = [tool for tool in tools if tool.name == "pid"]
        pids.append(int(await pid()))

    async def fails() -> None:
        async with mcp_tools(plain) as tools:
            await work(tools)
            raise ValueError("mine")

    async def is_cancelled(at_work: asyncio.Event) -> None:
        async with mcp_tools(plain) as tools:
            await work(tools)
            at_work.set()
            await asyncio.sleep(60)

    async def calls_too_late() -> None:
        async with mcp_tools(plain) as tools:
            await work(tools)
        await work(tools)

    async def main() -> None:
        with pytest.raises(ValueError, match=r"^mine$"):
            await fails()
        with pytest.raises(ToolError, match="stopped at the end of its block"):
            await calls_too_late()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(is_cancelled(at_work := asyncio.Event()))
            await at_work.wait()
            task.cancel()
        assert task.cancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), mcp_tools(plain):
                pass
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert len(pids) == 3
    assert not any(is_running(pid) for pid in pids)


async def unused(tools: Tools) -> None:
    pytest.fail(f"got {tools}")


@pytest.mark.parametrize(
    ("server", "error", "message", "timeout_s"),
    [
        (["/no/such/server", "--now"], UsageError, "`/no/such/server --now` did not start", 60),
        (
            [sys.executable, "-c", "import sys; sys.exit('Konfiguration fehlt: ä')"],
            ToolError,
            r"did not start .*; run the command by hand.*\n  Konfiguration fehlt: ä$",
            60,
        ),
        (
            [sys.executable, "-c", "import sys; print('hello', flush=True); sys.stdin.read()"],
            ToolError,
            r"did not start \(no answer within timeout_s=0\.3\)",
            0.3,
        ),
        ("", UsageError, "not empty", 60),
        ("server 'x", UsageError, "no command line", 60),
    ],
)
def test_a_server_that_does_not_start(
    server: Any, error: type[Exception], message: str, timeout_s: float
) -> None:
    with pytest.raises(error, match=message):
        with_tools(server, unused, timeout_s=timeout_s)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match=r'pip install "accord\[mcp\]"'):
        with_tools("server", unused)
    with pytest.raises(UsageError, match="timeout_s is a time above 0"):
        with_tools("server", unused, timeout_s=0)


def test_the_package_is_loaded_when_it_is_used() -> None:
    script = "import sys, accord, accord.agent.mcp; print({'mcp', 'anyio'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"
