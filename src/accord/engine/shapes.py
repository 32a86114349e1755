"""JSON from outside may be anything: here it is read as the shape that is wanted, else as empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """``value`` if it is a JSON array, else an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()


def string(value: object) -> str:
    """``value`` if it is a JSON string, else an empty one."""
    return value if isinstance(value, str) else ""
