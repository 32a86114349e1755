"""A memory as a tool: an agent looks up what it needs, instead of being sent all there is."""

from __future__ import annotations

from typing import Any

from accord.agent.tool import Tool
from accord.comm.memory import Memory

DEFAULT_LIMIT = 5
SHOWN_CHARACTERS = 1000
"""The most of one item that a model is shown."""


def memory_tool(
    memory: Memory, limit: int = DEFAULT_LIMIT, *, name: str = "", description: str = ""
) -> Tool[..., Any]:
    """A tool that searches ``memory``: the best ``limit`` items, long ones cut.

    Asked the same again within a call of the agent, it answers the same.
    """

    async def search(query: str) -> list[dict[str, str]]:
        found = await memory.search(query, limit)
        return [{"key": item.key, "text": _shown(item.text)} for item in found]

    search.__doc__ = description or "Search the team's memory: plain words, no syntax."
    return Tool(search, name=name or f"search_{memory.name}", pure=True)


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
