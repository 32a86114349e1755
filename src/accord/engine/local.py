"""A small model on this machine's CPU: llama.cpp's own server, inside this process.

The server listens on a free loopback port and is spoken to like any other engine, so what is
measured here is real: tokens, prefill, decode, prefix cache, schema-constrained output.

Stopping: dropping the last reference to the server stops its threads and frees its memory. A
process that exits while the server still generates would crash in native code, so the server is
also dropped at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import threading
import weakref
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accord.engine.base import Prices
from accord.engine.openai import OpenAIEngine
from accord.engine.weights import fetch
from accord.errors import EngineUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from accord.engine.base import Capabilities, Reply, Request, TextDelta

_FREE = Prices(prompt=0.0, completion=0.0, cached=0.0)

# A full window costs half a minute of prefill on two cores, and requests wait for a slot before it.
_READ_TIMEOUT_S = 900.0

# Contexts that left their slot are kept here and come back without prefill. llama.cpp's default is
# 8 GiB.
_CACHE_RAM_MIB = 512

# A stopping server waits until each of its streams wakes for its next ping: 30 s by default.
_PING_S = 1


class LocalEngine:
    """llama.cpp in-process over a GGUF file, or over a model that is fetched on first use.

    ``slots`` requests run at once, each with a ``window`` of tokens. ``threads`` defaults to one
    less than the cores that this process may use: all of them are faster only on an idle machine.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        slots: int = 2,
        window: int = 8192,
        threads: int | None = None,
    ) -> None:
        if slots < 1 or window < 1 or (threads is not None and threads < 1):
            message = f"slots={slots}, window={window} and threads={threads} must be at least 1"
            raise UsageError(message)
        # Absolute, so that the name recorded in a log finds the file again from any folder.
        self._path = None if model is None else Path(model).absolute()
        self.name = "local" if self._path is None else f"local:{self._path}"
        self._slots = slots
        self._window = window
        self._threads = threads
        self._lock = threading.Lock()
        self._server: Any = None
        self._http: OpenAIEngine | None = None

    @property
    def identity(self) -> str:
        """A file of weights may be replaced by another."""
        if self._path is None or not self._path.exists():
            return self.name
        found = self._path.stat()
        return f"{self.name} {found.st_size} {found.st_mtime_ns}"

    async def start(self) -> Capabilities:
        """Fetch the model if need be, load it, and say what it can do.

        Raises EngineUnavailableError without ``xllamacpp`` or without a model, UsageError for a
        path that is no GGUF file.
        """
        http = await self._ready()
        found = await http.start()
        return replace(found, prices=_FREE)

    async def generate(self, request: Request) -> AsyncGenerator[TextDelta | Reply]:
        """Yield text as it comes, then the reply."""
        http = await self._ready()
        async with aclosing(http.generate(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def counters(self) -> dict[str, int]:
        """The server's own counts of tokens: ``prompt`` (with ``cached``), ``completion``."""
        http = await self._ready()
        found = _counters(await http.get("/metrics"))
        cached = found.get("llamacpp:prompt_tokens_cached_total", 0)
        return {
            "prompt": found.get("llamacpp:prompt_tokens_total", 0) + cached,
            "cached": cached,
            "completion": found.get("llamacpp:tokens_predicted_total", 0),
        }

    async def close(self) -> None:
        """Let go of this loop's connections. The model stays loaded, for whoever asks next."""
        if self._http is not None:
            await self._http.close()

    def unload(self) -> None:
        """Stop the server and free the model; so does dropping the engine. Blocks a moment."""
        with self._lock:
            self._http = None
            self._server = None

    async def _ready(self) -> OpenAIEngine:
        if self._http is None:
            # In a thread for the download. Loading itself keeps the interpreter to itself, so the
            # loop pauses for that half second.
            stop = threading.Event()
            try:
                self._http = await asyncio.to_thread(self._load, stop)
            except asyncio.CancelledError:
                stop.set()  # or the loop's end would wait for the download
                raise
        return self._http

    def _load(self, stop: threading.Event) -> OpenAIEngine:
        # A thread's lock: one engine may be started from several loops and must load once.
        with self._lock:
            if self._server is None:
                llama = _xllamacpp()
                path = fetch(stop=stop) if self._path is None else check_gguf(self._path)
                self._server = _serve(llama, self._parameters(llama, path), path)
                atexit.register(_unload, weakref.ref(self))
            return OpenAIEngine(
                f"{self._server.listening_address}/v1",
                read_timeout_s=_READ_TIMEOUT_S,
                concurrency=self._slots,
            )

    def _parameters(self, llama: Any, path: Path) -> Any:
        parameters = llama.CommonParams()
        parameters.model.path = str(path)
        parameters.model_alias = {path.stem}
        parameters.n_parallel = self._slots
        parameters.n_ctx = self._slots * self._window
        threads = self._threads or _threads()
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
        parameters.cache_ram_mib = _CACHE_RAM_MIB
        parameters.port = 0
        parameters.verbosity = -1
        parameters.ui = False
        parameters.endpoint_metrics = True
        parameters.endpoint_slots = True
        parameters.sse_ping_interval = _PING_S
        if self._path is None:
            # 135M parameters fall into loops under llama.cpp's defaults. A request's own win.
            parameters.sampling.temp = 0.4
            parameters.sampling.penalty_repeat = 1.15
            parameters.sampling.penalty_last_n = 256
        return parameters


def _unload(engine: weakref.ref[LocalEngine]) -> None:
    """At exit: a server that still generates would crash the process."""
    if (still_there := engine()) is not None:
        still_there.unload()


def check_gguf(path: Path) -> Path:
    """``path`` if it is a GGUF file; UsageError if not. llama.cpp's own errors say less."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        message = (
            f"the model {path} cannot be read ({error.strerror}); give the path of a .gguf file"
        )
        raise UsageError(message) from error
    if magic != b"GGUF":
        message = (
            f"{path} is no GGUF file (it does not start with GGUF); convert it, or download a .gguf"
        )
        raise UsageError(message)
    return path


def _serve(llama: Any, parameters: Any, path: Path) -> Any:
    try:
        return llama.Server(parameters)
    except RuntimeError as error:
        message = (
            f"llama.cpp could not load {path}: {error}; "
            "the file may be damaged, or too large for this machine's memory"
        )
        raise EngineUnavailableError(message) from error


def _xllamacpp() -> Any:
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        message = (
            'the local engine needs xllamacpp; pip install "accord[local]", '
            "or set OPENAI_BASE_URL to use a server"
        )
        raise EngineUnavailableError(message) from error


def _threads() -> int:
    """One less than the cores that this process may use, and at least one.

    llama.cpp's threads wait for each other many times per token, spinning. With one on each core,
    anything else that runs (this runtime, a test suite) stalls them all. Seen on two cores beside
    four busy processes: one thread wrote five short replies in 6 to 14 s, and two threads had
    written 6 to 12 tokens after 20 s. On idle cores the second thread makes it 1.5 times faster.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) - 1)


def _counters(metrics: str) -> dict[str, int]:
    """The counters of a Prometheus page; gauges and comments are left out."""
    found: dict[str, int] = {}
    for line in metrics.split("\n"):
        name, _, value = line.partition(" ")
        if name.endswith("_total"):
            found[name] = int(float(value))
    return found
