"""Tool calls from the pieces of a stream, sent by the protocol or as engines really send them.

What comes out has an id and arguments for each call, in the order in which the calls began.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accord.engine.base import ToolCall
from accord.engine.shapes import mapping, string

if TYPE_CHECKING:
    from collections.abc import Mapping


class ToolCallFold:
    """Puts tool calls together from their pieces.

    By the protocol each call has its own ``index`` and its id comes once. Engines send parallel
    calls all at index 0, repeat the id on each piece, or send no ids; so a new call also starts
    when the id changes, and when a name comes after arguments that are complete JSON or for another
    tool.
    """

    def __init__(self) -> None:
        self._calls: list[_PartialCall] = []
        self._at: dict[int, _PartialCall] = {}

    def add(self, piece: Mapping[str, Any], *, whole: bool) -> None:
        """Take in one piece; ``whole`` says that it is a call of its own."""
        function = mapping(piece.get("function"))
        id_, name = string(piece.get("id")), string(function.get("name"))
        call = self._find(piece.get("index"), id_, name, whole=whole)
        call.id = call.id or id_
        if name != call.name:
            call.name += name
        arguments = function.get("arguments")
        # Some engines send the arguments as an object in place of its JSON text.
        written = arguments if isinstance(arguments, str) else _object_text(arguments)
        if written:
            call.arguments.append(written)

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, each with an id."""
        taken = {call.id for call in self._calls}
        free = (id_ for n in range(2 * len(self._calls)) if (id_ := f"call_{n}") not in taken)
        # A model that calls a tool without arguments may write none at all.
        return tuple(
            ToolCall(call.id or next(free), call.name, "".join(call.arguments).strip() or "{}")
            for call in self._calls
        )

    def _find(self, index: object, id_: str, name: str, *, whole: bool) -> _PartialCall:
        if not isinstance(index, int):
            index = next(reversed(self._at), 0)
        call = self._at.get(index)
        if call is None and id_ and not name:
            call = next((known for known in self._calls if known.id == id_), None)
        if call is None or whole or self._is_new(call, id_, name):
            call = _PartialCall()
            self._calls.append(call)
        self._at[index] = call
        return call

    def _is_new(self, call: _PartialCall, id_: str, name: str) -> bool:
        if id_ and call.id:
            return id_ != call.id
        other = bool(call.arguments) and name != call.name
        return bool(name) and bool(call.name) and (other or call.complete())


@dataclass
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def complete(self) -> bool:
        return _is_json("".join(self.arguments))


def _object_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
