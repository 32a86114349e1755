"""The one door to the package ``mcp``: how a server is reached, and what it says as plain data.

Releases 1.x and 2.x differ in how a session is opened and in how Python spells the names of
fields. The first is told apart by what the package has; the second does not matter here, as
messages are read in the spelling of the wire, which is the protocol's own. The package is typed
in two ways that exclude each other, so what comes from it is ``Any`` until it is read.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shlex
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar
from urllib.parse import urlsplit

import msgspec

from accord.errors import UsageError

T = TypeVar("T")

CONNECTION_CLOSED = -32000
KEPT_BYTES = 2000
KEPT_LINES = 5


class Session(Protocol):
    """What ``ClientSession`` of 1.x and ``Client`` of 2.x have in common."""

    async def list_tools(self, *, cursor: str | None = None) -> Any: ...
    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any: ...


class Address(Protocol):
    """Where a server is. ``str()`` names it in messages, without secrets."""

    advice: str
    """What to look at if it does not start."""

    def open(self) -> AbstractAsyncContextManager[Session]:
        """Connect, for as long as the block."""
        ...

    def last_words(self) -> str:
        """What it wrote to its stderr last, as the end of a message."""
        ...

    def without_secrets(self, text: str) -> str:
        """``text`` by others, who may quote the address in full."""
        ...


class _Annotations(msgspec.Struct, rename="camel"):
    read_only_hint: bool | None = None


class ListedTool(msgspec.Struct, rename="camel"):
    """A tool as the server describes it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: _Annotations | None = None

    @property
    def read_only(self) -> bool:
        return self.annotations is not None and self.annotations.read_only_hint is True


class _Page(msgspec.Struct, rename="camel"):
    tools: list[ListedTool]
    next_cursor: str | None = None


class Answer(msgspec.Struct, rename="camel"):
    """What a tool gave: blocks of content, and perhaps a JSON value that says the same."""

    content: list[dict[str, Any]] = []
    structured_content: Any = None
    is_error: bool | None = None


async def list_tools(session: Session) -> list[ListedTool]:
    """All tools of a server, page by page."""
    tools: list[ListedTool] = []
    cursor: str | None = None
    while True:
        page = _read(await session.list_tools(cursor=cursor), _Page)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


async def call_tool(session: Session, name: str, arguments: dict[str, Any]) -> Answer:
    """The server's answer, be it an error."""
    return _read(await session.call_tool(name, arguments), Answer)


def connection_lost(error: Exception) -> bool:
    """If ``error`` says that nobody is there to answer, rather than what somebody answered."""
    from anyio import BrokenResourceError, ClosedResourceError  # it came with mcp

    if isinstance(error, BrokenResourceError | ClosedResourceError):
        return True
    refusal: Any = getattr(error, "error", None)
    return getattr(refusal, "code", None) == CONNECTION_CLOSED


def address_of(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    headers: Mapping[str, str] | None,
) -> Address:
    """Where ``server`` is; raises UsageError if it is nowhere, or ``mcp`` is not installed."""
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        address = _Url(server, dict(headers or {}))
    else:
        try:
            words = shlex.split(server) if isinstance(server, str) else [*server]
        except ValueError as error:
            raise UsageError(f"{server!r} is no command line: {error}") from error
        if not words or not words[0]:
            raise UsageError("an MCP server is a command line or an http(s) URL, not empty")
        address = _Command(words, dict(env or {}), cwd)
    _package()
    return address


class _Url:
    advice = "see that it runs, and that this is the URL of its MCP endpoint"

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._name = f"{parts.scheme}://{host}{parts.path}"
        self._secrets = [secret for secret in (user, parts.query) if secret]

    def __str__(self) -> str:
        return self._name

    def last_words(self) -> str:
        return ""

    def without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "...")
        return text

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Session]:
        http: Any = importlib.import_module("mcp.client.streamable_http")
        async with AsyncExitStack() as stack:
            if hasattr(http, "streamable_http_client"):
                client = http.create_mcp_http_client(headers=self._headers)
                client.timeout = None  # each call has its own
                await stack.enter_async_context(client)
                transport = http.streamable_http_client(self._url, http_client=client)
            else:  # 1.23 and before
                transport = http.streamablehttp_client(self._url, headers=self._headers)
            yield await stack.enter_async_context(_session(transport))


class _Command:
    advice = "run the command by hand to see why"

    def __init__(self, words: list[str], env: dict[str, str], cwd: str | Path | None) -> None:
        self._words = words
        self._env = env
        self._cwd = cwd
        self._stderr = b""

    def __str__(self) -> str:
        return f"`{shlex.join(self._words)}`"

    def last_words(self) -> str:
        lines = self._stderr.decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip()][-KEPT_LINES:]
        return "\n  ".join(["; it wrote last:", *lines]) if lines else ""

    def without_secrets(self, text: str) -> str:
        return text

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Session]:
        mcp = _package()
        command, *args = self._words
        parameters = mcp.StdioServerParameters(
            command=command, args=args, env=self._env, cwd=self._cwd
        )
        with self._listen() as stderr:
            async with _session(mcp.stdio_client(parameters, errlog=stderr)) as session:
                yield session

    @contextmanager
    def _listen(self) -> Generator[TextIO]:
        """A pipe for the server's stderr: always emptied, so that it never blocks the server."""
        loop = asyncio.get_running_loop()
        source, sink = os.pipe()
        os.set_blocking(source, False)
        loop.add_reader(source, self._hear, source)
        try:
            with os.fdopen(sink, "w") as stderr:
                yield stderr
        finally:
            self._hear(source)
            loop.remove_reader(source)
            os.close(source)

    def _hear(self, source: int) -> None:
        with suppress(BlockingIOError):
            self._stderr = (self._stderr + os.read(source, 65536))[-KEPT_BYTES:]


@asynccontextmanager
async def _session(transport: Any) -> AsyncGenerator[Session]:
    """An open session, over what either release calls a transport."""
    mcp = _package()
    if hasattr(mcp, "Client"):
        async with mcp.Client(transport) as client:
            yield client
    else:
        async with (
            transport as (incoming, outgoing, *_),
            mcp.ClientSession(incoming, outgoing) as session,
        ):
            await session.initialize()
            yield session


def _package() -> Any:
    try:
        return importlib.import_module("mcp")
    except ImportError as error:
        raise UsageError(
            f'MCP servers need the package mcp; pip install "accord[mcp]" ({error})'
        ) from error


def _read(message: Any, kind: type[T]) -> T:
    return msgspec.convert(message.model_dump(mode="json", by_alias=True), kind)
