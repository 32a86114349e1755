"""What a state is made of: keys, their types, and how what is written meets what is there.

A schema is read off a ``TypedDict``, a dataclass, a ``msgspec.Struct`` or a Pydantic model. A key
annotated ``Annotated[T, reducer]`` has that reducer, ``reducer(there, written)``. A write to any
other replaces what is there. Where branches that wrote one such key meet, they are in conflict; but
lists that they wrote are put one after the other, in the order of the program: nothing is lost.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from accord.errors import GraphError, StateError, UsageError

Reducer = Callable[[Any, Any], Any]


def append(there: list[Any], written: list[Any]) -> list[Any]:
    """A reducer of lists: what is written comes after what is there."""
    return [*there, *written]


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Written to a key with a reducer: ``value`` takes the place of all that is there."""

    value: Any


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a state. ``reducer`` is None where a write replaces what is there."""

    name: str
    type: Any
    reducer: Reducer | None
    plain: type | None
    """A type whose own instances need no further check."""
    is_list: bool = False

    def check(self, value: Any, who: str) -> None:
        """Raise :class:`accord.errors.StateError` if ``value`` has not the key's type."""
        if type(value) is self.plain or self.type is Any:
            return
        try:
            msgspec.convert(value, self.type, strict=True)
        except msgspec.ValidationError as error:
            raise StateError(
                f"{who} writes {_short(value)} to {self.name!r}, which holds {_name(self.type)}: "
                f"{error}"
            ) from error
        except TypeError:
            return  # a type that msgspec cannot check

    def reduce(self, there: Any, written: Any, who: str) -> Any:
        """What ``written`` makes of what is there."""
        assert self.reducer is not None
        try:
            return self.reducer(there, written)
        except Exception as error:
            raise StateError(
                f"the reducer of {self.name!r} failed on what {who} writes "
                f"({type(error).__name__}: {error}): it was given {_short(there)} and "
                f"{_short(written)}"
            ) from error

    def empty(self) -> Any:
        """The type's own empty value, which a reducer begins with; None if it has none."""
        try:
            return (get_origin(self.type) or self.type)()
        except Exception:  # noqa: BLE001  # a class of the user's own
            return None


class Schema:
    """The keys of a state, and how nodes get it: as a dict, or as an instance of the class."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.name = getattr(kind, "__name__", str(kind))
        self.keys: dict[str, Key] = {name: _key(name, t) for name, t in _hints(kind).items()}
        self._defaults = _defaults(kind)
        self._is_dict = is_typeddict(kind)
        self._reduced = [key for key in self.keys.values() if key.reducer is not None]

    def make(self, values: dict[str, Any]) -> Any:
        """What a node is given: ``values`` as the schema's class has them."""
        if self._is_dict:
            return values
        try:
            return self.kind(**values)
        except Exception as error:
            raise StateError(
                f"{self.name} cannot be made of the keys {sorted(values)}: {error}; give what is "
                "missing in the input, or give the fields defaults"
            ) from error

    def input(self, given: Any) -> dict[str, Any]:
        """The first write, from what the graph is given; a text, as on a command line, is JSON."""
        if isinstance(given, str):
            try:
                given = msgspec.json.decode(given)
            except msgspec.DecodeError as error:
                raise StateError(
                    f"the input of a graph on {self.name} is a JSON object of its keys "
                    f"{list(self.keys)}, not {_short(given)}"
                ) from error
        written = self.update(given, f"the input of a graph on {self.name}")
        missing = {key: make() for key, make in self._defaults.items() if key not in written}
        return {**missing, **written}

    def first(self, given: dict[str, Any]) -> dict[str, Any]:
        """``given``, with what keys that have a reducer hold before anything is written."""
        empty = {
            key.name: Overwrite(value)
            for key in self._reduced
            if key.name not in given and (value := key.empty()) is not None
        }
        return {**empty, **given}

    def update(self, given: Any, who: str) -> dict[str, Any]:
        """``given`` as a dict of what is written; raises :class:`accord.errors.StateError`."""
        if given is None:
            return {}
        if not self._is_dict and isinstance(given, self.kind):
            values = {key: getattr(given, key) for key in self.keys}
        elif isinstance(given, Mapping):
            values = dict(cast("Mapping[str, Any]", given))
        else:
            raise StateError(
                f"{who} gave {_short(given)}; give a dict of the keys that change, such as "
                f"{{{next(iter(self.keys), 'key')!r}: ...}}, or nothing"
            )
        for name, value in values.items():
            key = self.key(name, who)
            key.check(value.value if isinstance(value, Overwrite) else value, who)
        return values

    def is_plain(self, values: dict[str, Any]) -> bool:
        """Nothing about an update needs a closer look: the most frequent case."""
        keys = self.keys
        for name, value in values.items():
            if name not in keys or type(value) is not keys[name].plain:
                return False
        return True

    def key(self, name: Any, who: str) -> Key:
        """The key called ``name``; raises :class:`accord.errors.StateError` if there is none."""
        found = self.keys.get(name)
        if found is None:
            close = get_close_matches(str(name), self.keys, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise StateError(
                f"{who} names {name!r}, which {self.name} has not; {hint}It has {list(self.keys)}"
            )
        return found


def _hints(kind: Any) -> dict[str, Any]:
    is_class = inspect.isclass(kind)
    fields = is_class and (
        is_typeddict(kind)
        or dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or hasattr(kind, "model_fields")
    )
    if not fields:
        raise UsageError(
            "a state is a TypedDict, a dataclass, a msgspec.Struct or a Pydantic model, not "
            f"{kind!r}"
        )
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise GraphError(
            f"the types of {kind.__name__} cannot be read: {error}; define them where the class is"
        ) from error
    names = getattr(kind, "model_fields", hints)
    return {name: hints[name] for name in names if not name.startswith("_")}


def _key(name: str, annotated: Any) -> Key:
    reducer: Reducer | None = None
    kind = annotated
    while get_origin(kind) is not Annotated and _wraps(kind):
        kind = get_args(kind)[0]  # Required[T], NotRequired[T]
    if get_origin(kind) is Annotated:
        kind, *extras = get_args(kind)
        while _wraps(kind):
            kind = get_args(kind)[0]
        reducer = next((each for each in extras if _is_reducer(each)), None)
    origin = get_origin(kind) or kind
    plain = kind if kind in (str, int, float, bool, bytes, list, dict, set) else None
    return Key(name, kind, reducer, plain, origin is list)


def _wraps(kind: Any) -> bool:
    return getattr(get_origin(kind), "_name", "") in ("Required", "NotRequired", "ReadOnly")


def _is_reducer(extra: Any) -> bool:
    if not callable(extra) or inspect.isclass(extra):
        return False
    try:
        inspect.signature(extra).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _defaults(kind: Any) -> dict[str, Callable[[], Any]]:
    """What makes the value of a field that the input leaves out, where it has a default."""
    if is_typeddict(kind):
        return {}
    if dataclasses.is_dataclass(kind):
        return {
            each.name: _maker(each.default, each.default_factory, dataclasses.MISSING)
            for each in dataclasses.fields(kind)
            if each.default is not each.default_factory
        }
    if hasattr(kind, "model_fields"):
        return {
            name: partial(each.get_default, call_default_factory=True)
            for name, each in kind.model_fields.items()
            if not each.is_required()
        }
    return {
        each.name: _maker(each.default, each.default_factory, msgspec.NODEFAULT)
        for each in msgspec.structs.fields(kind)
        if not each.required
    }


def _maker(value: Any, factory: Any, missing: Any) -> Callable[[], Any]:
    return factory if value is missing else lambda: value


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
