"""MCP servers as tools: ``async with mcp_tools("python server.py") as tools``.

Each tool that the server lists becomes a tool like those of ``@tool``: the model sees the
server's name, description and schema for it. Every call by an agent is recorded, has effects
unless that was ruled out, and answers from the log on a replay. What the block itself does is
not recorded: a resumed run starts the server again.

One task owns the connection and lives as long as the block. Calls wait in the tasks of their
callers: one that is cancelled or takes too long harms neither the connection nor other calls.
A server that dies fails the calls in flight, and every later one at once; it is not started
again behind the flow's back. When the block has ended, however it did, so have the server's
process and the task.

Works with releases 1.x and 2.x of the package ``mcp``. Of the protocol it uses tools only, as
they were listed at the start. Two things 1.x does not do: tell a server that a call was
cancelled, and notice, over HTTP, that it died in a call; that call ends with its ``timeout_s``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from accord.agent.mcp_client import (
    Address,
    Answer,
    ListedTool,
    Session,
    address_of,
    call_tool,
    connection_lost,
    list_tools,
)
from accord.agent.tool import Tool
from accord.engine.base import ToolSpec
from accord.errors import AccordError, CallTimeoutError, ToolError, ToolLostError, UsageError
from accord.tokens.encode import encode

DEFAULT_TIMEOUT_S = 60.0


@asynccontextmanager
async def mcp_tools(
    server: str | Sequence[str],
    *,
    timeout_s: float | None = DEFAULT_TIMEOUT_S,
    trust_read_only: bool = False,
    prefix: str = "",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncGenerator[list[Tool[..., Any]]]:
    """The tools of an MCP server, for as long as the block.

    ``server``           a command line, or its words, of a server to start; or the http(s) URL
                         of one that runs (Streamable HTTP)
    ``timeout_s``        bounds the start, and each call
    ``trust_read_only``  make those tools pure that the server says only read
    ``prefix``           goes in front of each name, for servers whose tools are called alike
    ``env``, ``cwd``     for the command, which sees little of this process's environment beside
                         PATH and HOME
    ``headers``          for the URL, such as Authorization

    Messages name the command with its arguments, or the URL without its query; secrets belong
    in ``env`` and ``headers``.

    A tool gives the server's structured content, else its text; images and other data are named
    by type and size. It raises :class:`accord.errors.ToolError` for an error of the tool or a
    server that is gone, :class:`accord.errors.CallTimeoutError` for one that is late.

    Raises :class:`accord.errors.UsageError` if the package ``mcp`` is missing or there is no such
    command, :class:`accord.errors.ToolError` if the server does not start.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"timeout_s is a time above 0 or None, not {timeout_s!r}")
    connection = _Connection(address_of(server, env=env, cwd=cwd, headers=headers), timeout_s)
    failure: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        owner = group.create_task(connection.own())
        try:
            yield [
                _tool(connection, listed, prefix, trust_read_only=trust_read_only)
                for listed in await connection.tools()
            ]
        except BaseException as error:  # noqa: BLE001  # raised below; the group would wrap it
            failure = error
        finally:
            connection.leave(owner)
    if failure is not None:
        raise failure


def _tool(
    connection: _Connection, listed: ListedTool, prefix: str, *, trust_read_only: bool
) -> Tool[..., Any]:
    async def ask(**arguments: Any) -> Any:
        return await connection.call(listed.name, arguments)

    spec = ToolSpec(
        name=prefix + listed.name,
        description=listed.description or "",
        parameters=listed.input_schema,
    )
    pure = trust_read_only and listed.read_only
    return Tool(ask, name=spec.name, pure=pure, spec=spec)


