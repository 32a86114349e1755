"""Which runs may use an engine's KV cache now: whole runs, as long as their contexts fit.

Where more contexts take turns than the cache holds, each is evicted before it is used again, and
all are read anew on each call. So a run that does not fit waits at the boundary of a call, with
nothing lost but its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from accord.schedule.ticket import Ticket

SHARE = 0.9
"""Of the cache: engines keep what was used last, which is often of runs that have ended."""
PASSING = 0.1
IDLE_S = 30.0
"""A run that has asked nothing for so long (a slow tool, a sleep) makes way for others."""


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A run with what it holds of the cache, in tokens that it shares with no other."""

    run: str
    tokens: int
    priority: int = 0
    began_s: float = 0.0


def admitted(runs: Iterable[Resident], kv_tokens: int, inside: Collection[str] = ()) -> set[str]:
    """The most urgent, and of those the first to begin, as many as fit; the first one always.

    Behind one that does not fit, others go past it only into ``PASSING`` of the cache, those first
    who were ``inside`` before: else small runs would wait for large ones, or large ones for ever.
    The order lasts, so who is in stays in, unless a more urgent one comes, or one before it grows.
    """
    ordered = sorted(runs, key=lambda run: (-run.priority, run.began_s, run.run))
    found: set[str] = set()
    left = int(kv_tokens * SHARE)
    while ordered and (not found or ordered[0].tokens <= left):
        left -= ordered[0].tokens
        found.add(ordered.pop(0).run)
    left = min(left, int(kv_tokens * PASSING))
    for each in sorted(ordered, key=lambda run: run.run not in inside):
        if each.tokens <= left:
            left -= each.tokens
            found.add(each.run)
    return found


@dataclass
class Context:
    """What one agent of a run holds: the newest prompt, or all that is under way at once."""

    newest: int = 0
    open: int = 0
    shared: int = 0
    """Tokens at its beginning that others had brought before: counted where they came first."""

    @property
    def tokens(self) -> int:
        """Its own."""
        return max(0, max(self.newest, self.open) - self.shared)


@dataclass
class Tenure:
    """A run in the eyes of one engine."""

    began_s: float
    last_s: float
    contexts: dict[str, Context] = field(default_factory=dict[str, Context])
    asking: int = 0
    """Requests that wait or are at the engine."""
    attained_s: float = 0.0
    priority: int = 0
    """Of what it asked last."""

    def ask(self, ticket: Ticket, shared: int) -> None:
        """A request came, which has ``shared`` tokens in common with what had come before."""
        context = self.contexts.get(ticket.agent)
        if context is None:
            context = self.contexts[ticket.agent] = Context(shared=shared)
        context.newest = ticket.prefill
        context.open += ticket.prefill
        self.asking += 1
        self.last_s, self.priority = ticket.arrived_s, ticket.priority

    def answered(self, ticket: Ticket, now_s: float) -> None:
        """It was answered, or given up."""
        if (context := self.contexts.get(ticket.agent)) is not None:
            context.open -= ticket.prefill
            self.asking -= 1
            self.last_s = now_s

    def tokens(self, sizes: Mapping[str, float]) -> int:
        """What it holds, or will: the contexts of agents grow to ``sizes``, as in earlier runs."""
        return round(
            sum(
                max(context.tokens, sizes.get(agent, 0.0) - context.shared)
                for agent, context in self.contexts.items()
            )
        )

    def idle_until_s(self, now_s: float) -> float | None:
        """When it will have made way if it goes on asking nothing; None if it has, or asks."""
        until = self.last_s + IDLE_S
        return until if not self.asking and until > now_s else None
