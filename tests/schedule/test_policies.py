"""Policies are pure functions; each has a property that it is chosen for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Runtime
from accord.errors import UsageError
from accord.graph.build import StateGraph
from accord.graph.shape import END, START
from accord.schedule.admission import PASSING, Resident, admitted
from accord.schedule.budget import Wanted, fit
from accord.schedule.concurrency import TRIAL, WINDOW, Concurrency, next_concurrency
from accord.schedule.policy import POLICIES, Policy, policy_of, priority, slo
from accord.schedule.prefix import shared_tokens, waits_for_slot
from accord.schedule.ticket import Ticket

seconds = st.integers(0, 1000).map(float)
urgencies = st.integers(-3, 3)


@st.composite
def queues(draw: Callable[[Any], Any], least: int = 1) -> list[Ticket]:
    arrivals = sorted(draw(st.lists(seconds, min_size=least, max_size=8)))
    return [
        Ticket(
            number=number,
            run=f"run {draw(st.integers(0, 3))}",
            arrived_s=arrived_s,
            priority=draw(urgencies),
            deadline_s=draw(st.none() | seconds),
            remaining_s=draw(seconds),
            attained_s=draw(seconds),
            used=draw(st.integers(0, 10)) / 10,
        )
        for number, arrived_s in enumerate(arrivals)
    ]


def next_of(queue: list[Ticket], now_s: float, policy: Policy) -> Ticket:
    return min(queue, key=lambda ticket: policy.key(ticket, now_s))


def order(queue: list[Ticket], policy: Policy, now_s: float = 1000.0) -> list[Ticket]:
    return sorted(queue, key=lambda ticket: policy.key(ticket, now_s))


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"priority"}))
@given(queue=queues())
def test_nobody_waits_for_a_less_urgent_one(name: str, queue: list[Ticket]) -> None:
    """RTL-8: whatever else a policy goes by. A less urgent one may be at the engine: one call."""
    assert next_of(queue, 1000.0, POLICIES[name]).priority == max(t.priority for t in queue)


@pytest.mark.parametrize("name", [name for name, each in POLICIES.items() if each.lasting])
@given(queue=queues(), now_s=seconds, later_s=seconds)
def test_a_lasting_order_does_not_depend_on_the_time(
    name: str, queue: list[Ticket], now_s: float, later_s: float
) -> None:
    """It is why the line need not be sorted again."""
    assert order(queue, POLICIES[name], now_s) == order(queue, POLICIES[name], later_s)


def among_equals(name: str) -> Callable[[list[Ticket]], list[Ticket]]:
    return lambda queue: order([replace(ticket, priority=0) for ticket in queue], POLICIES[name])


@given(queues())
def test_fcfs_keeps_the_order_of_arrival(queue: list[Ticket]) -> None:
    assert [ticket.number for ticket in among_equals("fcfs")(queue)] == sorted(
        ticket.number for ticket in queue
    )


@given(urgencies, st.integers(1, 100).map(float), st.integers(2, 6))
def test_nobody_starves_under_aging(urgency: int, aging_s: float, calls: int) -> None:
    """RTL-8: an endless stream of urgent ones, each a second long, holds up one for a time only."""
    policy = priority(aging_s=aging_s)
    low = Ticket(number=0, priority=urgency)
    most_s = (10 - urgency) * aging_s + calls + 1
    now_s, number, queue = 0.0, 0, [low]
    while True:
        while len(queue) < calls:  # there are always urgent ones
            number += 1
            queue.append(Ticket(number=number, priority=10, arrived_s=now_s))
        taken = next_of(queue, now_s, policy)
        queue.remove(taken)
        if taken is low:
            break
        now_s += 1.0
        assert now_s <= most_s


@given(queues())
def test_aging_lets_a_more_urgent_one_go_first_that_came_at_the_same_time(
    queue: list[Ticket],
) -> None:
    at_once = [replace(ticket, arrived_s=0.0) for ticket in queue]
    assert next_of(at_once, 5.0, POLICIES["priority"]).priority == max(t.priority for t in queue)


@given(queues())
def test_budget_prefers_who_has_used_least_of_its_own(queue: list[Ticket]) -> None:
    assert all(a.used <= b.used for a, b in pairwise(among_equals("budget")(queue)))


@given(queues())
def test_slo_prefers_who_has_the_least_time_to_spare(queue: list[Ticket]) -> None:
    def spare(ticket: Ticket) -> float:
        due_s = float("inf") if ticket.deadline_s is None else ticket.deadline_s
        return due_s - ticket.remaining_s

    assert all(spare(a) <= spare(b) for a, b in pairwise(among_equals("slo")(queue)))


@given(queues())
def test_critical_path_prefers_the_longest_way_to_the_end(queue: list[Ticket]) -> None:
    assert all(
        a.remaining_s >= b.remaining_s for a, b in pairwise(among_equals("critical_path")(queue))
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_critical_path_on_one_engine_is_the_best_order_for_one_run(
    jobs: list[tuple[int, int]],
) -> None:
    """Each job has a request, and then a tail elsewhere: longest tail first (Jackson's rule)."""

    def makespan(chosen: Any) -> int:
        at = end = 0
        for request, tail in chosen:
            at += request
            end = max(end, at + tail)
        return end

    tickets = [Ticket(number=i, remaining_s=float(tail)) for i, (_, tail) in enumerate(jobs)]
    chosen = [jobs[ticket.number] for ticket in order(tickets, POLICIES["critical_path"])]
    assert makespan(chosen) == min(makespan(each) for each in permutations(jobs))


@given(queues())
def test_least_attained_prefers_the_run_that_has_had_least(queue: list[Ticket]) -> None:
    assert all(
        a.attained_s <= b.attained_s for a, b in pairwise(among_equals("least_attained")(queue))
    )


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 30)), min_size=1, max_size=5))
def test_edf_meets_all_deadlines_if_any_order_does(jobs: list[tuple[int, int]]) -> None:
    """On one place, all there from the beginning (Jackson 1955)."""

    def meets_all(chosen: Any) -> bool:
        at = 0
        for length, due in chosen:
            at += length
            if at > due:
                return False
        return True

    tickets = [Ticket(number=i, deadline_s=float(due)) for i, (_, due) in enumerate(jobs)]
    chosen = [jobs[ticket.number] for ticket in order(tickets, POLICIES["edf"])]
    assert meets_all(chosen) == any(meets_all(each) for each in permutations(jobs))


