"""What changed between two plain values, in as few words as carry it; lossless.

``apply(old, diff(old, new)) == new`` for all that JSON can hold. Dicts are compared key by key,
lists by their common ends and then item by item, long texts by lines and sentences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple, cast

from accord.tokens.table import compact

Path = tuple[str | int, ...]

_PIECES = re.compile(r".*?(?:\n|[.!?]\s|[。！？]|$)", re.DOTALL)  # CJK punctuation is meant
LONG_TEXT = 80
MOST_PAIRS = 20_000
"""Of equal pieces in old and new text: beyond, comparing takes longer than it saves."""


class Change(NamedTuple):
    """One change. ``splice`` puts ``value`` in place of the items or pieces ``start:end``.

    ``old`` is what a splice takes out: pieces of text, for people and models to read.
    """

    path: Path
    what: Literal["set", "remove", "splice"]
    value: Any = None
    start: int = 0
    end: int = 0
    old: str = ""


def diff(old: Any, new: Any) -> list[Change]:
    """The changes that make ``new`` of ``old``; none if they are the same."""
    return list(_diff((), old, new))


def apply(old: Any, changes: Sequence[Change]) -> Any:
    """``old`` with ``changes`` made. Neither is changed itself."""
    value = old
    # Splices of one place count from its old self: the last first, so that none moves another.
    for change in sorted(changes, key=lambda change: -change.start):
        value = _changed(value, change.path, change)
    return value


def written(changes: Sequence[Change], name: str) -> str:
    """``changes`` of the value called ``name``, a line each, for a model to read."""
    return "\n".join(_line(change, name) for change in changes)


def _diff(path: Path, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _diff_dicts(path, cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _diff_lists(path, cast("list[Any]", old), cast("list[Any]", new))
    elif isinstance(old, str) and isinstance(new, str) and old != new:
        yield from _diff_texts(path, old, new)
    elif not _same(old, new):
        yield Change(path, "set", new)


def _diff_dicts(path: Path, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    for key in old:
        if key not in new:
            yield Change((*path, key), "remove")
    for key, item in new.items():
        if key in old:
            yield from _diff((*path, key), old[key], item)
        else:
            yield Change((*path, key), "set", item)


def _diff_lists(path: Path, old: list[Any], new: list[Any]) -> Iterator[Change]:
    if len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _diff((*path, index), before, after)
        return
    most = min(len(old), len(new))
    head = next((i for i in range(most) if not _same(old[i], new[i])), most)
    most -= head
    tail = next((i for i in range(most) if not _same(old[-1 - i], new[-1 - i])), most)
    end = len(old) - tail
    yield Change(path, "splice", new[head : len(new) - tail], head, end)


def _diff_texts(path: Path, old: str, new: str) -> Iterator[Change]:
    before, after = pieces(old), pieces(new)
    often = Counter(before)
    if len(old) < LONG_TEXT or sum(often[piece] for piece in after) > MOST_PAIRS:
        yield Change(path, "set", new)
        return
    hunks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    splices = [
        Change(path, "splice", "".join(after[b0:b1]), a0, a1, "".join(before[a0:a1]))
        for tag, a0, a1, b0, b1 in hunks
        if tag != "equal"
    ]
    if sum(len(splice.value) + len(splice.old) for splice in splices) < len(new):
        yield from splices
    else:
        yield Change(path, "set", new)


def pieces(text: str) -> list[str]:
    """``text`` cut after lines and sentences; joined, it is the text again."""
    return [piece for piece in _PIECES.findall(text) if piece]


def _changed(value: Any, path: Path, change: Change) -> Any:
    if path:
        step, *rest = path
        if change.what == "remove" and not rest:
            return {key: item for key, item in value.items() if key != step}
        held: Any = copy(value)
        held[step] = _changed(_at(held, step), tuple(rest), change)
        return held
    if change.what == "set":
        return change.value
    if isinstance(value, str):
        parts = pieces(value)
        return "".join([*parts[: change.start], change.value, *parts[change.end :]])
    return [*value[: change.start], *change.value, *value[change.end :]]


def _at(value: Any, step: str | int) -> Any:
    """The part of ``value`` that is changed; None where it is new."""
    return value[step] if isinstance(step, int) else value.get(step)


def _same(one: Any, other: Any) -> bool:
    """Equal, and alike all the way down: 1, 1.0 and true are three values."""
    return compact(one) == compact(other)


def _line(change: Change, name: str) -> str:
    where = name + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in change.path)
    match change.what:
        case "remove":
            return f"{where}: removed"
        case "set":
            return f"{where} = {_shown(change.value)}"
        case "splice" if isinstance(change.value, str):
            taken = f"- {change.old.strip()}\n" if change.old.strip() else ""
            put = f"+ {change.value.strip()}" if change.value.strip() else ""
            return f"{where}:\n{taken}{put}".rstrip()
        case "splice":
            place = f"[{change.start}:{change.end}]"
            return f"{where}{place} = {_shown(change.value)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)
