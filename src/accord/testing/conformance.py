"""What every store of logs must do, as checks that any implementation can run.

In pytest, one test a promise::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=check_name)
    def test_my_store(check, tmp_path):
        check(lambda now_s: MyStore(tmp_path, now_s=now_s))

Or all at once: ``check_store(make)``. ``make`` is given a clock (seconds since 1970) and returns
a new, empty store. A broken promise raises ``AssertionError``, which says which.
"""
# ruff: noqa: D103  # the name of a check is the promise that it checks

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from accord.errors import (
    FencedError,
    LogCorruptError,
    RunLockedError,
    RunNotFoundError,
    UsageError,
)
from accord.log.blobs import digest_of
from accord.log.codec import encode_envelope
from accord.log.events import Envelope, RunResumed
from accord.log.store.base import LEASE_S, Lease, Pruned, Store
from accord.log.store.holder import this_process

Make = Callable[[Callable[[], float]], Store]
Check = Callable[[Make], None]

ELSEWHERE = "elsewhere/1/1"
OTHER = "other-host/2/2"
"""Holders of which nobody here can say whether they live: only time ends their leases."""

STORE_CHECKS: list[Check] = []
"""One check a promise, in the order in which they build on each other."""


def check_store(make: Make) -> None:
    """Run every check, each on a new store."""
    for check in STORE_CHECKS:
        check(make)


def check_name(check: Check) -> str:
    """The promise that ``check`` checks."""
    return check.__name__