@pytest.mark.parametrize("given_policy", ["fifo", "", 3, None])
def test_an_unknown_policy_is_named_with_those_that_there_are(given_policy: Any) -> None:
    with pytest.raises(UsageError, match=r"polic"):
        policy_of(given_policy)
    with pytest.raises(UsageError):
        Runtime(engine="local", log="memory", policy=given_policy)


def test_times_of_policies_are_times() -> None:
    for make in (lambda: priority(aging_s=0), lambda: slo(target_s=-1)):
        with pytest.raises(UsageError):
            make()


# -- admission


@st.composite
def residents(draw: Callable[[Any], Any]) -> list[Resident]:
    return [
        Resident(
            run=f"run {number}",
            tokens=draw(st.integers(0, 100)),
            priority=draw(urgencies),
            began_s=draw(seconds),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@given(residents(), st.integers(1, 300))
def test_who_is_admitted_fits_or_is_alone(runs: list[Resident], kv_tokens: int) -> None:
    inside = admitted(runs, kv_tokens)
    assert inside
    assert len(inside) == 1 or sum(r.tokens for r in runs if r.run in inside) <= kv_tokens
    assert max(r.priority for r in runs) in {r.priority for r in runs if r.run in inside}
    ordered = sorted(runs, key=lambda r: (-r.priority, r.began_s, r.run))
    first_out = next((n for n, r in enumerate(ordered) if r.run not in inside), len(ordered))
    past = sum(r.tokens for r in ordered[first_out:] if r.run in inside)
    assert past <= kv_tokens * PASSING


@given(residents(), st.integers(1, 300))
def test_who_is_in_stays_in_and_makes_room_for_the_more_urgent_only(
    runs: list[Resident], kv_tokens: int
) -> None:
    inside = admitted(runs, kv_tokens)
    assert admitted(runs, kv_tokens, inside) == inside
    urgent = Resident(run="urgent", tokens=kv_tokens, priority=99, began_s=5000.0)
    assert "urgent" in admitted([*runs, urgent], kv_tokens, inside)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_small_runs_that_go_past_a_large_one_do_not_keep_it_out(sizes: list[int]) -> None:
    """Each round the oldest of those inside ends, and another small run comes."""
    runs = [Resident(run=f"run {n}", tokens=size, began_s=n) for n, size in enumerate(sizes)]
    large = Resident(run="large", tokens=90, began_s=len(sizes))
    runs.append(large)
    inside: set[str] = set()
    for came in range(100):
        inside = admitted(runs, 100, inside)
        if "large" in inside:
            return
        runs.remove(min((r for r in runs if r.run in inside), key=lambda r: r.began_s))
        runs.append(Resident(run=f"small {came}", tokens=5, began_s=100.0 + came))
    raise AssertionError("the large run waits for ever")


@given(residents(), st.integers(1, 300), st.integers(1, 100))
def test_a_newcomer_of_no_urgency_drives_nobody_out(
    runs: list[Resident], kv_tokens: int, tokens: int
) -> None:
    newcomer = Resident(run="new", tokens=tokens, priority=-9, began_s=2000.0)
    assert admitted(runs, kv_tokens) <= admitted([*runs, newcomer], kv_tokens)


# -- budget


@given(
    st.integers(0, 500),
    st.integers(1, 500),
    st.integers(0, 1200),
    st.booleans(),
    st.none() | st.floats(0.1, 1.0),
)
def test_what_fits_a_budget_never_overspends_it(
    prompt: int, most: int, left: int, cuts: bool, weight: float | None
) -> None:
    wanted = Wanted(prompt=prompt, max_tokens=most, cuts=cuts, weight=weight)
    found = fit(wanted, left)
    if found is None:
        assert prompt + wanted.least > left
        return
    counts = weight if found.rung == "cheaper" and weight is not None else 1.0
    assert (prompt + found.max_tokens) * counts <= left + 1e-6
    assert wanted.least <= found.max_tokens <= most
    assert (found.rung == "") == (prompt + most <= left)


# -- concurrency


@given(st.integers(1, 64), st.floats(0.1, 3.0))
def test_concurrency_goes_up_by_one_and_down_by_a_share(current: int, ratio: float) -> None:
    found = next_concurrency(current, ratio, 64)
    assert 1 <= found <= 64
    assert found == (min(64, current + 1) if ratio <= 1 else max(1, current * 9 // 10))


@pytest.mark.parametrize(("after", "limit"), [(1.2, 51), (2.5, 64)])
def test_a_cut_stays_if_requests_sent_after_it_are_faster_and_is_undone_if_not(
    after: float, limit: int
) -> None:
    concurrency = Concurrency(64)
    for _ in range(WINDOW):
        concurrency.succeeded(2.0, 0)
    assert concurrency.limit == 57
    for _ in range(WINDOW):
        concurrency.succeeded(0.5, 0)  # sent before the cut: says nothing about it
    assert concurrency.limit == 57
    for _ in range(TRIAL):
        concurrency.succeeded(after, 1)
    assert concurrency.limit == limit


def test_one_burst_of_refusals_cuts_once() -> None:
    concurrency = Concurrency(64)
    for _ in range(9):
        concurrency.refused(0, 16)
    assert concurrency.limit == 8
    for _ in range(8):
        concurrency.succeeded(None)
    assert concurrency.limit == 9


def test_a_cut_for_the_slowest_stays_also_where_the_number_grows_at_first() -> None:
    concurrency = Concurrency(64, cautious=True)
    for _ in range(WINDOW):
        concurrency.begun()
        concurrency.succeeded(2.0, 0)
    cut = concurrency.limit
    assert cut < 64
    concurrency.begun()
    assert concurrency.limit == cut


def test_a_trial_does_not_undo_what_a_refusal_cut_meanwhile() -> None:
    concurrency = Concurrency(64)
    for _ in range(WINDOW):
        concurrency.succeeded(2.0, 0)
    concurrency.refused(1, 20)
    assert concurrency.limit == 10
    for _ in range(TRIAL):
        concurrency.succeeded(9.0, 2)
    assert concurrency.limit == 10


# -- prefixes


@given(st.binary(max_size=300), st.binary(max_size=50), st.binary(max_size=50))
def test_what_two_prompts_share_is_where_they_begin_to_differ(
    head: bytes, one: bytes, other: bytes
) -> None:
    one, other = head + one, head + other
    length = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    assert shared_tokens(one, other) == length // 4


def test_a_slot_is_waited_for_if_what_it_holds_is_longer_to_read() -> None:
    assert waits_for_slot(1740, 24)
    assert not waits_for_slot(1740, 1000)
    assert not waits_for_slot(100, 1)


# -- declared ways


def test_a_graph_says_how_far_it_is_to_the_end() -> None:
    class State(TypedDict, total=False):
        x: int

    async def work(state: State) -> State:
        return {}

    graph = StateGraph(State)
    for name in "abcd":
        graph.add_node(name, work)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END)
    graph.add_edge("a", "d").add_edge("d", END)
    shape = graph.compile().shape
    assert dict(zip(shape.names, shape.ways, strict=True)) == {"a": 3, "b": 2, "c": 1, "d": 1}
