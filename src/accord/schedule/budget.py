"""A bound on tokens: reserved before a request goes out, settled when it is back."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from accord.errors import BudgetExceededError


class Budget:
    """The tokens that the requests of one piece of work may use, prompt and completion together.

    Counted are requests that were answered: what failed attempts cost is in the tax report.
    ``what`` names the work; ``outer`` is the budget of what that is part of.
    """

    def __init__(self, tokens: int, what: str, outer: Budget | None = None) -> None:
        self.tokens = tokens
        self.what = what
        self.used = 0
        self._outer = outer
        self._reserved = 0

    @property
    def left(self) -> int:
        """What may still be reserved."""
        return self.tokens - self.used - self._reserved

    @contextmanager
    def reserved(self, tokens: int, who: str) -> Generator[None]:
        """Hold back what a request may use at most, for as long as it is under way.

        Raises :class:`accord.errors.BudgetExceededError` if there is not as much.
        """
        if tokens > self.left:
            raise BudgetExceededError(
                f"{who} may use {tokens:,} tokens, and {self.what} has {max(0, self.left):,} of "
                f"its {self.tokens:,} left: give it a larger budget, or the agent a smaller "
                "max_tokens or less to read"
            )
        self._reserved += tokens
        try:
            if self._outer is None:
                yield
            else:
                with self._outer.reserved(tokens, who):
                    yield
        finally:
            self._reserved -= tokens

    def settle(self, tokens: int) -> None:
        """So much was used."""
        self.used += tokens
        if self._outer is not None:
            self._outer.settle(tokens)
