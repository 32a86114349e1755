"""A client object of the caller's as an engine: anything shaped like ``openai.AsyncOpenAI``.

No SDK is imported. Its own retries are switched off where it lets us, because the runtime owns
retries.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from accord.engine.base import Capabilities, TextDelta, identity_of_its_own
from accord.engine.failures import error_for, error_in
from accord.engine.shapes import mapping
from accord.engine.wire import ReplyFold, body
from accord.errors import EngineError, EngineTimeoutError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from accord.engine.base import Reply, Request


class ClientEngine:
    """Sends requests through ``client.chat.completions.create(..., stream=True)``.

    The caller owns the client: :meth:`close` leaves it open.
    """

    def __init__(self, client: Any, *, model: str | None = None) -> None:
        quiet = getattr(client, "with_options", None)
        self._client = quiet(max_retries=0) if quiet else client
        self._model = model or ""
        url = str(getattr(client, "base_url", ""))
        self.name = url.rpartition("@")[2].rstrip("/") or "client"
        self.identity = url or identity_of_its_own(self.name)

    async def start(self) -> Capabilities:
        """Nothing to ask: a client tells no more than its model."""
        return Capabilities(model=self._model)

    async def generate(self, request: Request) -> AsyncGenerator[TextDelta | Reply]:
        """Yield text as it comes, then the reply. Raises only EngineError and its branches."""
        payload = body(request, self._model, True)  # noqa: FBT003
        # An SDK passes fields that it does not know only through extra_body.
        payload = {k: v for k, v in payload.items() if k not in request.extra}
        fold = ReplyFold(self.name)
        async with self._stream(payload, request) as stream:
            async for event in stream:
                chunk = mapping(event.model_dump() if hasattr(event, "model_dump") else event)
                if error := error_in(chunk, where=self.name):
                    raise error
                if text := fold.add(chunk):
                    yield TextDelta(text)
        if not fold.finished:
            message = (
                f"{self.name} ended the stream before the reply was finished; "
                "if it stays so, look at the log of the server and of any proxy before it"
            )
            raise EngineUnavailableError(message)
        yield fold.reply()

    async def close(self) -> None:
        """Nothing: the client is the caller's."""

    @asynccontextmanager
    async def _stream(self, payload: dict[str, Any], request: Request) -> AsyncGenerator[Any]:
        stream: Any = None
        try:
            stream = await self._client.chat.completions.create(
                **payload, extra_body=request.extra or None
            )
            yield stream
        except (EngineError, asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            raise self._error(error, request.model or self._model) from error
        finally:
            if stream is not None and hasattr(stream, "close"):
                await stream.close()

    def _error(self, error: Exception, model: str) -> EngineError:
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            raw: Any = getattr(getattr(error, "response", None), "headers", None) or {}
            headers = {str(name).lower(): str(value) for name, value in dict(raw).items()}
            return error_for(status, headers, str(error), where=self.name, model=model)
        said = (
            f"the client of {self.name} failed ({type(error).__name__}: {error}); "
            "check that its server runs and that this machine reaches it"
        )
        timed_out = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
        return EngineTimeoutError(said) if timed_out else EngineUnavailableError(said)
