"""State is read off the log: the same prefix gives the same state, wherever it was cut."""

import pytest

from accord.clock import VirtualClock, run_virtual
from accord.log.events import (
    AttemptFailed,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    ErrorRecord,
    Event,
    Joined,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
    Value,
)
from accord.log.fold import Calls, index_calls
from accord.log.log import Log, read_log
from accord.log.store.memory import MemoryStore
from accord.testing.conformance.kit import ELSEWHERE

NOTHING = Value(b"null")
ERROR = ErrorRecord(type="builtins:ValueError", message="no")


def started(name: str) -> CallStarted:
    return CallStarted(kind="step", name=name, key=name)


def finished(call: int) -> CallFinished:
    return CallFinished(call=call, output=NOTHING)


RUN = RunStarted(run="r", flow="f", input=NOTHING, began_s=0.0, engine="e", seed=0, version="1")

STORY: list[tuple[str, tuple[int, ...], Event]] = [
    ("", (), RUN),  # 0
    ("0", (0,), started("first")),  # 1
    ("0", (1,), AttemptFailed(call=1, attempt=1, error=ERROR, retry_in_s=1.0)),  # 2
    ("0", (1,), AttemptFailed(call=1, attempt=2, error=ERROR, retry_in_s=2.0)),  # 3
    ("0", (1,), finished(1)),  # 4
    ("1/0", (4,), started("left")),  # 5
    ("1/1", (4,), started("right")),  # 6
    ("1/1", (6,), CallFailed(call=6, error=ERROR)),  # 7
    ("1/0", (5,), finished(5)),  # 8
    ("1", (8, 7), Joined(branches=2, policy="isolate")),  # 9
    ("2", (9,), started("last")),  # 10
    ("2", (10,), CallCancelled(call=10)),  # 11
    ("", (11,), RunInterrupted()),  # 12
    ("", (12,), RunResumed(version="1")),  # 13
    ("2", (13,), started("last")),  # 14
    ("2", (14,), finished(14)),  # 15
    ("3", (15,), started("open")),  # 16
    ("", (15,), RunFinished(output=NOTHING)),  # 17
]

ENVELOPES = [
    Envelope(seq, seq * 10, scope, causes, event)
    for seq, (scope, causes, event) in enumerate(STORY)
]


def test_a_call_is_found_by_its_place_with_its_end_and_its_attempts():
    calls = index_calls(ENVELOPES)
    assert list(calls.by_scope) == ["0", "1/0", "1/1", "2", "3"]
    first = calls.by_scope["0"]
    assert first.started.name == "first"
    assert isinstance(first.ended, CallFinished)
    assert first.duration_ns == 30
    assert [attempt.attempt for attempt in first.attempts] == [1, 2]
    assert isinstance(calls.by_scope["1/1"].ended, CallFailed)
    unended = calls.by_scope["3"]
    assert (unended.ended, unended.end, unended.duration_ns) == (None, None, None)


def test_branches_that_meet_are_found_by_their_place():
    calls = index_calls(ENVELOPES)
    assert calls.joined["1"].causes == (8, 7)


def test_a_call_made_again_replaces_the_one_before():
    cut = index_calls(ENVELOPES[:12])
    assert isinstance(cut.by_scope["2"].ended, CallCancelled)
    again = index_calls(ENVELOPES).by_scope["2"]
    assert again.start.seq == 14
    assert isinstance(again.ended, CallFinished)


def test_a_call_led_on_if_something_began_because_of_its_end():
    calls = index_calls(ENVELOPES)
    assert {scope for scope, call in calls.by_scope.items() if call.led_on} == {
        "0",
        "1/0",  # through the join
        "1/1",
        "2",
    }
    before_the_join = index_calls(ENVELOPES[:10])
    assert not before_the_join.by_scope["1/0"].led_on


@pytest.mark.parametrize(
    "end", [RunInterrupted(), RunFailed(error=ERROR), RunFinished(output=NOTHING)]
)
def test_a_run_that_ended_is_open_again_when_it_is_resumed(end):
    calls = Calls()
    calls.add(Envelope(0, 0, "", (), RUN))
    assert (calls.run, calls.ended) == (RUN, None)
    calls.add(Envelope(1, 1, "", (0,), end))
    assert calls.ended == end
    calls.add(Envelope(2, 2, "", (1,), RunResumed(version="1")))
    assert calls.ended is None


@pytest.mark.parametrize("cut", range(len(STORY) + 1))
def test_a_log_cut_anywhere_and_read_again_gives_the_state_that_it_had(cut: int):
    async def main():
        store = MemoryStore()
        lease = store.acquire(store.create("run", "flow"), ELSEWHERE)
        log = Log(store, "run", clock=VirtualClock(), lease=lease)
        live = Calls()
        for scope, causes, event in STORY[:cut]:
            log.append(scope, causes, event)
            live.add(log.envelopes[-1])
        log.close()
        again = Log(store, "run", clock=VirtualClock(), lease=store.acquire("run", ELSEWHERE))
        assert index_calls(again.envelopes) == live
        for scope, causes, event in STORY[cut:]:
            again.append(scope, causes, event)
            live.add(again.envelopes[-1])
        again.close()
        assert index_calls(read_log(store, "run", VirtualClock()).envelopes) == live

    run_virtual(main())
