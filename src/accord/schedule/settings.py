"""What a runtime's schedulers go by, and what each says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from accord.errors import UsageError
from accord.schedule.limits import Limits
from accord.schedule.policy import POLICIES, Policy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a runtime's schedulers go by.

    ``admission`` by the engine's KV cache is on where the engine says how large that is, unless
    this is False; ``single_flight`` lets one of many that begin alike go ahead.
    """

    policy: Policy = field(default_factory=lambda: POLICIES["fcfs"])
    limits: Limits | None = None
    tenant: str = ""
    admission: bool = True
    single_flight: bool = True

    def __post_init__(self) -> None:
        if self.limits is not None and not hasattr(self.limits, "book"):
            raise UsageError(
                f"limits is a Limits(agent=, run=, tenant=) of Limit, not {self.limits!r}"
            )


@dataclass(frozen=True, kw_only=True)
class SchedulerStatistics:
    """Requests at the engine and waiting for it, and how many may be there at once, now.

    Of those that wait: ``parked`` by admission, ``following`` another, ``limited`` by a rate.
    ``refused`` by the engine (429), so far, and tokens used beyond what was reserved for them.
    """

    active: int
    waiting: int
    concurrency: int
    cool_down_s: float
    parked: int
    following: int
    limited: int
    refused: int
    overdrawn: int
