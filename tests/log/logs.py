"""Logs on virtual time, and events that say which one they are."""

from accord.clock import VirtualClock
from accord.log.events import RunResumed
from accord.log.log import Log
from accord.log.store.base import Durability, Store
from accord.log.store.memory import MemoryStore
from accord.testing.conformance.kit import ELSEWHERE


def note(number: int) -> RunResumed:
    """Any event that says which one it is."""
    return RunResumed(version=str(number))


def numbers(log: Log) -> list[int]:
    return [int(each.event.version) for each in log.envelopes if isinstance(each.event, RunResumed)]


def new_log(store: Store | None = None, durability: Durability = "async") -> tuple[Log, Store]:
    """A log on a new run, on virtual time."""
    store = store or MemoryStore()
    lease = store.acquire(store.create(None, "flow"), ELSEWHERE)
    return Log(store, lease.run, clock=VirtualClock(), lease=lease, durability=durability), store
