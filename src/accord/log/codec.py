"""Values and envelopes as bytes.

Values are JSON, with what JSON lacks written as an object of one ``$``-key::

    {"$blob": digest}        JSON of 1 KiB or more, in long lists 256 bytes, stored once under
                             its content
    {"$text": digest}        a string of 1 KiB or more, likewise
    {"$chunks": [...]}       a list of more than 32 items, in pieces: a list that grows by one
                             item writes that item and its last piece, not the list
    {"$tuple": [...]}  {"$set": [...]}  {"$frozenset": [...]}  {"$dict": [[key, value], ...]}
    {"$bytes": base64}  {"$bytearray": base64}  {"$float": "nan"}  {"$int": hexadecimal}
    {"$error": [class, message, arguments, attributes]}
    {"$utf8": base64}        a string with lone surrogates, which UTF-8 proper cannot hold
    {"$type": "module:QualName", "value": ...}   a dataclass, msgspec.Struct, Pydantic model,
                             enum, named tuple, date, Decimal, UUID or path

What comes back equals what went in, class and order included. There is no pickle: a class is
looked up by name and filled field by field. A value that does not fit raises at the write.
"""

from __future__ import annotations

import base64
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, cast

import msgspec

from accord.errors import LogCorruptError, UnserializableError
from accord.log.blobs import Blobs, digest_of
from accord.log.events import Envelope, Value
from accord.log.failure import put_together, take_apart, text_of
from accord.log.types import pack_instance, unpack_instance

BLOB_BYTES = 1024
PIECE_BYTES = 256
"""Items and pieces of long lists are blobs from here on: written once, not once a step."""
SHORT_LIST = 8
CHUNK_ITEMS = 32
INT_LIMIT = 2**63

_class_of: Callable[[object], type] = type
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_envelope = msgspec.json.Decoder(Envelope).decode


OTHER_VERSION = "was written by another version of Accord"
"""What is said of a record that is whole, and of a vocabulary that is not ours."""
_EVENT = "$[4]"
"""Where the event is in an envelope, in the words of msgspec."""


def encode_envelope(envelope: Envelope) -> bytes:
    """One line of JSON.

    Raises :class:`accord.errors.UnserializableError` on a name that UTF-8 cannot hold.
    """
    try:
        return _encode(envelope)
    except UnicodeEncodeError as error:
        msg = f"event {envelope.seq} has a name with lone surrogates; rename it: {envelope.event!r}"
        raise UnserializableError(msg) from error


