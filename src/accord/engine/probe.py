"""What a server can do, asked of the server itself.

Only reaching it is required. Each further answer may be missing, refused or wrong: hosted APIs
have none of these endpoints, and what is not known stays None.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from accord.engine.base import Capabilities
from accord.engine.prices import prices_of
from accord.engine.shapes import items, mapping
from accord.engine.wire import encode
from accord.errors import EngineError, EngineProtocolError, EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from accord.engine.base import Prices
    from accord.engine.http import HttpClient

_PROBE_TIMEOUT_S = 10.0
_WINDOW_KEYS = ("max_model_len", "context_length", "context_window")  # vLLM and SGLang; hosted APIs


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The capabilities, and the models that the server says it serves."""

    capabilities: Capabilities
    served: tuple[str, ...] = ()


class Urls(Protocol):
    """Where a path is: under the API's base, or under the server's root."""

    def __call__(self, path: str, *, root: bool = False) -> str: ...


async def probe(
    client: HttpClient,
    url: Urls,
    headers: Mapping[str, str],
    *,
    model: str | None,
    concurrency: int | None,
    prices: Prices | None,
    service_tiers: bool = False,
) -> Probe:
    """Ask for the models, then what the kind of server allows to ask.

    Raises EngineUnavailableError if the server cannot be reached.
    """
    ask = _Asker(client, url, headers)
    entries = [mapping(entry) for entry in items((await ask.models()).get("data"))]
    served = tuple(str(entry["id"]) for entry in entries if entry.get("id"))
    chosen = model or (served[0] if served else "")
    entry = next((entry for entry in entries if entry.get("id") == chosen), mapping(None))
    found = await _kind(ask, entry, chosen, alone=len(entries) == 1)
    if prices is None and url("").startswith("https:"):  # at home, models are named at will
        prices = prices_of(chosen)
    capabilities = Capabilities(
        model=chosen,
        concurrency=found.concurrency if concurrency is None else concurrency,
        window=found.window,
        kv_tokens=found.kv_tokens,
        prefix_cache=found.prefix_cache or (prices is not None and prices.cached is not None),
        tools=found.tools,
        tokenizer=found.tokenizer,
        prices=prices,
        priority="service_tier" if service_tiers else found.priority,
        slots=found.slots,
        refuses=found.refuses,
    )
    return Probe(capabilities=capabilities, served=served)


async def _kind(ask: _Asker, entry: Mapping[str, Any], model: str, *, alone: bool) -> Capabilities:
    """What this kind of server says of itself."""
    owner = entry.get("owned_by")
    meta = mapping(entry.get("meta"))
    window = next((n for key in _WINDOW_KEYS if (n := _positive(entry.get(key)))), None)
    if owner == "llamacpp" or "n_ctx_train" in meta:
        return await _llama_cpp(ask, _positive(meta.get("n_ctx")), alone=alone)
    if owner == "vllm":
        # Whether its scheduling policy is "priority" it does not say; the first request will tell.
        return replace(await _paged(ask, model, window), priority="lower_first")
    if owner == "sglang":
        return await _sglang(ask, await _paged(ask, model, window))
    return Capabilities(window=window, refuses=True)


async def _llama_cpp(ask: _Asker, window: int | None, *, alone: bool) -> Capabilities:
    # A router in front of several models (llama-swap) has no one /props that speaks for all.
    props = await ask.get("/props") if alone else mapping(None)
    slots = _positive(props.get("total_slots"))
    settings = mapping(props.get("default_generation_settings"))
    window = _positive(settings.get("n_ctx")) or window
    return Capabilities(
        concurrency=slots,
        window=window,
        kv_tokens=slots * window if slots and window else None,
        prefix_cache=True,
        slots=True,
        tools=mapping(props.get("chat_template_caps")).get("supports_tools") is not False,
        tokenizer=await ask.tokenizer(lambda text: {"content": text}),
    )


async def _paged(ask: _Asker, model: str, window: int | None) -> Capabilities:
    metrics = await ask.text("/metrics")
    blocks, block = _label(metrics, "num_gpu_blocks"), _label(metrics, "block_size")
    return Capabilities(
        window=window,
        kv_tokens=blocks * block if blocks and block else None,
        prefix_cache=True,
        # Without special tokens: a text in the middle of a prompt has none.
        tokenizer=await ask.tokenizer(
            lambda text: {"model": model, "prompt": text, "add_special_tokens": False}
        ),
    )


async def _sglang(ask: _Asker, found: Capabilities) -> Capabilities:
    info = await ask.get("/get_server_info") or await ask.get("/server_info")
    kv_tokens = _positive(info.get("max_total_num_tokens")) or found.kv_tokens
    if info.get("enable_priority_scheduling") is not True:
        return replace(found, kv_tokens=kv_tokens)
    lower = info.get("schedule_low_priority_values_first") is True
    return replace(found, kv_tokens=kv_tokens, priority="lower_first" if lower else "higher_first")


class _Asker:
    """Asks one server; an answer that is missing or wrong is an empty one."""

    def __init__(self, client: HttpClient, url: Urls, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = headers

    async def models(self) -> Mapping[str, Any]:
        url = self._url("/models")
        try:
            answer = await self._client.fetch(
                "GET", url, headers=self._headers, read_timeout_s=_PROBE_TIMEOUT_S
            )
        except EngineUnavailableError as error:
            message = (
                f"no engine at {url}: {error}; "
                "or set OPENAI_BASE_URL to another, or use --engine local"
            )
            raise EngineUnavailableError(message) from error
        except EngineError:
            return {}  # it is there, and busy or odd; the first request will tell
        return _json(answer.body) if answer.status == 200 else {}

    async def text(self, path: str) -> str:
        try:
            answer = await self._client.fetch(
                "GET",
                self._url(path, root=True),
                headers=self._headers,
                read_timeout_s=_PROBE_TIMEOUT_S,
            )
        except EngineError:
            return ""
        return answer.body.decode("utf-8", "replace") if answer.status == 200 else ""

    async def get(self, path: str) -> Mapping[str, Any]:
        return _json((await self.text(path)).encode())

    async def tokenizer(
        self, shape: Callable[[str], dict[str, Any]]
    ) -> Callable[[str], Awaitable[int]] | None:
        """A counter over ``/tokenize``, if a first count works."""

        async def count(text: str) -> int:
            url = self._url("/tokenize", root=True)
            answer = await self._client.fetch(
                "POST", url, headers=self._headers, content=encode(shape(text))
            )
            counted = _counted(_json(answer.body))
            if counted is None:
                message = (
                    f"{url} answered {answer.status} without a count of tokens; "
                    "the server's own log may say why"
                )
                raise EngineProtocolError(message, status=answer.status)
            return counted

        try:
            await count("a")
        except EngineError:
            return None
        return count


def _counted(answer: Mapping[str, Any]) -> int | None:
    count = answer.get("count")
    if isinstance(count, int) and count >= 0:
        return count
    tokens = answer.get("tokens")
    return None if tokens is None else len(items(tokens))


def _json(raw: bytes) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(raw))
    except (ValueError, RecursionError):
        return {}


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _label(metrics: str, name: str) -> int | None:
    """A number among the labels of vLLM's ``cache_config_info``."""
    found = re.search(rf"cache_config_info\{{[^}}]*\b{name}=\"(\d+)\"", metrics)
    return int(found[1]) if found else None
