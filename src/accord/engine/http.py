"""The HTTP client under the engines: one origin, kept-alive connections, bounded reads.

Promises: it never retries, never queues and never follows redirects. Each failure of the transport
is an :class:`~accord.errors.EngineError` that names the URL. Leaving a response early closes its
socket, so the server can stop working on it. Answers of any status are returned, not raised:
what a status means is the caller's business.

Connections belong to the event loop that opened them. A client that is used from a second loop
opens new ones there, so one engine object may serve several ``asyncio.run`` calls.

``httpcore2`` is imported on first use: ``import accord`` must stay cheap.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import urllib.parse
import urllib.request
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from accord.errors import (
    EngineProtocolError,
    EngineTimeoutError,
    EngineUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    import httpcore2

MAX_BODY_BYTES = 64 * 1024 * 1024

# Below the 5 s after which uvicorn (vLLM, SGLang) and llama.cpp drop an idle connection: a request
# must not race with that.
_KEEPALIVE_S = 4.0

_LOOK = "check that the server runs and that this machine reaches it"


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer whose body still streams. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer read to its end. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Requests to the one origin of ``url``, through the environment's proxy if it has one."""

    def __init__(
        self, url: str, *, connect_timeout_s: float = 10.0, read_timeout_s: float = 120.0
    ) -> None:
        self._origin = url
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        # Sockets belong to one loop; an engine may serve several.
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpcore2.AsyncConnectionPool]
        self._pools = WeakKeyDictionary()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        read_timeout_s: float | None = None,
    ) -> AsyncGenerator[Response]:
        """Send one request; the body of the answer is read inside the ``async with``."""
        timeout_s = self._read_timeout_s if read_timeout_s is None else read_timeout_s
        with _transport_errors(url):
            stream = self._connections().stream(
                method,
                url,
                headers=[(name.encode(), value.encode()) for name, value in headers.items()],
                content=content,
                extensions={"timeout": self._timeouts(timeout_s)},
            )
            response: httpcore2.Response = await stream.__aenter__()
        chunks = _chunks(response, url)
        try:
            yield Response(
                status=response.status,
                headers={
                    name.decode("latin-1").lower(): value.decode("latin-1")
                    for name, value in response.headers
                },
                chunks=chunks,
            )
        finally:
            # By hand, so that errors of the block above are not taken for the transport's.
            await chunks.aclose()
            await stream.__aexit__(None, None, None)

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        read_timeout_s: float | None = None,
    ) -> Answer:
        """Send one request and read the whole answer, at most ``MAX_BODY_BYTES`` of it."""
        async with self.request(
            method, url, headers=headers, content=content, read_timeout_s=read_timeout_s
        ) as response:
            body = await read_all(response, url)
            return Answer(status=response.status, headers=response.headers, body=body)

    async def close(self) -> None:
        """Close this loop's connections. The client may be used again; it then opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    def _connections(self) -> httpcore2.AsyncConnectionPool:
        import httpcore2

        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            # Unbounded, because how many requests run at once is the scheduler's decision: a
            # queue here would be a second one that no report sees.
            pool = self._pools[loop] = httpcore2.AsyncConnectionPool(
                proxy=_proxy(self._origin), max_connections=None, keepalive_expiry=_KEEPALIVE_S
            )
        return pool

    def _timeouts(self, read_timeout_s: float) -> dict[str, float]:
        connect = self._connect_timeout_s
        return {
            "connect": connect,
            "pool": connect,
            "write": read_timeout_s,
            "read": read_timeout_s,
        }


async def read_all(response: Response, url: str) -> bytes:
    """The rest of the body; EngineProtocolError when it passes ``MAX_BODY_BYTES``."""
    body = bytearray()
    async with aclosing(response.chunks) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                message = (
                    f"{url} sent more than {MAX_BODY_BYTES} bytes in one answer, which was cut "
                    "off; check that the URL is an OpenAI-compatible server"
                )
                raise EngineProtocolError(message, status=response.status)
    return bytes(body)


async def _chunks(response: httpcore2.Response, url: str) -> AsyncGenerator[bytes]:
    with _transport_errors(url):
        async with aclosing(response.aiter_stream()) as parts:
            async for part in parts:
                yield part


@contextmanager
def _transport_errors(url: str) -> Generator[None]:
    """Failures of the transport as errors of the engine, with the URL."""
    import httpcore2

    try:
        yield
    except httpcore2.ConnectTimeout as error:
        message = f"no connection to {url} in time; {_LOOK}"
        raise EngineUnavailableError(message) from error
    except httpcore2.TimeoutException as error:
        message = f"{url} did not answer in time; raise read_timeout_s or send it less work"
        raise EngineTimeoutError(message) from error
    except httpcore2.RemoteProtocolError as error:
        raise _broken(url, error) from error
    except (httpcore2.NetworkError, httpcore2.ProxyError, OSError) as error:
        message = f"the connection to {url} failed ({_reason(error)}); {_LOOK}"
        raise EngineUnavailableError(message) from error
    except (httpcore2.LocalProtocolError, httpcore2.UnsupportedProtocol) as error:
        # The text may quote a header, and a header may be a key: it is left out.
        message = f"the request to {url} cannot be sent as HTTP; check the URL and the headers"
        raise EngineProtocolError(message) from error


def _broken(url: str, error: Exception) -> EngineUnavailableError | EngineProtocolError:
    text = _reason(error)
    if "disconnected" in text or "peer closed" in text:
        return EngineUnavailableError(
            f"{url} closed the connection before its answer was whole ({text}); "
            "if it stays so, the server's own log says why"
        )
    return EngineProtocolError(
        f"{url} did not answer in HTTP ({text}); check the port and the scheme"
    )


def _reason(error: BaseException) -> str:
    """The first text in the chain of causes: httpcore2 often wraps an error without one."""
    seen: BaseException | None = error
    while seen is not None:
        if str(seen):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__


def _proxy(url: str) -> httpcore2.Proxy | None:
    """The proxy that the environment names for ``url``; never one for this machine itself."""
    import httpcore2

    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address:
        return None
    proxy = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        message = f"the proxy for {url} speaks SOCKS; pip install socksio, or unset ALL_PROXY"
        raise EngineUnavailableError(message)
    where = proxy._replace(netloc=proxy.netloc.rpartition("@")[2], path="", query="", fragment="")
    if proxy.username is None:
        return httpcore2.Proxy(where.geturl())
    auth = (urllib.parse.unquote(proxy.username), urllib.parse.unquote(proxy.password or ""))
    return httpcore2.Proxy(where.geturl(), auth=auth)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
