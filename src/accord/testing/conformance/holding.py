"""Names, records, blobs and listings: what was put in comes back, whole, and to nobody else."""
# ruff: noqa: D103  # the name of a check is the promise that it checks

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from accord.errors import FencedError, LogCorruptError, RunNotFoundError, UsageError
from accord.log.blobs import digest_of
from accord.log.store.base import Lease, Pruned
from accord.testing.conformance.kit import (
    ELSEWHERE,
    OTHER,
    Check,
    Make,
    Now,
    added_to,
    blobs,
    new_run,
    record,
    records,
    refused,
    same,
)

HOLDING: list[Check] = []
_check = added_to(HOLDING)


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
def many_blobs_come_in_one_look(make: Make) -> None:
    store = make(Now())
    wanted = blobs(*(b"%d" % number for number in range(2000)))
    new_run(store, bodies=[*wanted.values(), b"another"])
    same("the blobs", store.blobs(wanted.keys()), wanted)
    same("none", store.blobs([]), {})
    missing = digest_of(b"never stored")
    with refused(LogCorruptError, missing):
        store.blobs([*wanted, missing])


@_check
def a_rewritten_run_has_the_new_records_and_their_blobs_alone(make: Make) -> None:
    store = make(Now())
    new_run(store, "other", count=1, bodies=[b"shared"])
    lease = store.acquire(new_run(store, "run", count=3, bodies=[b"a", b"b", b"shared"]), OTHER)
    with refused(FencedError, "run"):
        store.rewrite(Lease(run="run", token=lease.token - 1, holder=OTHER), [], {})
    store.rewrite(lease, records(2), blobs(b"b", b"new"))
    same("records", store.read("run"), records(2))
    same(
        "kept and new",
        store.blobs(blobs(b"b", b"new", b"shared")).keys(),
        blobs(b"b", b"new", b"shared").keys(),
    )
    with refused(LogCorruptError):
        store.blob(digest_of(b"a"))
    store.append(lease, 2, records(1, 2), blobs(b"a"))
    same("faults", store.check(), [])
    store.release(lease)
    same("what goes with it", store.delete("run"), Pruned(runs=1, records=3, blobs=3))


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


# ------------------------------------------------------------------------------------- the whole


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


# --------------------------------------------------------------------------- messages from outside


@_check
def messages_for_a_run_come_once_each_in_order(make: Make) -> None:
    store = make(Now())
    new_run(store, "r", count=1)
    new_run(store, "other", count=1)
    numbers = [store.post("r", name, body) for name, body in (("a", b"1"), ("b", b'"\xc3\xbc"'))]
    store.post("other", "c", b"3")
    same("growing numbers", numbers, sorted(set(numbers)))
    sent = [(numbers[0], "a", b"1"), (numbers[1], "b", b'"\xc3\xbc"')]
    same("all of the run's own", store.posted("r"), sent)
    same("those after the first", store.posted("r", numbers[0]), sent[1:])
    same("none after the last", store.posted("r", numbers[1]), [])
    lease = store.acquire("r", OTHER)
    assert store.post("r", "c", b"4") > numbers[1], "a run that is held gets messages, too"
    store.release(lease)
    same("kept when the run is let go", store.posted("r")[:2], sent)


@_check
def nobody_posts_to_a_run_that_is_not_there(make: Make) -> None:
    store = make(Now())
    with refused(RunNotFoundError, "nowhere"):
        store.post("nowhere", "a", b"1")


@_check
def a_deleted_run_leaves_no_messages(make: Make) -> None:
    store = make(Now())
    new_run(store, "r", count=1)
    store.post("r", "a", b"1")
    store.delete("r")
    new_run(store, "r", count=1)
    same("messages of the new run", store.posted("r"), [])
