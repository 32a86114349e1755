"""Values in pieces: what did not change is not written again, wherever in a list it stands.

A value becomes a node of JSON::

    "TYPE=base64"            what the serializer made of a value, if it is short
    "TYPE#digest digest ..." the same in one or more blobs; no TYPE means msgpack
    {"list": [...]}          a plain list, item by item
    {"dict": [[key, node], ...]}   a plain dict with names for keys, in its order
    {"text": node}           a string with lone surrogates, as bytes

In a long list or dict, ``"*digest"`` stands for the items in that blob. Where one such group ends
depends on its items alone (a prolly tree; Noms, 2015): one that is put in, taken out or appended
changes the group that it is in and no other. The last group stays in the node until it is full.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec

from accord.errors import LogCorruptError
from accord.log.blobs import Blobs, digest_of
from accord.log.codec import printable

INLINE_BYTES = 128
"""Shorter leaves stand in their node."""
SMALL_BYTES = 512
"""Plain data up to about this size is one leaf."""
PART_BYTES = 4096
"""A long leaf is cut at multiples of this: a text that grows writes its end."""
LONG_BYTES = 1 << 20
LONG_PART_BYTES = 1 << 16
GROUP_MIN, GROUP_MAX, GROUP_MASK = 4, 64, 15
GROUPS_MAX = 32
"""More groups than this are grouped themselves."""

Node = Any
_SCALARS = frozenset({int, float, bool, type(None)})

_class_of: Callable[[object], type] = type
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Serde(Protocol):
    """LangGraph's serializer, as far as it is used here."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The value's type, as the serializer calls it, and its bytes."""
        ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The value."""
        ...


class Packer:
    """Turns values into nodes; their blobs go to ``blobs``.

    ``sealed`` remembers, for a serializer that encrypts, the node of each plain value: two
    encryptions of one value differ, so without it a list would be written whole at each step.
    """

    def __init__(self, serde: Serde, blobs: Blobs, sealed: dict[str, str]) -> None:
        self._serde = serde
        self._blobs = blobs
        self._sealed = sealed
        inner = getattr(serde, "serde", None)
        self._inner: Serde | None = inner if hasattr(inner, "dumps_typed") else None

    def pack(self, value: Any) -> Node:
        """The node of ``value``. Raises what the serializer raises."""
        kind = _class_of(value)
        if kind is str and printable(value) != value:
            return {"text": self._leaf(value.encode("utf-8", "surrogatepass"))}
        if kind is list and _left(value, SMALL_BYTES) < 0 and not _are_scalars(value):
            return {"list": self._sequence([self.pack(item) for item in value])}
        if kind is dict and _left(value, SMALL_BYTES) < 0 and _has_names(value):
            items = cast("dict[str, Any]", value).items()
            return {"dict": self._sequence([[key, self.pack(item)] for key, item in items])}
        return self._leaf(value)

    def _leaf(self, value: Any) -> Node:
        if self._inner is None:
            return self._node(*self._serde.dumps_typed(value))
        name, plain = self._inner.dumps_typed(value)
        key = digest_of(name.encode() + b"\0" + plain)
        if key not in self._sealed:
            self._sealed[key] = self._node(*self._serde.dumps_typed(value))
        return self._sealed[key]

    def _node(self, kind: str, data: bytes | bytearray) -> str:
        name = "" if kind == "msgpack" else quote(kind, safe="+")
        if len(data) < INLINE_BYTES:
            return f"{name}={base64.b64encode(data).decode()}"
        size = PART_BYTES if len(data) < LONG_BYTES else LONG_PART_BYTES
        parts = (bytes(data[i : i + size]) for i in range(0, len(data), size))
        return f"{name}#{' '.join(map(self._blobs.put, parts))}"

    def _sequence(self, items: Sequence[Node]) -> list[Node]:
        groups: list[Node] = []
        group: list[Node] = []
        for item in items:
            group.append(item)
            if len(group) >= GROUP_MIN and (_is_last(item) or len(group) == GROUP_MAX):
                groups.append(f"*{self._blobs.put(_encode(group))}")
                group = []
        if len(groups) > GROUPS_MAX:
            groups = self._sequence(groups)
        return groups + group


