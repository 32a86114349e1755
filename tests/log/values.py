"""Arbitrary values that the log can hold, and whether two are the same."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel


class Colour(Enum):
    RED = "red"
    BOTH = (1, "two")


class Level(IntEnum):
    LOW = 1


class Mode(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Plain:
    any: Any
    more: list[Any] = field(default_factory=list[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    any: Any
    length: int = field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "length", self.length + 1)


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    first_any: Any = 0
    second_any: Any = None
    items: list[Any] = []


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Model(BaseModel):
    any: Any
    nested: "Model | None" = None


class Alias(BaseModel):
    name: Any = Field(alias="Name", exclude=True)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Root(RootModel[list[Any]]):
    pass


text = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    [
        "",
        "\0",
        "a\ud800b",
        "\udfff",
        "a\u2028b",
        "日本語",
        "🌟",
        "$text",
        "$",
        "x" * 1023,
        "é" * 1024,
    ]
)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    text,
    st.binary(),
    st.sampled_from([Colour.RED, Colour.BOTH, Level.LOW, Mode.READ, Mode.READ | Mode.WRITE]),
    st.datetimes(timezones=st.none() | offsets),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([Path("a/b"), Path("/"), Path("ü")]),
)
keys = st.one_of(
    text, st.none(), st.integers(), st.floats(allow_nan=False), st.binary(), st.tuples(text, text)
)
hashable = keys | st.frozensets(keys, max_size=3) | st.builds(Frozen, any=text)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=5)
    return st.one_of(
        lists,
        lists.map(lambda items: items * 20),
        lists.map(tuple),
        lists.map(lambda items: tuple(items * 20)),
        st.dictionaries(text, inner, max_size=5),
        st.dictionaries(hashable, inner, max_size=5),
        st.sets(hashable, max_size=5),
        st.frozensets(hashable, max_size=5),
        st.builds(Plain, any=inner, more=lists),
        st.builds(Frozen, any=inner),
        st.builds(Struct, inner, inner, lists),
        st.builds(Pair, inner, inner),
        st.builds(Model, any=inner, nested=st.none() | st.builds(Model, any=inner)),
        inner.map(lambda item: Alias(Name=item)),
        st.builds(Root, lists),
    )


values = st.recursive(leaves, containers, max_leaves=20)


def alike(one: Any, other: Any) -> bool:
    """Equal, of the same classes and in the same order, to the last bit of a float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (isnan(one) and isnan(other))
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(alike(a, b) for b in other) for a in one)
    if isinstance(one, Mapping):
        return alike(list(one.items()), list(cast("Mapping[Any, Any]", other).items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, BaseModel):
        return alike(one.__dict__, other.__dict__) and alike(one.model_extra, other.model_extra)
    names = (
        [each.name for each in fields(one)]
        if is_dataclass(one)
        else getattr(one, "__struct_fields__", ())
    )
    if names:
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    return one == other