class _Connection:
    """A session with a server, owned by the task that runs :meth:`own`."""

    def __init__(self, address: Address, timeout_s: float | None) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._session: Session | None = None
        self._tools: list[ListedTool] = []
        self._started = asyncio.Event()
        self._left = asyncio.Event()
        self._failure: Exception | None = None
        self._in_flight: list[asyncio.Timeout] = []

    async def own(self) -> None:
        """Open the connection and hold it until it breaks or is left. A failure is kept."""
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout_s):
                    session = await stack.enter_async_context(self._address.open())
                    self._tools = await list_tools(session)
                self._session = session
                self._started.set()
                await self._left.wait()
        except Exception as error:  # noqa: BLE001  # calls raise it
            self._failure = error
        finally:
            self._session = None
            self._started.set()
            self._end_calls()

    def _end_calls(self) -> None:
        """Let go whoever waits for an answer; not every release of ``mcp`` does that itself."""
        now = asyncio.get_running_loop().time()
        for limit in self._in_flight:
            if not limit.expired():
                limit.reschedule(now)

    def leave(self, owner: asyncio.Task[None]) -> None:
        """Have the owner close the connection, or give up opening it."""
        self._left.set()
        if not self._started.is_set():
            owner.cancel()

    async def tools(self) -> list[ListedTool]:
        """The server's tools, once it has started."""
        await self._started.wait()
        if self._failure is not None:
            raise self._not_started(self._failure) from self._failure
        return self._tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """What the tool gives."""
        session = self._session
        if session is None:
            raise self._gone()
        limit = asyncio.timeout(self._timeout_s)
        self._in_flight.append(limit)
        try:
            async with limit:
                answer = await call_tool(session, tool, arguments)
        except Exception as error:
            raise self._failed(tool, error, late=limit.expired()) from error
        finally:
            self._in_flight.remove(limit)
        return _value(answer)

    def _failed(self, tool: str, error: Exception, *, late: bool) -> AccordError:
        if self._session is None or connection_lost(error):
            return ToolLostError(str(self._gone(error)))
        if late:
            return CallTimeoutError(
                f"tool {tool} of MCP server {self._address} took longer than timeout_s="
                f"{self._timeout_s:g}; raise it, or make the call smaller"
            )
        return ToolError(f"MCP server {self._address} failed to call {tool}: {self._why(error)}")

    def _gone(self, error: Exception | None = None) -> ToolError:
        if self._left.is_set():
            return ToolError(
                f"MCP server {self._address} was stopped at the end of its block; call its tools "
                "inside of `async with mcp_tools(...)`"
            )
        cause = self._failure or error
        why = f" ({self._why(cause)})" if cause else ""
        return ToolError(
            f"MCP server {self._address} is gone{why}; a call that it was at may have had its "
            "effect. Enter `async with mcp_tools(...)` again, or resume the run"
            f"{self._address.last_words()}"
        )

    def _not_started(self, error: Exception) -> AccordError:
        late = isinstance(error, TimeoutError)
        why = f"no answer within timeout_s={self._timeout_s:g}" if late else self._why(error)
        message = (
            f"MCP server {self._address} did not start ({why}); {self._address.advice}"
            f"{self._address.last_words()}"
        )
        no_command = isinstance(error, OSError) and not late
        return UsageError(message) if no_command else ToolError(message)

    def _why(self, error: Exception) -> str:
        return self._address.without_secrets(_reasons(error))


def _reasons(error: BaseException) -> str:
    """What went wrong, out of the groups that anyio wraps it in."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return ", ".join(_reasons(each) for each in group.exceptions)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _value(answer: Answer) -> Any:
    """What the model and the log get. Text that repeats the structured content is left out."""
    texts = [_text(block) for block in answer.content]
    if answer.is_error:
        raise ToolError("\n".join(texts) or encode(answer.structured_content))
    if answer.structured_content is None:
        return "\n".join(texts)
    value = _unwrapped(answer.structured_content)
    others = [
        text for text, block in zip(texts, answer.content, strict=True) if block["type"] != "text"
    ]
    return "\n".join([encode(value), *others]) if others else value


def _unwrapped(value: Any) -> Any:
    """Servers put into ``{"result": ...}`` what is no object, for the protocol wants one."""
    match value:
        case {"result": result, **others} if not others:
            return result
        case _:
            return value


def _text(block: dict[str, Any]) -> str:
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource", "resource": {"uri": uri, "blob": str(data), **more}}:
            return f"[{more.get('mimeType') or 'data'} of {uri}, {_size(data)} bytes]"
        case {"type": str(kind), "data": str(data), "mimeType": mime}:
            return f"[{kind} {mime}, {_size(data)} bytes]"
        case {"type": "resource_link", "uri": uri, "name": name}:
            return f"[resource {name} at {uri}]"
        case _:
            return f"[{block.get('type')}]"


def _size(base64: str) -> int:
    """How many bytes it stands for."""
    return len(base64.rstrip("=")) * 3 // 4