def _is_last(item: Node) -> bool:
    return crc32(_encode(item)) & GROUP_MASK == 0


def _are_scalars(value: list[Any]) -> bool:
    """A vector: better one leaf, whatever its length."""
    return all(type(item) in _SCALARS for item in value)


def _has_names(value: dict[Any, Any]) -> bool:
    return all(type(key) is str and printable(key) == key for key in value)


def _left(value: Any, room: int) -> int:
    """What is left of ``room`` after ``value``. Below 0: not small, or not plain."""
    kind = _class_of(value)
    if kind is str:
        return room - len(value) if printable(value) == value else -1
    if kind in _SCALARS:
        return room - 9
    if kind is list:
        inside: Iterable[Any] = cast("list[Any]", value)
    elif kind is dict:
        inside = (part for item in cast("dict[Any, Any]", value).items() for part in item)
    else:
        return -1
    room -= 2
    for part in inside:
        room = _left(part, room)
        if room < 0:
            break
    return room


class Unpacker:
    """Turns nodes into values; their blobs are in ``bodies``, see :func:`blobs_of`."""

    def __init__(self, serde: Serde, bodies: Mapping[str, bytes]) -> None:
        self._serde = serde
        self._bodies = bodies

    def unpack(self, node: Node) -> Any:
        """A new value. Raises what the serializer raises."""
        if isinstance(node, str):
            return self._load(node)
        match node:
            case {"list": items}:
                return [self.unpack(item) for item in self._spliced(items)]
            case {"dict": items}:
                return {key: self.unpack(item) for key, item in self._spliced(items)}
            case {"text": leaf}:
                return self.unpack(leaf).decode("utf-8", "surrogatepass")
            case _:
                msg = f"a saved value cannot be read; it needs a newer Accord: {node!r:.80}"
                raise LogCorruptError(msg)

    def _load(self, leaf: str) -> Any:
        name, mark, rest = _split(leaf)
        if mark == "=":
            data = base64.b64decode(rest)
        else:
            data = b"".join(self._bodies[digest] for digest in rest.split())
        return self._serde.loads_typed((unquote(name) or "msgpack", data))

    def _spliced(self, items: list[Node]) -> Iterator[Node]:
        for item in items:
            if _is_group(item):
                yield from self._spliced(_decode(self._bodies[item[1:]]))
            else:
                yield item


def _split(leaf: str) -> tuple[str, str, str]:
    name, mark, rest = leaf.partition("#")
    return (name, mark, rest) if mark else leaf.partition("=")


def _is_group(item: Node) -> bool:
    return type(item) is str and item.startswith("*")


class Fetch(Protocol):
    """Many blobs in one look."""

    def __call__(self, digests: set[str], /) -> Mapping[str, bytes]: ...


def blobs_of(nodes: Iterable[Node], bodies: dict[str, bytes], fetch: Fetch) -> set[str]:
    """Add to ``bodies`` all that ``nodes`` refer to, and say which those are.

    One ``fetch`` a level, whatever the number of nodes: a list of thousands has three.
    """
    used: set[str] = set()
    level = list(nodes)
    while level:
        leaves: set[str] = set()
        groups: set[str] = set()
        for node in level:
            _refer(node, leaves, groups)
        groups -= used  # walked already
        missing = (leaves | groups) - bodies.keys()
        if missing:
            bodies.update(fetch(missing))
        used |= leaves | groups
        level = [_decode(bodies[group]) for group in groups]
    return used


def _refer(node: Node, leaves: set[str], groups: set[str]) -> None:
    """Collect the digests that ``node``, or a group of items, refers to."""
    if isinstance(node, str):
        if node.startswith("*"):
            groups.add(node[1:])
        elif "#" in node:
            leaves.update(node.partition("#")[2].split())
    elif isinstance(node, dict):
        for part in cast("dict[str, Node]", node).values():
            _refer(part, leaves, groups)
    else:
        for item in cast("list[Node]", node):
            # No node is a list, so this one is an item of a dict, and its key is the user's.
            _refer(item[1] if isinstance(item, list) else item, leaves, groups)
