"""Who may write a run, and who may remove it."""
# ruff: noqa: D103  # the name of a check is the promise that it checks

from __future__ import annotations

from accord.errors import FencedError, LogCorruptError, RunLockedError, RunNotFoundError
from accord.log.blobs import digest_of
from accord.log.store.base import LEASE_S, Lease, Pruned, Store
from accord.log.store.holder import this_process
from accord.testing.conformance.kit import (
    ELSEWHERE,
    OTHER,
    Check,
    Make,
    Now,
    added_to,
    blobs,
    new_run,
    records,
    refused,
    same,
)

LEASING: list[Check] = []
_check = added_to(LEASING)


# ---------------------------------------------------------------------------------------- leases


@_check
def a_lease_is_exclusive_and_says_who_has_it(make: Make) -> None:
    store = make(Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    for holder in (OTHER, ELSEWHERE, this_process()):
        with refused(RunLockedError, "run", ELSEWHERE):
            store.acquire("run", holder)
    store.append(lease, 0, records(1), {})


@_check
def a_released_lease_is_free_at_once_and_writes_no_more(make: Make) -> None:
    store = make(Now())
    first = store.acquire(store.create("run", "flow"), ELSEWHERE)
    store.release(first)
    _is_fenced(store, first, 0)
    second = store.acquire("run", OTHER)
    assert second.token > first.token, f"the token did not grow: {first}, {second}"
    store.append(second, 0, records(1), {})


@_check
def a_lease_that_is_not_renewed_runs_out(make: Make) -> None:
    store = make(now := Now())
    first = store.acquire(store.create("run", "flow"), ELSEWHERE)
    now.seconds += LEASE_S - 1
    with refused(RunLockedError):
        store.acquire("run", OTHER)
    now.seconds += 2
    second = store.acquire("run", OTHER)
    assert second.token > first.token, f"the token did not grow: {first}, {second}"


@_check
def a_renewed_lease_does_not_run_out(make: Make) -> None:
    store = make(now := Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    for _ in range(5):
        now.seconds += LEASE_S - 1
        store.renew(lease)
    with refused(RunLockedError):
        store.acquire("run", OTHER)


@_check
def a_writer_that_lost_its_lease_is_fenced(make: Make) -> None:
    store = make(now := Now())
    stale = store.acquire(store.create("run", "flow"), ELSEWHERE)
    store.append(stale, 0, records(1), {})
    now.pass_lease()
    fresh = store.acquire("run", OTHER)
    _is_fenced(store, stale, 1)
    store.release(stale)  # no harm to the one who has it
    store.append(fresh, 1, records(1, 1), {})
    _is_fenced(store, stale, 2)
    same("records", store.read("run"), records(2))


@_check
def a_lease_that_ran_out_writes_until_another_takes_it(make: Make) -> None:
    store = make(now := Now())
    late = store.acquire(store.create("run", "flow"), ELSEWHERE)
    now.pass_lease()
    store.append(late, 0, records(1), {})
    store.renew(late)
    with refused(RunLockedError):
        store.acquire("run", OTHER)


@_check
def a_lease_does_not_outlive_its_run(make: Make) -> None:
    store = make(now := Now())
    stale = store.acquire(store.create("run", "flow"), ELSEWHERE)
    now.pass_lease()
    store.delete("run")
    _is_fenced(store, stale, 0)
    fresh = store.acquire(store.create("run", "flow"), OTHER)
    _is_fenced(store, stale, 0)
    store.append(fresh, 0, records(1), {})


def _is_fenced(store: Store, lease: Lease, first: int) -> None:
    with refused(FencedError, lease.run):
        store.append(lease, first, records(1, first), blobs(b"stale"))
    with refused(FencedError, lease.run):
        store.renew(lease)
    with refused(LogCorruptError):
        store.blob(digest_of(b"stale"))


# ------------------------------------------------------------------------- deleting and pruning


@_check
def a_deleted_run_takes_with_it_the_blobs_that_only_it_used(make: Make) -> None:
    store = make(Now())
    new_run(store, "goes", count=2, bodies=[b"own", b"shared"])
    new_run(store, "stays", count=1, bodies=[b"shared"])
    same("deleted", store.delete("goes"), Pruned(runs=1, records=2, blobs=1))
    with refused(RunNotFoundError):
        store.read("goes")
    with refused(LogCorruptError):
        store.blob(digest_of(b"own"))
    same("the shared blob", store.blob(digest_of(b"shared")), b"shared")
    same("faults", store.check(), [])
    store.create("goes", "flow")
    same("a new run of the old name", store.read("goes"), [])


@_check
def a_held_run_is_neither_deleted_nor_pruned(make: Make) -> None:
    store = make(now := Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    with refused(RunLockedError, "run", ELSEWHERE):
        store.delete("run")
    same("pruned", store.prune(keep_latest=0, older_than_s=-1.0).runs, 0)
    store.append(lease, 0, records(1), {})
    now.pass_lease()
    same("pruned, after its lease", store.prune(keep_latest=0).runs, 1)


@_check
def prune_keeps_the_latest(make: Make) -> None:
    store = make(Now())
    names = [new_run(store, count=1, bodies=[b"of %d" % number]) for number in range(5)]
    nothing = Pruned(runs=0, records=0, blobs=0)
    same("with nothing asked", store.prune(), nothing)
    same("keeping more than there are", store.prune(keep_latest=9), nothing)
    same("keeping two", store.prune(keep_latest=2), Pruned(runs=3, records=3, blobs=3))
    same("what is left", [info.run for info in store.runs()], names[:-3:-1])
    same("faults", store.check(), [])
    same("keeping none", store.prune(keep_latest=0), Pruned(runs=2, records=2, blobs=2))


@_check
def prune_goes_by_when_a_run_was_last_held_not_by_its_start(make: Make) -> None:
    store = make(now := Now())
    for run in ("idle", "busy", "fresh"):
        new_run(store, run)
        now.seconds += 100
    store.release(store.acquire("busy", ELSEWHERE))
    same("older than 150 s", store.prune(older_than_s=150).runs, 1)
    same("what is left", [info.run for info in store.runs()], ["fresh", "busy"])


@_check
def prune_removes_only_what_every_condition_allows(make: Make) -> None:
    store = make(now := Now())
    for run in ("old 1", "old 2", "old 3"):
        new_run(store, run)
    now.seconds += 100
    new_run(store, "new")
    same("pruned", store.prune(keep_latest=2, older_than_s=50).runs, 2)
    same("what is left", [info.run for info in store.runs()], ["new", "old 3"])


@_check
def a_healthy_store_has_no_faults(make: Make) -> None:
    store = make(Now())
    same("faults of an empty store", store.check(), [])
    for run in ("a", "b"):
        new_run(store, run, count=3, bodies=[run.encode(), b"shared"])
    store.delete("a")
    same("faults", store.check(), [])
