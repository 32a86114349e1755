"""Calls that are answered by an equal one of before, or of now: requests, and pure tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from accord.engine.base import Reply, Request, Usage
from accord.flow.call import Measured
from accord.flow.scope import CallScope
from accord.log.events import Saved, Spent
from accord.reuse.key import request_key
from accord.reuse.results import Entry, Mode, UnusableError, Wait, mode_for, repeats

NOTHING_USED = Usage(prompt=0, completion=0)
COMPLETE = ("stop", "tool_calls")
"""How a reply ends that is whole."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """What is kept of a call, and how.

    ``pack`` gives None for what is not to be kept; ``unpack`` raises ``ValueError`` for what cannot
    have been.
    """

    key: bytes
    mode: Mode
    kind: str
    name: str
    pack: Callable[[Measured], bytes | None]
    unpack: Callable[[bytes], Any]

    def unpacked(self, entry: Entry) -> Any:
        """The result in an entry; raises ``ValueError`` if it cannot be of such a call."""
        return self.unpack(bytes(entry.result))


async def reused(
    result: Keeping,
    scope: CallScope,
    make: Callable[[], Awaitable[Measured]],
    *,
    until_s: float | None = None,
) -> Measured:
    """What the cache has, else what ``make`` gives, which is then kept.

    An equal call is waited for until ``until_s`` at most, on the loop's clock.
    """
    execution, log = scope.execution, scope.execution.log
    cache, began = execution.result_cache, log.now()
    wait = Wait(scope=scope, until_s=until_s, begins=execution.schedulers.lift)
    async with cache.turn(result.key, result.mode, result.unpacked, wait) as turn:
        if turn.entry is not None:
            entry, spent = turn.entry, Spent(queued_ns=log.now() - began if turn.waited else 0)
            saved = Saved(usage=entry.usage, cost=entry.cost, took_ns=entry.took_ns)
            return Measured(turn.value, spent=spent, saved=saved)
        if (flight := turn.flight) is not None:
            scope.askers = lambda: flight.scopes
        measured = await make()
        if result.mode in ("write", "on"):
            entry = _entry(result, measured, log.now() - began)
            if entry is not None:
                whose = execution.schedulers.tenant
                cache.keep(result.key, entry, tenant=whose, kind=result.kind, name=result.name)
            turn.made(entry)
        return measured


def _entry(result: Keeping, measured: Measured, took_ns: int) -> Entry | None:
    packed = result.pack(measured)
    if packed is None:
        return None
    return Entry(
        result=msgspec.Raw(packed),
        usage=measured.usage,
        cost=measured.cost,
        took_ns=took_ns if measured.spent is None else measured.spent.total_ns,
    )


def reusable_request(
    request: Request,
    scope: CallScope,
    engine: tuple[str, str],
    asked_for: Mode | None,
    usable: Callable[[Reply], bool],
) -> Keeping | None:
    """How a request is kept; None if it is not to be.

    ``engine`` is its identity and its model. Without being asked for, only what would be answered
    alike again is kept.
    """
    execution = scope.execution
    mode = mode_for(asked_for, execution.cache_mode)
    if mode == "off" or (mode is None and not repeats(request)):
        return None
    key = request_key(request, execution.schedulers.tenant, *engine)
    if key is None:
        return None
    return Keeping(
        key=key,
        mode=mode or "on",
        kind="request",
        name=request.agent,
        pack=partial(_pack, usable),
        unpack=partial(_unpack, usable),
    )


def _pack(usable: Callable[[Reply], bool], measured: Measured) -> bytes | None:
    """A reply that is whole, of use to its agent, and as it was asked for."""
    reply: Reply = measured.value
    whole = reply.finish_reason in COMPLETE and bool(reply.text or reply.tool_calls)
    used = measured.usage is not None and measured.usage.completion > 0
    if not (whole and used and not measured.rung and usable(reply)):
        return None
    try:
        return msgspec.json.encode(msgspec.structs.replace(reply, usage=None, timings=None))
    except UnicodeEncodeError:
        return None


def _unpack(usable: Callable[[Reply], bool], packed: bytes) -> Reply:
    reply = msgspec.json.decode(packed, type=Reply)
    if not usable(reply):
        raise UnusableError("a reply that its agent cannot use")
    return msgspec.structs.replace(reply, usage=NOTHING_USED)
