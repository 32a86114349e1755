"""What LangGraph's ``configurable`` says of threads and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accord.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Place:
    """A thread, a namespace in it (a subgraph's, or empty), and perhaps a checkpoint."""

    thread: str
    namespace: str
    checkpoint: str | None

    def config(self, checkpoint: str | None = None) -> Any:
        """The config (LangGraph's ``RunnableConfig``) that finds ``checkpoint``, or this one."""
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": checkpoint or self.checkpoint,
            }
        }


def place_of(config: Mapping[str, Any]) -> Place:
    """Raises ``UsageError`` if the config names no thread."""
    given: Mapping[str, Any] = config.get("configurable") or {}
    if given.get("thread_id") is None:
        raise UsageError(
            "the config names no thread; pass {'configurable': {'thread_id': 'some-name'}}"
        )
    return Place(
        thread=str(given["thread_id"]),
        namespace=given.get("checkpoint_ns") or "",
        checkpoint=given.get("checkpoint_id") or None,
    )
