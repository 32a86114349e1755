"""The engine's window: what a prompt may take beside tools, schema and the longest reply."""

from __future__ import annotations

from collections.abc import Sequence

from accord.engine.base import Capabilities, Message, Request, joined
from accord.engine.size import size_of_messages, size_of_tools
from accord.errors import ContextTooLongError

MARGIN = 0.85
"""Of what is left, as much is planned with: estimates of English text are within 15%."""
MESSAGE_TOKENS = 8
"""What a chat template puts around a message."""


class Room:
    """How much of the window there is for messages; ``request`` has all but them.

    Raises :class:`accord.errors.ContextTooLongError` if tools and reply alone do not fit.
    """

    def __init__(self, capabilities: Capabilities, request: Request) -> None:
        self._capabilities = capabilities
        self._agent = request.agent
        self._reserve = request.max_tokens or 0
        window = capabilities.window
        self._fixed = 0 if window is None else size_of_tools(request.tools, request.schema)
        self._left = None if window is None else window - self._reserve - self._fixed
        if self._left is not None and self._left <= 0:
            raise self._too_long([])

    @property
    def most(self) -> int | None:
        """Estimated tokens that messages may take; None if the window is unknown."""
        return None if self._left is None else int(self._left * MARGIN)

    async def check(self, messages: Sequence[Message]) -> None:
        """Raises if ``messages`` do not fit; where it is close, by the engine's own count."""
        if self._left is None:
            return
        estimated = size_of_messages(messages) + MESSAGE_TOKENS * len(messages)
        tokenizer = self._capabilities.tokenizer
        if 2 * estimated <= self._left:
            return
        if tokenizer is not None:
            whole = joined(messages)
            text = "\n".join(message.content for message in whole)
            estimated = await tokenizer(text) + MESSAGE_TOKENS * len(whole)
        if estimated > self._left:
            raise self._too_long(messages)

    def _too_long(self, messages: Sequence[Message]) -> ContextTooLongError:
        by_origin: dict[str, int] = {}
        for message in messages:
            size = size_of_messages([message])
            by_origin[message.origin] = by_origin.get(message.origin, 0) + size
        parts = ", ".join(f"{origin} {tokens}" for origin, tokens in by_origin.items())
        return ContextTooLongError(
            f"agent {self._agent!r}: its prompt does not fit the engine's window of "
            f"{self._capabilities.window} tokens; {self._reserve} are kept for the reply "
            f"(max_tokens), tools and schema take {self._fixed}{', ' if parts else ''}{parts} "
            "(about). Lower max_tokens, give it fewer tools, let it see less (sees='summary'), or "
            "split its input with split_text"
        )
