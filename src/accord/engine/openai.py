"""Any OpenAI-compatible server: vLLM, SGLang, TensorRT-LLM, llama.cpp, hosted APIs.

One request is one POST. Nothing is retried here, with one exception that cannot be billed twice: a
server that refuses a field which the request can do without (``stream_options``, a priority) is
asked again without it. Closing the generator closes the socket, which makes these servers stop
generating.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import urllib.parse
import warnings
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accord.engine.base import TextDelta
from accord.engine.failures import error_for, error_in, reason, refused_field
from accord.engine.http import HttpClient, read_all
from accord.engine.probe import Probe, probe
from accord.engine.sse import EventDecoder
from accord.engine.wire import ReplyFold, body, encode
from accord.errors import (
    EngineError,
    EngineProtocolError,
    EngineUnavailableError,
    RejectedError,
    TransientEngineError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from accord.engine.base import Capabilities, Prices, Reply, Request
    from accord.engine.http import Response

OPENAI_URL = "https://api.openai.com/v1"

# How long to wait, after the last event, for the end of the body: with it the connection can serve
# the next request, and without it nothing is lost.
_DRAIN_S = 0.2

_EXCERPT_BYTES = 1024


class OpenAIEngine:
    """Speaks the chat completions protocol to ``base_url``.

    A ``base_url`` without a path gets ``/v1``. ``read_timeout_s`` bounds the silence between two
    pieces of an answer, so it also bounds the wait for the first token. ``concurrency`` and
    ``prices`` go into the capabilities as they are. ``service_tiers`` lets urgent requests be asked
    for as "priority" and others, of a priority below 0, as "flex": hosted APIs have prices of their
    own for them. Raises UsageError for a URL or a key that cannot be one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        concurrency: int | None = None,
        prices: Prices | None = None,
        headers: Mapping[str, str] | None = None,
        service_tiers: bool = False,
    ) -> None:
        self._base, credentials = _split(base_url)
        self.name = urllib.parse.urlunsplit(self._base._replace(query=""))
        self._secret = (api_key or "").strip()
        self._headers = _headers(self._secret, credentials, headers or {})
        self._model = model
        self._stream = stream
        self._concurrency = concurrency
        self._prices = prices
        self._service_tiers = service_tiers
        self._refused: set[str] = set()
        """Fields of the body that the server does not take."""
        self._found: Probe | None = None
        self._client = HttpClient(
            self.name, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s
        )

    @property
    def identity(self) -> str:
        """The whole URL, and what headers say but for whose key it is."""
        told = sorted(each for each in self._headers.items() if each[0].lower() != "authorization")
        return f"{urllib.parse.urlunsplit(self._base)} {told}"

    @classmethod
    def from_env(cls, *, model: str | None = None) -> OpenAIEngine:
        """The engine that OPENAI_BASE_URL, _API_KEY, _MODEL, _ORG_ID and _PROJECT_ID describe."""
        named = {
            "OpenAI-Organization": os.environ.get("OPENAI_ORG_ID", ""),
            "OpenAI-Project": os.environ.get("OPENAI_PROJECT_ID", ""),
        }
        return cls(
            os.environ.get("OPENAI_BASE_URL") or OPENAI_URL,
            model=model or os.environ.get("OPENAI_MODEL") or None,
            api_key=os.environ.get("OPENAI_API_KEY") or None,
            headers={name: value for name, value in named.items() if value},
        )

    async def start(self) -> Capabilities:
        """See that the server is there and ask what it can do.

        Raises EngineUnavailableError if nothing answers. What the server does not tell stays
        unknown.
        """
        if self._found is None:
            self._found = await probe(
                self._client,
                self._url,
                self._headers,
                model=self._model,
                concurrency=self._concurrency,
                prices=self._prices,
                service_tiers=self._service_tiers,
            )
        return self._found.capabilities

    async def generate(self, request: Request) -> AsyncGenerator[TextDelta | Reply]:
        """Yield text as it comes, then the reply. Raises only EngineError and its branches."""
        model = request.model or self._model or (await self.start()).model
        payload = self._payload(request, model)
        try:
            async with aclosing(self._attempt(payload, model, request.extra)) as pieces:
                async for piece in pieces:
                    yield piece
        except _FieldRefusedError as refused:
            # Remembered, so that each later request is one request. It ends: the next payload has
            # none.
            if refused.field not in self._refused:
                self._refused.add(refused.field)
                warnings.warn(
                    f"{self.name} does not take {refused.field!r}: it is left out from now on",
                    stacklevel=2,
                )
            async with aclosing(self.generate(request)) as pieces:
                async for piece in pieces:
                    yield piece

    async def get(self, path: str) -> str:
        """The text at ``path`` of the server's root, such as ``/metrics``."""
        url = self._url(path, root=True)
        answer = await self._client.fetch("GET", url, headers=self._headers)
        text = answer.body.decode("utf-8", "replace")
        if answer.status != 200:
            raise error_for(answer.status, answer.headers, text, where=url, secret=self._secret)
        return text

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _payload(self, request: Request, model: str) -> dict[str, Any]:
        takes = self._found.capabilities.priority if self._found else None
        payload = body(request, model, self._stream, takes)
        for field in self._refused - request.extra.keys():
            payload.pop(field, None)
        if "max_tokens" in payload and self._base.hostname == "api.openai.com":
            # OpenAI's newer models refuse the old name; all of its chat models take the new one.
            payload.setdefault("max_completion_tokens", payload.pop("max_tokens"))
        return payload

    async def _attempt(
        self, payload: dict[str, Any], model: str, asked: Mapping[str, Any]
    ) -> AsyncGenerator[TextDelta | Reply]:
        place = _Place(url=self._url("/chat/completions"), secret=self._secret)
        served = self._found.served if self._found else ()
        async with self._client.request(
            "POST", place.url, headers=self._headers, content=encode(payload)
        ) as response:
            if response.status != 200:
                text = (await read_all(response, place.url)).decode("utf-8", "replace")
                raise self._refusal(response, text, model, payload, asked)
            fold = ReplyFold(place.url)
            streamed = _is_stream(response, asked=bool(payload.get("stream")))
            source = _events(response, place, fold) if streamed else _whole(response, place)
            async with aclosing(source) as chunks:
                async for chunk in chunks:
                    if error := error_in(
                        chunk, where=place.url, model=model, served=served, secret=self._secret
                    ):
                        raise error
                    if text := fold.add(chunk):
                        yield TextDelta(text)
            reply = fold.reply()
        # Outside the block: whoever stops at the reply must not cost us the connection.
        yield reply

    def _refusal(
        self,
        response: Response,
        text: str,
        model: str,
        payload: Mapping[str, Any],
        asked: Mapping[str, Any],
    ) -> EngineError:
        if response.status in (400, 422):
            spare = ("stream_options", "priority", "service_tier")
            sent = [each for each in spare if each in payload and each not in asked]
            if (field := refused_field(text, sent)) is not None:
                return _FieldRefusedError(field, response.status)
        return error_for(
            response.status,
            response.headers,
            text,
            where=self._url("/chat/completions"),
            model=model,
            served=self._found.served if self._found else (),
            secret=self._secret,
        )

    def _url(self, path: str, *, root: bool = False) -> str:
        """``path`` under the base URL, or under the server's root (the base less ``/v1``)."""
        base = self._base.path.removesuffix("/v1") if root else self._base.path
        return urllib.parse.urlunsplit(self._base._replace(path=base + path))


