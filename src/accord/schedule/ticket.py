"""What is known of a request that waits for an engine: all that a policy may go by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request in the queue. Times are the loop's, in seconds; sizes are tokens."""

    number: int
    """The order in which they came."""
    run: str = ""
    agent: str = ""
    tenant: str = ""
    arrived_s: float = 0.0
    began_s: float = 0.0
    """When its run first asked."""
    prompt: bytes = b""
    """As :func:`accord.engine.prefix.rendered` writes it."""
    prefill: int = 0
    """About how many tokens the prompt has."""
    decode: int = 0
    """The most that the reply may have."""
    priority: int = 0
    """Larger is more urgent. Zero is what has none."""
    deadline_s: float | None = None
    """By when the reply is of use."""
    remaining_s: float = 0.0
    """The longest chain of work from here to the end of its run, itself included."""
    through_s: float = 0.0
    """The longest chain of work of its run that goes through it, from beginning to end."""
    attained_s: float = 0.0
    """The time that its run has had at the engine."""
    used: float = 0.0
    """The largest share that it has used of what limits it; 0 if nothing does."""

    @property
    def size(self) -> int:
        """What it may use at most."""
        return self.prefill + self.decode
