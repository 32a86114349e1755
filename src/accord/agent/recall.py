"""Handles, and the tool that fetches what stands behind them.

Large texts go into the log, and a prompt names them: ``#3/1`` is the place in the flow where one
was written, said, or returned by a tool. An agent may fetch what it reads, what it said, and
what its own tools returned; nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from accord.agent.context import RECALL, ContextSpec
from accord.agent.history import History, item_of
from accord.agent.reading import Item, items_of, place_of
from accord.agent.tool import shown
from accord.engine.base import ToolSpec
from accord.log.events import CallFinished
from accord.log.fold import is_within
from accord.log.log import Log
from accord.tokens.count import estimate

SLICE_TOKENS = 1000
SPEC = ToolSpec(
    name=RECALL,
    description="The full text behind a handle such as #3/1, or a range such as #3/1-#9/0.",
    parameters={
        "type": "object",
        "properties": {
            "handle": {"type": "string"},
            "start": {"type": "integer", "description": "first character"},
            "find": {"type": "string", "description": "show the text around these very words"},
        },
        "required": ["handle"],
        "additionalProperties": False,
    },
)


class NoSuchHandleError(ValueError):
    """There is nothing behind the handle that this agent may see; the message is for the model."""


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    handle: str
    start: int = 0
    find: str = ""


def answer(log: Log, arguments: str, agent: str, spec: ContextSpec, position: int) -> str:
    """What ``recall`` answers to a model's ``arguments``; mistakes are told in words."""
    try:
        asked = msgspec.json.decode(arguments.encode("utf-8", "replace"), type=_Arguments)
        text = text_behind(log, asked.handle, agent, spec, position)
    except (msgspec.DecodeError, RecursionError, NoSuchHandleError) as error:
        return f"error: {error}"
    return slice_of(text, asked.start, asked.find)


def text_behind(log: Log, handle: str, agent: str, spec: ContextSpec, position: int) -> str:
    """The whole text behind ``handle`` as of ``position``; raises :class:`NoSuchHandleError`."""
    first, _, last = handle.strip().partition("-#")  # names of tasks may have a "-" in them
    last = f"#{last}" if last else ""
    items = _readable(log, agent, spec, position)
    begin, end = _find(items, first), _find(items, last or first)
    if begin is not None and end is not None:
        chosen = [item for item in items if begin <= place_of(item) <= end]
        return "\n\n".join(item.shown for item in chosen)
    returned = None if last else _returned(log, first.lstrip("#"), agent, position)
    if returned is None:
        raise NoSuchHandleError(
            f"there is nothing behind {handle!r}; handles look like #3/1 or #3/1-#9/0"
        )
    return returned


def cut(text: str, tokens: int, handle: str) -> str:
    """``text``, or its beginning and end in ``tokens`` with the handle of the whole between."""
    if estimate(text) <= tokens:
        return text
    note = f"\n[… {len(text)} characters in all; recall {handle} for the rest …]\n"
    head = _first(text, max(1, tokens * 2 // 3))
    tail = _first(text[::-1], max(1, tokens // 3))[::-1]
    return head + note + tail


def slice_of(text: str, start: int = 0, find: str = "", tokens: int = SLICE_TOKENS) -> str:
    """The part of ``text`` from character ``start`` on that fits, and how to get the next.

    ``find`` moves the start to just before its next occurrence, whatever its case.
    """
    start = max(0, start)
    if find:
        match = re.compile(re.escape(find), re.IGNORECASE).search(text, start)
        if match is None:
            return f"{find!r} is not in the {len(text)} characters from {start} on"
        start = max(start, match.start() - len(_first(text[: match.start()][::-1], tokens // 2)))
    part = _first(text[start:], tokens)
    end = start + len(part)
    if start == 0 and end == len(text):
        return part
    more = f"; go on with start={end}" if end < len(text) else ""
    return f"{part}\n[characters {start} to {end} of {len(text)}{more}]"


def _first(text: str, tokens: int) -> str:
    """As many characters from the beginning as fit into ``tokens``."""
    size = min(len(text), tokens * 4)
    while size > 1 and estimate(text[:size]) > tokens:
        size = size * 3 // 4
    return text[:size]


def _readable(log: Log, agent: str, spec: ContextSpec, position: int) -> list[Item]:
    reads = (*spec.shares, *spec.reads)
    items = [
        item
        for index, read in enumerate(reads)
        for item in items_of(log, read, position, 0, reads[:index])
    ]
    calls = log.fold(History).calls.get(agent, ())
    items += [item_of(log, call) for call in calls if call.stands(position)]
    return sorted(items, key=place_of)


def _find(items: Sequence[Item], handle: str) -> Any:
    return next((place_of(item) for item in items if item.handle == handle), None)


def _returned(log: Log, path: str, agent: str, position: int) -> str | None:
    """What a tool of ``agent`` returned at ``path``."""
    history = log.fold(History)
    returned = history.returned(path)
    if returned is None or returned >= position:
        return None
    if not any(is_within(path, place) for place in history.places(agent)):
        return None
    finished = log.envelopes[returned].event
    assert isinstance(finished, CallFinished)
    return shown(log.values.decode(finished.output))