class _FieldRefusedError(RejectedError):
    """The server does not take a field that the request can do without."""

    def __init__(self, field: str, status: int) -> None:
        super().__init__(field, status=status)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an answer came from, and what no message about it may show."""

    url: str
    secret: str


async def _events(
    response: Response, place: _Place, fold: ReplyFold
) -> AsyncGenerator[Mapping[str, Any]]:
    """The chunks of a stream. Its end counts as one after ``[DONE]`` or a finish reason."""
    decoder = EventDecoder(place.url)
    head = b""
    seen = False
    try:
        async for piece in response.chunks:
            head = head if len(head) >= _EXCERPT_BYTES else head + piece[:_EXCERPT_BYTES]
            for data in decoder.feed(piece):
                if data.strip() == "[DONE]":
                    await _drain(response)
                    return
                seen = True
                yield _object(data, place)
    except TransientEngineError:
        # Cut after the finish reason: the text is whole, at most the usage is missing.
        if not fold.finished:
            raise
        return
    for data in decoder.finish():
        if data.strip() == "[DONE]":
            return
        with suppress(EngineProtocolError):  # half of an event that the cut left
            yield _object(data, place)
            seen = True
    if not seen:
        raise _no_protocol(head.decode("utf-8", "replace"), place)
    if not fold.finished:
        message = (
            f"{place.url} ended the stream before the reply was finished; "
            "if it stays so, look at the log of the server and of any proxy before it"
        )
        raise EngineUnavailableError(message)


async def _whole(response: Response, place: _Place) -> AsyncGenerator[Mapping[str, Any]]:
    text = (await read_all(response, place.url)).decode("utf-8", "replace")
    yield _object(text, place)


async def _drain(response: Response) -> None:
    if response.headers.get("server") == "llama.cpp":
        # It promises to keep the connection and closes it a moment after each stream. Unread, ours
        # is closed too; read to its end, it would break whichever request comes next.
        return
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in response.chunks:
                pass


def _object(text: str, place: _Place) -> Mapping[str, Any]:
    try:
        # Not msgspec: it refuses lone surrogates, which engines do send.
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_protocol(text, place) from None
    if not isinstance(value, dict):
        raise _no_protocol(text, place)
    return value  # pyright: ignore[reportUnknownVariableType]


def _no_protocol(text: str, place: _Place) -> EngineProtocolError:
    said = reason(text, place.secret)
    message = (
        f"{place.url} answered 200 with something that is no chat completion: {said}; "
        "check that the base URL is an OpenAI-compatible server and ends in /v1"
    )
    return EngineProtocolError(message, status=200)


def _is_stream(response: Response, *, asked: bool) -> bool:
    """By what the server says it sent: some ignore ``stream``."""
    kind = response.headers.get("content-type", "").lower()
    if "event-stream" in kind:
        return True
    return asked and "json" not in kind and "html" not in kind


def _split(base_url: str) -> tuple[urllib.parse.SplitResult, str]:
    """The URL without credentials, and the credentials as ``user:password``."""
    try:
        parts = urllib.parse.urlsplit(base_url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
        parts = urllib.parse.urlsplit("")
    if not usable or not base_url.isascii():
        message = (
            "the base URL must look like http://host:port/v1 (set OPENAI_BASE_URL or --engine)"
        )
        raise UsageError(message)
    credentials, _, where = parts.netloc.rpartition("@")
    path = parts.path.rstrip("/") or "/v1"
    clean = parts._replace(netloc=where, path=path, fragment="")
    return clean, urllib.parse.unquote(credentials)


def _headers(secret: str, credentials: str, extra: Mapping[str, str]) -> dict[str, str]:
    if not (secret.isascii() and secret.isprintable()):
        message = "the API key holds characters that no key has; check OPENAI_API_KEY"
        raise UsageError(message)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "User-Agent": "accord",
    }
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    elif credentials:
        headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    return headers | dict(extra)
