"""What a result is kept under: a hash of all that it depends on."""

from __future__ import annotations

from hashlib import blake2b
from types import FunctionType
from typing import Any

from accord.engine.base import Request, joined
from accord.reuse.code import parts_of
from accord.reuse.tagged import tagged

KEY_BYTES = 20
IRRELEVANT = ("agent", "priority")
"""The fields of a request that change no reply: who asks, and how urgently."""


def request_key(request: Request, tenant: str, engine: str, model: str) -> bytes | None:
    """The key of a request: as it is sent, to which engine and model, for which tenant.

    Neighbouring messages of one role are one message, as on the wire. None if it cannot be told
    from others, for it holds what is no plain data.
    """
    fields: dict[str, Any] = {
        name: getattr(request, name)
        for name in request.__struct_fields__
        if name not in (*IRRELEVANT, "messages")
    }
    messages = [
        (each.role, each.content, each.tool_calls, each.tool_call_id)
        for each in joined(request.messages)
    ]
    return _key("request", tenant, engine, model, messages, fields)


def tool_key(function: object, arguments: dict[str, Any], tenant: str) -> bytes | None:
    """The key of a call of a plain function: where it is defined, its code, and its arguments.

    Its code is that of the functions and classes of its module that it uses, too, with the plain
    data there, or around it. What it imports, and objects of imported classes, are taken to stay as
    they are. None for what is or uses more than that: a method, an object of a class of its module.
    """
    if not isinstance(function, FunctionType):
        return None
    try:
        return _key("tool", tenant, parts_of(function, set()), arguments)
    except TypeError:
        return None


def _key(*parts: Any) -> bytes | None:
    try:
        return blake2b(tagged(parts), digest_size=KEY_BYTES).digest()
    except (TypeError, RecursionError):
        return None
