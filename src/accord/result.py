"""What a run gave, and what is read off its log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from accord.comm.mailbox import Message, dead_letters
from accord.engine.base import Prices, Usage
from accord.log.fold import index_calls
from accord.log.log import Log
from accord.observe.exchanges import Exchange, exchanges_of
from accord.observe.tax import Tax, tax_of, usage_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Result(Generic[T]):
    """What a run gave. ``leaked_threads`` counts sync steps that outlived their call."""

    output: T
    run_id: str
    log: Log
    leaked_threads: int = 0
    prices: Prices | None = None
    """What the engine takes, for what was saved."""

    @cached_property
    def usage(self) -> Usage:
        """Tokens of all billed attempts."""
        return usage_of(index_calls(self.log.envelopes))

    @cached_property
    def exchanges(self) -> list[Exchange]:
        """What each agent was sent, and what it answered, in the order of asking."""
        return exchanges_of(self.log)

    @cached_property
    def dead_letters(self) -> list[Message[Any]]:
        """Messages that nobody has taken."""
        return dead_letters(self.log)

    @cached_property
    def tax(self) -> Tax:
        """Where every token and every second went."""
        return tax_of(self.log, self.prices)
