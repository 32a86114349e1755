"""What was said: every request's prompt and reply, as it went to the engine and came back."""

from __future__ import annotations

from typing import cast

import msgspec

from accord.engine.base import Message, Reply, Request, Usage
from accord.log.events import CallFinished
from accord.log.fold import index_calls, is_within
from accord.log.log import Log


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``reply`` and ``usage`` are None while there is no reply."""

    scope: str
    agent: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    """What it was offered, by name."""
    reply: Reply | None
    usage: Usage | None

    @property
    def was_cut(self) -> bool:
        """The reply stopped at ``max_tokens``."""
        return self.reply is not None and self.reply.finish_reason == "length"


def exchanges_of(log: Log, within: str = "") -> list[Exchange]:
    """The requests of a run, in the order of asking; only those at or below ``within``."""
    found: list[Exchange] = []
    for call in index_calls(log.envelopes).by_start.values():
        if call.started.kind != "request" or not is_within(call.scope, within):
            continue
        request = cast("list[Request]", log.values.decode(call.started.input))[0]
        reply, usage = None, None
        if isinstance(call.ended, CallFinished):
            reply = cast("Reply", log.values.decode(call.ended.output))
            usage = call.ended.usage
        found.append(
            Exchange(
                scope=call.scope,
                agent=request.agent,
                messages=request.messages,
                tools=tuple(spec.name for spec in request.tools),
                reply=reply,
                usage=usage,
            )
        )
    return found