def decode_envelope(data: bytes) -> Envelope:
    """Raises :class:`accord.errors.LogCorruptError` on anything but an envelope."""
    try:
        return _decode_envelope(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The shape of an envelope stays; events and their fields come and go.
        what = OTHER_VERSION if _EVENT in str(error) else "cannot be read"
        msg = f"a log record {what} ({error}); run `accord doctor`: {data[:80]!r}"
        raise LogCorruptError(msg) from error


_BLOB = re.compile(rb'"\$(blob|text)":"([\w=-]{24})"')


def blobs_in(
    values: Iterable[bytes], fetch: Callable[[set[str]], Mapping[str, bytes]]
) -> dict[str, bytes]:
    """All blobs that encoded ``values`` refer to, in one ``fetch`` for each level of nesting."""
    bodies: dict[str, bytes] = {}
    level = list(values)
    while level:
        found = {match[2].decode(): match[1] for one in level for match in _BLOB.finditer(one)}
        new = found.keys() - bodies.keys()
        if new:
            bodies.update(fetch(new))
        level = [bodies[digest] for digest in new if found[digest] == b"blob"]
    return bodies


def printable(text: str) -> str:
    """``text`` with lone surrogates written as escapes: for names and messages."""
    return text.encode("utf-8", "backslashreplace").decode()


class ValueCodec:
    """Encodes and decodes the values of one run; large pieces live in ``blobs``."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._storing = _Packer(blobs.put, blobs.put_text)
        self._hashing = _Packer(digest_of, blobs.digest_text)

    def encode(self, value: object, what: str = "value") -> Value:
        """``value`` as JSON. ``what`` names it in an error.

        Raises :class:`accord.errors.UnserializableError` with the path to what does not fit.
        """
        return Value(self._storing.encode(value, what))

    def digest(self, value: object, what: str = "value") -> bytes:
        """The JSON that :meth:`encode` would give, without storing anything: for hashing."""
        return self._hashing.encode(value, what)

    def decode(self, value: Value) -> Any:
        """The value that was encoded."""
        data = bytes(value)
        try:
            plain = _decode(data)
            return self._unpack(plain) if b'"$' in data else plain
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            msg = f"a recorded value cannot be read ({error}); run `accord doctor`"
            raise LogCorruptError(msg) from error

    def _unpack(self, packed: Any) -> Any:
        if type(packed) is list:
            return [self._unpack(item) for item in cast("list[Any]", packed)]
        if type(packed) is not dict:
            return packed
        plain = cast("dict[str, Any]", packed)
        tag = next(iter(plain), "")
        if not tag.startswith("$"):
            return {key: self._unpack(item) for key, item in plain.items()}
        return self._unpack_tagged(tag, plain)

    def _unpack_tagged(self, tag: str, packed: dict[str, Any]) -> Any:
        body = packed[tag]
        if (leaf := _LEAVES.get(tag)) is not None:
            return leaf(body)
        match tag:
            case "$blob":
                return self._unpack(_decode(self._blobs.get(body)))
            case "$text":
                return self._blobs.get(body).decode()
            case "$chunks":
                return list(chain.from_iterable(self._unpack(piece) for piece in body))
            case "$tuple" | "$set" | "$frozenset":
                return _SEQUENCES[tag](self._unpack(body))
            case "$dict":
                return {self._unpack(key): self._unpack(item) for key, item in body}
            case "$error":
                return put_together(*(self._unpack(part) for part in body))
            case "$type":
                return unpack_instance(body, self._unpack(packed["value"]))
            case _:
                msg = f"unknown tag {tag!r} in a recorded value; it needs a newer Accord"
                raise LogCorruptError(msg)


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64.b64decode,
    "$bytearray": lambda body: bytearray(base64.b64decode(body)),
    "$utf8": lambda body: base64.b64decode(body).decode("utf-8", "surrogatepass"),
    "$float": float,
    "$int": lambda body: int(body, 16),
}

_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}


class _Packer:
    """Python values to what JSON can hold. ``put`` keeps a piece and gives its digest."""

    def __init__(self, put: Callable[[bytes], str], put_text: Callable[[str], str]) -> None:
        self._put = put
        self._put_text = put_text

    def encode(self, value: object, what: str) -> bytes:
        try:
            try:
                data = _encode(self.pack(value))
            except UnicodeEncodeError:
                data = _encode(self.pack(_without_surrogates(value)))
        except RecursionError:
            msg = f"{what} is nested too deep or contains itself; the log holds finite data"
            raise UnserializableError(msg) from None
        except _NotPlainError as error:
            path = _path_to(value, error.value)
            kind = type(error.value).__qualname__
            raise UnserializableError(
                f"{what}{path} is a {kind}, which the log cannot hold; {_advice(error.value)}"
            ) from None
        return data if len(data) < BLOB_BYTES else _encode({"$blob": self._put(data)})

    def pack(self, value: Any) -> Any:
        kind = _class_of(value)
        if kind is str:
            return value if len(value) < BLOB_BYTES else {"$text": self._put_text(value)}
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -INT_LIMIT <= value < INT_LIMIT else {"$int": f"{value:x}"}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is dict:
            return self._pack_dict(value)
        if kind is list:
            return self._pack_list(value)
        if kind is tuple:
            return {"$tuple": self._pack_list(value)}
        return self._pack_other(value, kind)

    def _pack_dict(self, value: dict[Any, Any]) -> Any:
        pack = self.pack
        for key in value:
            if type(key) is not str or key.startswith("$"):
                return {"$dict": [[pack(key), pack(item)] for key, item in value.items()]}
        return {key: pack(item) for key, item in value.items()}

    def _pack_list(self, value: list[Any] | tuple[Any, ...]) -> Any:
        packed = [self.pack(item) for item in value]
        if len(packed) <= SHORT_LIST:
            return packed
        packed = [self._piece(item) for item in packed]
        if len(packed) <= CHUNK_ITEMS:
            return packed
        pieces = [packed[i : i + CHUNK_ITEMS] for i in range(0, len(packed), CHUNK_ITEMS)]
        return {"$chunks": [self._piece(piece) for piece in pieces]}

    def _piece(self, packed: Any) -> Any:
        data = _encode(packed)
        return packed if len(data) < PIECE_BYTES else {"$blob": self._put(data)}

    def _pack_other(self, value: Any, kind: type) -> Any:
        if kind is bytes or kind is bytearray:
            return {f"${'bytes' if kind is bytes else 'bytearray'}": _base64(value)}
        if kind is set or kind is frozenset:
            # A set has no order of its own, and hash order differs between processes.
            packed = sorted((self.pack(item) for item in value), key=_encode)
            return {f"${kind.__name__}": packed}
        if kind is _Surrogates:
            return {"$utf8": _base64(value.text.encode("utf-8", "surrogatepass"))}
        if kind is _Named:
            return {"$type": value.type_name, "value": self.pack(value.plain)}
        if isinstance(value, Exception):
            name, args, attributes = take_apart(value, self._fits)
            parts = [name, text_of(value), args, attributes]
            return {"$error": [self.pack(part) for part in parts]}
        named = pack_instance(value)
        if named is None:
            raise _NotPlainError(value)
        return {"$type": named[0], "value": self.pack(named[1])}

    def _fits(self, value: object) -> bool:
        try:
            _encode(self.pack(value))
        except (_NotPlainError, UnicodeEncodeError, RecursionError):
            return False
        return True


class _NotPlainError(Exception):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _advice(value: object) -> str:
    if inspect.iscoroutine(value):
        return "was an `await` forgotten?"
    if "<locals>" in type(value).__qualname__:
        return "a class made inside a function cannot be found again: define it in the module"
    return "it holds plain data, dataclasses, msgspec.Structs and Pydantic models"


class _Surrogates:
    """Marks a string that UTF-8 cannot hold. Rare, so looked for only after UTF-8 has failed."""

    def __init__(self, text: str) -> None:
        self.text = text


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if printable(value) == value else _Surrogates(value)
    if type(value) is dict:
        items = cast("dict[Any, Any]", value).items()
        return {_without_surrogates(k): _without_surrogates(v) for k, v in items}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_without_surrogates(item) for item in value)
    named = pack_instance(value)
    if named is None:
        return value
    return _Named(named[0], _without_surrogates(named[1]))


class _Named:
    """An instance already taken apart."""

    def __init__(self, type_name: str, plain: object) -> None:
        self.type_name = type_name
        self.plain = plain


def _path_to(value: Any, target: object) -> str:
    """Where in ``value`` the object ``target`` is, as ``.title[3]['key']``; "" if at the top."""
    if value is target:
        return ""
    children: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        children = [*((".keys()", key) for key, _ in items), *((f"[{k!r}]", v) for k, v in items)]
    elif isinstance(value, list | tuple | set | frozenset):
        children = [(f"[{i}]", item) for i, item in enumerate(cast("list[Any]", value))]
    elif (named := pack_instance(value)) is not None and isinstance(named[1], dict):
        fields = cast("dict[str, Any]", named[1])
        children = [(f".{key}", item) for key, item in fields.items()]
    for step, child in children:
        if child is target:
            return step
        deeper = _path_to(child, target)
        if deeper:
            return step + deeper
    return ""
