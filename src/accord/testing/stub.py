"""A loopback OpenAI-compatible server under a test's control.

::

    with StubServer() as stub:  # or: async with
        stub.script(error(429, headers={"retry-after": "1"}), text("Hel", "lo"))
        ...  # point an engine at stub.url
        assert len(stub.requests) == 2

Each chat request takes the next scripted answer; when none is left, a deterministic default answers
anything (and honours ``response_format``). It records each request, each connection and each client
that left early. It runs in a thread of its own, so that tests may be plain functions and their
loops may block.

``python -m accord.testing.stub [--port P] [--delay-ms N]`` prints its URL and serves until it is
killed; ``GET /requests`` then tells what it saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from accord.testing.answers import (
    Answer,
    Received,
    Script,
    disconnect,
    echo,
    error,
    events,
    hang,
    raw,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

__all__ = [
    "Abort",
    "Answer",
    "Received",
    "Script",
    "StubServer",
    "disconnect",
    "echo",
    "error",
    "events",
    "hang",
    "raw",
    "text",
]

_JSON = {"content-type": "application/json"}
_REASONS = {200: "OK", 429: "Too Many Requests"}


@dataclass(frozen=True, kw_only=True)
class Abort:
    """A client that left before its answer ended. ``at`` is on the monotonic clock, in seconds."""

    path: str
    at: float


class StubServer:
    """``routes`` answers other paths, such as ``/props``; ``models=None`` is a server without."""

    def __init__(
        self,
        *,
        port: int = 0,
        models: Iterable[Mapping[str, Any] | str] | None = ("stub",),
        routes: Mapping[str, Script] | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.other_requests: list[Received] = []
        self.aborts: list[Abort] = []
        self.connections = 0
        self._port = port
        self._models = None if models is None else list(models)
        self._routes = dict(routes or {})
        self._delay_s = delay_s
        self._scripts: deque[Script] = deque()
        self._always: Script | None = None
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._failed: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="accord-stub", daemon=True)

    def script(self, *answers: Script) -> None:
        """Answer the next chat requests with these, in order."""
        self._scripts.extend(answers)

    def always(self, answer: Script | None) -> None:
        """Answer each unscripted chat request with this, in place of the default."""
        self._always = answer

    def wait_until(
        self, condition: Callable[[StubServer], bool], *, timeout_s: float = 5.0
    ) -> None:
        """Block until ``condition`` of what was recorded holds; TimeoutError if it never does."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_s):
                message = f"not within {timeout_s} s: {len(self.requests)} requests, {self.aborts}"
                raise TimeoutError(message)

    def start(self) -> None:
        """Serve. Raises OSError if the port is taken."""
        self._thread.start()
        self._ready.wait()
        if self._failed:
            raise self._failed

    def stop(self) -> None:
        """Close the port and each connection."""
        if self._loop and self._stop:
            with suppress(RuntimeError):  # it already ended
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as failed:
            self._failed = failed
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self._port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()

        # Connections are tasks of this loop; asyncio.run cancels them.

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._changed:
            self.connections += 1
        try:
            while request := await _read(reader):
                if not await self._answer(request, reader, writer):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; say whether the connection can take another."""
        answer = self._choose(request)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send(answer, writer))
            # A client sends nothing while it waits, so a read that ends means that it left.
            leaving = group.create_task(_end(reader))
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            sent = sending.done() and sending.result()
            sending.cancel()
            leaving.cancel()
        if sent:
            return answer.ending == "close"
        with self._changed:
            self.aborts.append(Abort(path=request.path, at=_now()))
            self._changed.notify_all()
        return False

    def _choose(self, request: Received) -> Answer:
        chat = request.method == "POST" and request.path.endswith("/chat/completions")
        with self._changed:
            (self.requests if chat else self.other_requests).append(request)
            self._changed.notify_all()
        script = self._chat() if chat else self._route(request.path)
        return script if isinstance(script, Answer) else script(request)

    def _chat(self) -> Script:
        if self._scripts:
            return self._scripts.popleft()
        return self._always or (lambda request: echo(request, delay_s=self._delay_s))

    def _route(self, path: str) -> Script:
        if path in self._routes:
            return self._routes[path]
        if path == "/requests":
            return self._report()
        if path == "/v1/models" and self._models is not None:
            entries = [
                {"id": m, "object": "model"} if isinstance(m, str) else m for m in self._models
            ]
            return raw(json.dumps({"object": "list", "data": entries}).encode(), headers=_JSON)
        return error(404, f"no {path} here")

    def _report(self) -> Answer:
        report = {
            "count": len(self.requests),
            "connections": self.connections,
            "aborts": [asdict(abort) for abort in self.aborts],
            "requests": [asdict(request) for request in self.requests],
        }
        return raw(json.dumps(report, ensure_ascii=False).encode(), headers=_JSON)


async def _read(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection, or None at its end."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    content: Any = json.loads(body) if body else {}
    return Received(method=method, path=path, headers=headers, body=content, at=_now())


def _now() -> float:
    return time.monotonic()  # noqa: TID251  (what clients really did, whatever clock they run on)


async def _end(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        await reader.read(1)


async def _send(answer: Answer, writer: asyncio.StreamWriter) -> bool:
    """Send all of it; False if the client was gone."""
    try:
        await _write(answer, writer)
    except OSError:
        return False
    return True


async def _write(answer: Answer, writer: asyncio.StreamWriter) -> None:
    if answer.head:
        status = f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Stub')}\r\n"
        headers = {"transfer-encoding": "chunked", **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"{status}{lines}\r\n".encode())
    for part in answer.parts:
        if not isinstance(part, bytes):
            await asyncio.sleep(part)
        elif part:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) if answer.head else part)
            await writer.drain()
    if answer.ending == "hang":
        await asyncio.get_running_loop().create_future()
    if answer.ending == "close" and answer.head:
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def main(arguments: list[str] | None = None) -> None:
    """Print the URL and serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m accord.testing.stub", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="before each reply")
    options = parser.parse_args(arguments)
    with StubServer(port=options.port, delay_s=options.delay_ms / 1000) as stub:
        print(stub.url, flush=True)  # noqa: T201
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
