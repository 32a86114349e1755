"""Token ledger: every prompt token by where its text came from.

An engine counts a prompt as a whole; its count is spread over the pieces of the prompt by
their estimated sizes, so the parts add up to the engine's count exactly.

Whose text a piece is, is read off the log (:mod:`accord.observe.authors`): what the run's input
says is the *task*; what an earlier reply said is its writer's, so *history* for the writer and
*peers* for anybody else; what a tool or step gave, and tools' descriptions, are *tools*. What an
agent's definition says is *instructions*; what the flow itself added counts as *task*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from accord.engine.base import Message, Reply, Request, Usage
from accord.errors import LogError
from accord.log.events import AttemptFailed, CallCancelled, CallFinished, RunStarted
from accord.log.fold import Call
from accord.log.log import Log
from accord.observe.authors import Authors, pieces_of
from accord.tokens.count import estimate

ORIGINS = ("instructions", "task", "history", "peers", "board", "memory", "tools")

CACHE_BLOCK = 16
"""Engines reuse prefixes in blocks: fewer missing tokens than this are no eviction."""


@dataclass(slots=True)
class Part:
    """Neighbouring pieces of one origin. ``repeat``: sent to this agent before, in this run."""

    origin: str
    repeat: bool
    tokens: int


@dataclass(slots=True)
class Entry:
    """One request in the ledger. ``parts`` are in prompt order and add up to ``usage.prompt``."""

    call: Call
    usage: Usage
    """Of all billed attempts together."""
    parts: list[Part]
    evicted: int = 0
    """Tokens that an earlier request had left in the engine's cache, and that were gone."""

    @property
    def agent(self) -> str:
        return self.call.started.name


def billed_events(call: Call) -> Iterator[AttemptFailed | CallFinished | CallCancelled]:
    """The events of a request that may carry usage and cost."""
    yield from call.attempts
    for end in call.all_ends:
        if isinstance(end.event, CallFinished | CallCancelled):
            yield end.event


def usages_of(call: Call) -> Iterator[Usage]:
    """Every billed attempt of a request."""
    for billed in billed_events(call):
        if billed.usage is not None:
            yield billed.usage


def add_usages(usages: Iterable[Usage]) -> Usage:
    """The sum, estimated if any part is."""
    listed = list(usages)
    return Usage(
        prompt=sum(usage.prompt for usage in listed),
        completion=sum(usage.completion for usage in listed),
        cached=sum(usage.cached for usage in listed),
        cache_write=sum(usage.cache_write for usage in listed),
        reasoning=sum(usage.reasoning for usage in listed),
        estimated=any(usage.estimated for usage in listed),
    )


def ledger_of(log: Log, calls: Iterable[Call]) -> list[Entry]:
    """The entries of all requests among ``calls`` that were billed, in order of their start."""
    book = _Book(log)
    for envelope in log.envelopes:
        if isinstance(envelope.event, RunStarted):
            book.authors.learn(book.decode(envelope.event.input), "task")
    moments: list[tuple[int, bool, Call]] = []
    for call in calls:
        moments.append((call.start.seq, False, call))
        if call.end is not None:
            moments.append((call.end.seq, True, call))
    entries: list[Entry] = []
    for _, ended, call in sorted(moments, key=lambda moment: moment[:2]):
        if ended:
            book.end(call)
        elif call.started.kind == "request" and (usages := list(usages_of(call))):
            entries.append(book.enter(call, usages))
    return entries


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """``total`` in whole parts as ``weights``; the parts add up (largest remainder)."""
    whole = sum(weights)
    if not weights:
        return []
    if whole <= 0:
        return [total, *[0] * (len(weights) - 1)]
    shares = [total * weight / whole for weight in weights]
    parts = [int(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - shares[i])
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


@dataclass(slots=True)
class _Piece:
    text: str
    origin: str
    tokens: int


@dataclass
class _Book:
    log: Log
    authors: Authors = field(default_factory=Authors)
    sent: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    prefixes: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """A number for each prompt prefix seen: its last piece, behind a shorter prefix."""
    cached: set[int] = field(default_factory=set[int])
    """The prefixes that finished requests left in the engine's cache."""
    open: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The prefixes of requests under way, by their call."""

    def end(self, call: Call) -> None:
        if not isinstance(call.ended, CallFinished):
            return
        kind = call.started.kind
        if kind in ("step", "tool"):
            self.authors.learn(self.decode(call.ended.output), "tools")
        elif kind == "request":
            reply = self.decode(call.ended.output)
            if isinstance(reply, Reply):
                self.authors.learn(reply.text, f"by {call.started.name}")
            self.cached.update(self.open.pop(call.start.seq, ()))

    def enter(self, call: Call, usages: list[Usage]) -> Entry:
        request = cast("list[Request]", self.log.values.decode(call.started.input))[0]
        pieces = list(self._pieces(request)) or [_Piece("", "task", 1)]
        usage = add_usages(usages)
        tokens = apportion(usage.prompt, [piece.tokens for piece in pieces])
        sent = self.sent.setdefault(request.agent, set())
        parts: list[Part] = []
        for piece, count in zip(pieces, tokens, strict=True):
            repeat = piece.text in sent
            if parts and parts[-1].origin == piece.origin and parts[-1].repeat == repeat:
                parts[-1].tokens += count
            else:
                parts.append(Part(piece.origin, repeat, count))
        sent.update(piece.text for piece in pieces)
        prefixes = self.open[call.start.seq] = self._prefixes(request, pieces)
        missing = self._expected(prefixes, tokens) - usage.cached
        evicted = missing if usage.cached and missing >= CACHE_BLOCK else 0
        return Entry(call, usage, parts, evicted)

    def _expected(self, prefixes: list[int], tokens: list[int]) -> int:
        expected = 0
        for prefix, count in zip(prefixes, tokens, strict=True):
            if prefix not in self.cached:
                break
            expected += count
        return expected

    def _prefixes(self, request: Request, pieces: list[_Piece]) -> list[int]:
        last = self.prefixes.setdefault((0, f"model {request.model}"), len(self.prefixes) + 1)
        found: list[int] = []
        for piece in pieces:
            last = self.prefixes.setdefault((last, piece.text), len(self.prefixes) + 1)
            found.append(last)
        return found

    def _pieces(self, request: Request) -> Iterator[_Piece]:
        for spec in request.tools:
            size = estimate(f"{spec.name}{spec.description}{spec.parameters}")
            yield _Piece(spec.name, "tools", size)
        for message in request.messages:
            yield from self._pieces_of(message, request.agent)

    def _pieces_of(self, message: Message, agent: str) -> Iterator[_Piece]:
        text = message.content + "".join(call.arguments for call in message.tool_calls)
        if message.origin in ("board", "memory"):
            # What was shown before is a part of what is shown now.
            yield from (_Piece(p, message.origin, estimate(p) + 1) for p in pieces_of(text))
            return
        if message.origin != "task":
            yield _Piece(text, message.origin, estimate(text) + 1)
            return
        author = "task"
        for piece in pieces_of(text):
            author = self.authors.of(piece) or author
            yield _Piece(piece, _origin_for(agent, author), estimate(piece) + 1)

    def decode(self, value: Any) -> Any:
        try:
            return self.log.values.decode(value)
        except LogError:
            return None  # a class of the user's that cannot be imported here: no text to match


def _origin_for(agent: str, author: str) -> str:
    if not author.startswith("by "):
        return author
    return "history" if author == f"by {agent}" else "peers"
