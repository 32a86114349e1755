"""The one-method door to inference.

An :class:`Engine` turns a :class:`Request` into text deltas and, last, one :class:`Reply`
with the engine's own usage and timings. It never retries, never queues and never caches:
those belong to the runtime, which owns each of them once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

CACHED_PRICE = 0.1
"""What a cached prompt token costs of a fresh one, where an engine names no prices."""

Role = Literal["system", "user", "assistant", "tool"]

Origin = Literal["instructions", "task", "history", "board", "memory", "tools"]
"""Which layer of the prompt a message came from. Who *wrote* the text inside a task (the
user, a peer, the agent itself) is read off the log by the tax report."""


Priority = Literal["lower_first", "higher_first", "service_tier"]
"""How a server takes a priority: a number of which the lower, or the higher, goes first; or one of
its price lists."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asked for. ``arguments`` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model sees it. ``parameters`` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a prompt, or a part of one: neighbours of one role are sent as one.

    ``origin`` is for the ledger; ``kept`` says that the message stays in an agent's history.
    Neither reaches the wire.
    """

    role: Role
    content: str
    origin: Origin = "task"
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    kept: bool = True


def joined(messages: Sequence[Message]) -> list[Message]:
    """``messages`` as a model gets them: parts of one role (system, user) in one message."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is None or last.role != message.role or message.role not in ("system", "user"):
            whole.append(message)
        else:
            text = f"{last.content}\n\n{message.content}"
            whole[-1] = msgspec.structs.replace(last, content=text)
    return whole


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One inference request.

    ``agent`` says who asks and never reaches the wire. ``schema`` is the JSON schema that
    the reply must follow. ``extra`` is merged into the body of HTTP engines as it stands.
    ``priority`` is larger for what is more urgent; it is set when the request is sent, so that it
    is part of no key, and each engine gets it in its own terms.
    """

    messages: tuple[Message, ...]
    agent: str = ""
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    priority: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one billed attempt, normalised over vendors.

    ``prompt`` includes ``cached`` (read from a cache) and ``cache_write``; ``completion``
    includes ``reasoning``. ``estimated`` says that the engine gave no count and ours stands in.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine's own measurements, in seconds; None where it gave none."""

    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the reply's text."""

    text: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a generation: the whole text, and what it cost.

    ``usage`` is None if the engine reported none; zero is not missing.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage | None = None
    timings: Timings | None = None
    model: str = ""
    id: str = ""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens. Cached input is priced once, at ``cached``."""

    prompt: float
    completion: float
    cached: float | None = None

    def cost(self, usage: Usage) -> float:
        """Dollars for one attempt: uncached, cached and completion tokens each priced once."""
        cached_price = self.prompt if self.cached is None else self.cached
        uncached = usage.prompt - usage.cached
        total = uncached * self.prompt + usage.cached * cached_price
        return (total + usage.completion * self.completion) / 1_000_000


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can do. None means unknown, or unlimited where it is a bound.

    ``window`` and ``kv_tokens`` are in tokens: the most that one request may hold, prompt and
    reply together, and what the KV cache holds over all requests. ``concurrency`` is how many
    requests it works on at once. ``tools`` is False if its model cannot be told of tools.
    ``tokenizer`` counts the tokens of a text exactly.

    ``priority`` is how it takes one in its requests, if it does. ``slots`` says that what it has in
    its cache belongs to slots: one that is at work shares nothing. ``refuses`` says that it answers
    429 where others queue.
    """

    model: str = ""
    concurrency: int | None = None
    window: int | None = None
    kv_tokens: int | None = None
    prefix_cache: bool = False
    tools: bool = True
    priority: Priority | None = None
    slots: bool = False
    refuses: bool = False
    tokenizer: Callable[[str], Awaitable[int]] | None = None
    prices: Prices | None = None

    @property
    def cached_price(self) -> float:
        """What a cached prompt token costs of a fresh one; 1 without a prefix cache."""
        if not self.prefix_cache:
            return 1.0
        prices = self.prices
        if prices is None or prices.cached is None or not prices.prompt:
            return CACHED_PRICE
        return prices.cached / prices.prompt


def identity_of(engine: Engine) -> str:
    """What tells an engine from all that may answer otherwise."""
    return str(getattr(engine, "identity", engine.name))


def identity_of_its_own(name: str) -> str:
    """An identity that no other engine has, for one that answers as it likes."""
    return f"{name} {os.urandom(8).hex()}"


@asynccontextmanager
async def answering(
    engine: Engine, request: Request
) -> AsyncGenerator[AsyncIterator[TextDelta | Reply]]:
    """What ``engine`` gives for ``request``; it is told when nobody wants more of it."""
    replies = engine.generate(request)
    try:
        yield replies
    finally:
        close = getattr(replies, "aclose", None)
        if close is not None:
            await close()


class Engine(Protocol):
    """Anything that answers requests.

    ``name`` says which engine and where, in a form that ``--engine`` takes again; it is
    recorded in the log and holds no secret. Where engines of one name may answer otherwise, each
    has an ``identity`` (a text, which goes into hashes only): what one answered does not serve for
    another.
    """

    name: str

    async def start(self) -> Capabilities:
        """Make ready and say what it can do. May be called again; the second is free."""
        ...

    def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
        """Yield text deltas as they come, then exactly one :class:`Reply`, last.

        Closing the iterator early aborts the generation on the engine.
        Raises only :class:`accord.errors.EngineError` and its branches.
        """
        ...

    async def close(self) -> None:
        """Let go of what the running event loop holds of it, such as sockets.

        Other loops go on, and a later request makes ready again. What outlives loops (a loaded
        model) goes when the engine is dropped.
        """
        ...