class Now:
    """Seconds since 1970, moved by hand."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def pass_lease(self) -> None:
        """Let every lease that was not renewed run out."""
        self.seconds += LEASE_S + 1


def record(seq: int, text: str = "") -> bytes:
    """A record that any store may hold and read: an envelope."""
    return encode_envelope(Envelope(seq, seq, "", (), RunResumed(version=text)))


def records(count: int, first: int = 0) -> list[bytes]:
    """``count`` records, numbered from ``first``."""
    return [record(seq) for seq in range(first, first + count)]


def blobs(*bodies: bytes) -> dict[str, bytes]:
    """Blobs under their digests."""
    return {digest_of(body): body for body in bodies}


@contextmanager
def refused(kind: type[Exception], *words: str) -> Generator[None]:
    """The block must raise ``kind``, and its message must hold each of ``words``."""
    try:
        yield
    except kind as error:
        same(f"unsaid in {error!r}", [word for word in words if word not in str(error)], [])
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def same(what: str, got: object, wanted: object) -> None:
    """``got`` must equal ``wanted``."""
    assert got == wanted, f"{what}: got {got!r}, wanted {wanted!r}"


def new_run(
    store: Store, run: str | None = None, *, count: int = 0, bodies: Sequence[bytes] = ()
) -> str:
    """A run with ``count`` records and blobs of ``bodies``, held by nobody."""
    name = store.create(run, "flow")
    lease = store.acquire(name, ELSEWHERE)
    store.append(lease, 0, records(count), blobs(*bodies))
    store.release(lease)
    return name


def _check(check: Check) -> Check:
    STORE_CHECKS.append(check)
    return check


# ---------------------------------------------------------------------------------------- names


@_check
def a_run_is_named_by_the_caller_or_by_flow_and_serial(make: Make) -> None:
    store = make(Now())
    same("the name asked for", store.create("report/1 – ü", "flow"), "report/1 – ü")
    names = [store.create(None, "flow") for _ in range(3)]
    assert all(name.startswith("flow-") for name in names), f"not named by their flow: {names}"
    same("different names", len(set(names)), 3)
    unnamed = store.create("", "flow")
    assert unnamed.startswith("flow-"), f"not named by its flow: {unnamed!r}"


@_check
def a_name_is_taken_once(make: Make) -> None:
    store = make(Now())
    new_run(store, "mine", count=2)
    with refused(UsageError, "mine"):
        store.create("mine", "flow")
    same("the first run's records", store.read("mine"), records(2))


@_check
def a_serial_name_avoids_one_that_a_caller_chose(make: Make) -> None:
    store = make(Now())
    chosen = {store.create(f"flow-{serial}", "other") for serial in range(1, 10)}
    serial = store.create(None, "flow")
    assert serial not in chosen, f"{serial} is there already"


@_check
def what_there_is_not_is_named(make: Make) -> None:
    store = make(Now())
    for ask in (store.read, store.delete):
        with refused(RunNotFoundError, "nosuch"):
            ask("nosuch")
    with refused(RunNotFoundError, "nosuch"):
        store.acquire("nosuch", ELSEWHERE)
    with refused(RunNotFoundError, "nosuch"):
        store.runs(before="nosuch")
    digest = digest_of(b"never stored")
    with refused(LogCorruptError, digest):
        store.blob(digest)


# ---------------------------------------------------------------------------- records and blobs


@_check
def records_come_back_as_written_and_in_order(make: Make) -> None:
    store = make(Now())
    lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
    written: list[bytes] = []
    for size in (1, 3, 0, 2):
        batch = records(size, len(written))
        store.append(lease, len(written), batch, {})
        written += batch
    same("records", store.read("run"), written)


@_check
def records_are_read_by_pages(make: Make) -> None:
    store = make(Now())
    run = new_run(store, count=10)
    written = records(10)
    same("after 3", store.read(run, after=3), written[4:])
    same("the first 4", store.read(run, limit=4), written[:4])
    same("4 after 3", store.read(run, after=3, limit=4), written[4:8])
    same("past the end", store.read(run, after=9), [])
    same("a short last page", store.read(run, after=7, limit=50), written[8:])


@_check
def runs_keep_their_records_apart(make: Make) -> None:
    store = make(Now())
    one, two = (store.acquire(store.create(None, "flow"), ELSEWHERE) for _ in range(2))
    for seq in range(4):
        store.append(one, seq, [record(seq, "one")], {})
        store.append(two, seq, [record(seq, "two")], {})
    same("one", store.read(one.run), [record(seq, "one") for seq in range(4)])
    same("two", store.read(two.run), [record(seq, "two") for seq in range(4)])


@_check
def blobs_come_back_as_written(make: Make) -> None:
    store = make(Now())
    bodies = [b"", b"\x00\xff" * 10, "日本語".encode(), bytes(4_000_000)]
    new_run(store, bodies=bodies)
    for digest, body in blobs(*bodies).items():
        same(f"a blob of {len(body)} bytes", store.blob(digest) == body, wanted=True)


@_check
def a_blob_of_several_runs_is_stored_once(make: Make) -> None:
    store = make(Now())
    for run in ("a", "b", "c"):
        new_run(store, run, bodies=[b"shared"])
    same("pruned", store.prune(keep_latest=0), Pruned(runs=3, records=0, blobs=1))


@_check
def an_append_is_all_or_nothing(make: Make) -> None:
    store = make(Now())
    lease = store.acquire(new_run(store, "run", count=2), OTHER)
    for first in (0, 1, 3):
        with refused(FencedError, "run"):
            store.append(lease, first, records(2, first), blobs(b"of nobody"))
    same("records", store.read("run"), records(2))
    with refused(LogCorruptError):
        store.blob(digest_of(b"of nobody"))
    store.append(lease, 2, records(1, 2), {})
    same("records, once the number was right", store.read("run"), records(3))


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


# --------------------------------------------------------------------------------------- listing


@_check
def runs_are_listed_newest_first_and_by_pages(make: Make) -> None:
    store = make(Now())
    newest_first = [store.create(None, "flow") for _ in range(7)][::-1]
    same("all", [info.run for info in store.runs()], newest_first)
    pages: list[str] = []
    while page := store.runs(before=pages[-1] if pages else None, limit=3):
        assert len(page) <= 3, f"a page of 3 has {len(page)}"
        pages += [info.run for info in page]
    same("page by page", pages, newest_first)


@_check
def a_listing_says_how_a_run_stands(make: Make) -> None:
    store = make(now := Now())
    store.create("run", "the flow")
    [info] = store.runs()
    same("a new run", (info.records, info.last, info.held), (0, b"", False))
    now.seconds += 5
    lease = store.acquire("run", ELSEWHERE)
    store.append(lease, 0, records(3), {})
    [info] = store.runs()
    same("records", (info.flow, info.records, info.last), ("the flow", 3, record(2)))
    same("times", (info.created_at_s, info.updated_at_s), (now.seconds - 5, now.seconds))
    same("held", info.held, wanted=True)
    now.pass_lease()
    same("held, after its lease", store.runs()[0].held, wanted=False)
    same("the run alone", store.info("run"), store.runs()[0])
    with refused(RunNotFoundError):
        store.info("nobody")


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
def prune_goes_by_the_last_record_not_by_the_start(make: Make) -> None:
    store = make(now := Now())
    for run in ("idle", "busy", "fresh"):
        new_run(store, run)
        now.seconds += 100
    lease = store.acquire("busy", ELSEWHERE)
    store.append(lease, 0, records(1), {})
    store.release(lease)
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


# ------------------------------------------------------------------------------------- the whole


@_check
def a_healthy_store_has_no_faults(make: Make) -> None:
    store = make(Now())
    same("faults of an empty store", store.check(), [])
    for run in ("a", "b"):
        new_run(store, run, count=3, bodies=[run.encode(), b"shared"])
    store.delete("a")
    same("faults", store.check(), [])


@_check
def any_thread_may_call_at_any_time(make: Make) -> None:
    store = make(Now())

    def work(number: int) -> Lease:
        lease = store.acquire(store.create(None, "flow"), ELSEWHERE)
        for seq in range(5):
            store.append(lease, seq, [record(seq, str(number))], blobs(b"shared", b"%d" % seq))
        return lease

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # what would go wrong once a year goes wrong now
    try:
        with ThreadPoolExecutor(8) as pool:
            leases = list(pool.map(work, range(40)))
    finally:
        sys.setswitchinterval(interval)
    for number, lease in enumerate(leases):
        wanted = [record(seq, str(number)) for seq in range(5)]
        same(f"the records of thread {number}", store.read(lease.run), wanted)
    same("faults", store.check(), [])


@_check
def a_closed_store_may_be_closed_again(make: Make) -> None:
    store = make(Now())
    new_run(store)
    store.close()
    store.close()
