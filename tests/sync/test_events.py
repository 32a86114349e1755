"""Events: each is seen once, in order, by all who subscribe; and the same on a replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from accord import Blackboard, Runtime, gather, sleep
from accord.clock import VirtualClock, run_virtual
from accord.comm.mailbox import dead_letters
from accord.errors import CallTimeoutError, EventsEndedError, UsageError
from accord.log.events import CallStarted, Looked
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.sync.events import Event, emit, on, ticks
from accord.testing.scripted import ScriptedEngine
from tests.sync.replays import book, cut_anywhere, play, wait


@dataclass(frozen=True)
class Alarm:
    level: int


@dataclass(frozen=True)
class Fire(Alarm):
    where: str = "here"


class Done(msgspec.Struct, frozen=True):
    why: str = ""


class Report(pydantic.BaseModel):
    text: str


board = Blackboard()


def test_an_event_is_seen_by_all_who_subscribe_to_its_class_or_to_one_above_it() -> None:
    async def flow() -> Any:
        alarms, fires, reports = on(Alarm), on(Fire), on(Report)
        await emit(Alarm(1))
        await emit(Fire(2, "roof"))
        await emit(Report(text="all is well"))
        seen = [(await alarms.next()).value, (await alarms.next()).value]
        with pytest.raises(CallTimeoutError, match=r"nothing of .*:Alarm has come within 1 s"):
            await alarms.next(timeout_s=1)
        return seen, (await fires.next()).value, (await reports.next()).value

    expected = [Alarm(1), Fire(2, "roof")], Fire(2, "roof"), Report(text="all is well")
    assert play(flow).value == expected


def test_a_subscription_begins_at_the_beginning_or_now() -> None:
    async def flow() -> Any:
        await emit(Alarm(1))
        all_of_them, later = on(Alarm), on(Alarm, from_now=True)
        await emit(Alarm(2))
        return (await all_of_them.next()).value.level, (await later.next()).value.level

    assert play(flow).value == (1, 2)


def test_a_handler_is_called_for_each_event_of_a_loop() -> None:
    """SYN-10: it goes on by itself: 5 iterations, 5 calls."""

    async def flow() -> Any:
        handled: list[int] = []

        async def handler() -> None:
            async for alarm in on(Alarm, until=Done):
                handled.append(alarm.value.level)
                await book(str(alarm.value.level))
                await emit(Report(text="go on"))

        async def router() -> None:
            reports = on(Report)
            for number in range(5):
                await emit(Alarm(number))
                await reports.next()
            await emit(Done())

        await gather(handler(), router())
        return handled

    assert cut_anywhere(flow).value == [0, 1, 2, 3, 4]


def test_what_comes_after_the_end_is_late() -> None:
    """SYN-20: it ends at 10 ms, another emits at 50 ms: not delivered, and counted."""

    async def flow() -> Any:
        async def listener() -> Any:
            with on(Alarm, until=Done) as alarms:
                seen = [alarm.value.level async for alarm in alarms]
            with pytest.raises(EventsEndedError):
                await alarms.next()
            at = asyncio.get_running_loop().time()
            await sleep(1)
            return seen, at, alarms.statistics()

        async def stop() -> None:
            await sleep(0.01)
            await emit(Done("found"))

        async def slow() -> None:
            await emit(Alarm(1))
            await sleep(0.05)
            await emit(Alarm(2))

        return (await gather(listener(), stop(), slow()))[0]

    seen, at, statistics = play(flow).value
    assert (seen, at) == ([1], pytest.approx(0.01))
    assert (statistics.delivered, statistics.waiting, statistics.late) == (1, 0, 1)


def test_a_block_ends_a_subscription() -> None:
    async def flow() -> Any:
        with on(Alarm) as alarms:
            for number in range(3):
                await emit(Alarm(number))
            await alarms.next()
        await emit(Alarm(9))
        with pytest.raises(EventsEndedError, match="has ended"):
            await alarms.next()
        return alarms.statistics()

    statistics = play(flow).value
    assert (statistics.delivered, statistics.waiting, statistics.late) == (1, 2, 1)


def test_a_predicate_chooses() -> None:
    async def flow() -> Any:
        loud = on(Alarm, where=lambda alarm: alarm.level > 3)

        async def tell() -> None:
            for level in (1, 5, 2, 7):
                await wait()
                await emit(Alarm(level))

        async def hear() -> list[int]:
            return [(await loud.next()).value.level for _ in range(2)]

        return (await gather(hear(), tell()))[0]

    assert play(flow).value == [5, 7]


def test_keys_of_the_board_are_events_as_they_are_written() -> None:
    async def flow() -> Any:
        async def watch() -> list[Any]:
            with on("notes/*", until="end") as notes:
                return [(n.key, n.how, n.value) async for n in notes]

        async def write() -> None:
            await wait()
            board.write("notes/a", 1)
            board.write("other", 0)
            board.append("notes/b", "x")
            await wait()
            board.append("notes/b", "y")
            board.remove("notes/a")
            board.write("end", True)

        return (await gather(watch(), write()))[0]

    assert cut_anywhere(flow).value == [
        ("notes/a", "replace", 1),
        ("notes/b", "append", "x"),
        ("notes/b", "append", "y"),
        ("notes/a", "remove", None),
    ]


def test_a_message_from_outside_is_an_event_and_no_dead_letter() -> None:
    async def flow() -> Any:
        async def listen() -> list[Any]:
            with on(outside="approve", where=lambda value: value != "hm") as approvals:
                return [(await approvals.next(timeout_s=100)).value for _ in range(2)]

        return await gather(listen(), listen())

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock())

        async def signal() -> None:
            for value in ("yes", "hm", {"by": "me"}):
                await asyncio.sleep(1)
                runtime.signal("run", "approve", value)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(runtime.arun(flow, run_id="run"))
            group.create_task(signal())
        return running.result()

    result = run_virtual(main())
    assert result.output == [["yes", {"by": "me"}]] * 2
    assert [letter.body for letter in dead_letters(result.log)] == ["hm"]


def test_a_wake_names_the_event_that_caused_it() -> None:
    async def flow() -> Any:
        async def listen() -> int:
            with on(Alarm) as alarms:
                return (await alarms.next()).id

        async def tell() -> int:
            await wait()
            return await emit(Alarm(1))

        return await gather(listen(), tell())

    ending = play(flow)
    [heard, told] = ending.value
    assert heard == told
    looks = [e for e in ending.envelopes if isinstance(e.event, Looked) and e.event.took]
    assert [look.event.took for look in looks if isinstance(look.event, Looked)] == [(told,)]
    assert all(told in look.causes for look in looks)


def test_branches_share_a_subscription_each_event_goes_to_one() -> None:
    async def flow() -> Any:
        alarms = on(Alarm, until=Done)

        async def worker() -> list[int]:
            seen: list[int] = []
            async for alarm in alarms:
                await book(str(alarm.value.level))
                seen.append(alarm.value.level)
            return seen

        async def tell() -> None:
            for level in range(6):
                await emit(Alarm(level))
            await wait()
            await emit(Done())

        one, other, _ = await gather(worker(), worker(), tell())
        return sorted(one + other)

    assert cut_anywhere(flow).value == [0, 1, 2, 3, 4, 5]


async def crossing() -> Any:
    """Several who tell and who listen, a timeout, and a branch that is dropped."""

    async def teller(name: str) -> None:
        for level in range(3):
            await wait()
            await emit(Fire(level, name))

    async def listener(name: str) -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        with on(Fire, where=lambda fire: fire.where == name) as fires:
            for _ in range(3):
                fire: Event[Fire] = await fires.next()
                seen.append((fire.value.level, fire.value.where))
            await book(f"{name} is done")
            try:
                await fires.next(timeout_s=10)
            except CallTimeoutError:
                await book(f"{name} waits no more")
        return seen

    async def never() -> None:
        await on(Report).next()
        await book("never")

    heard = await gather(listener("a"), listener("b"), teller("a"), teller("b"))
    dropped = await gather([never(), sleep(1)], until="any")
    await emit(Report(text="too late"))
    return heard[:2], dropped, await book("after")


def test_cut_anywhere_a_run_sees_the_same() -> None:
    ending = cut_anywhere(crossing)
    heard, _, _ = ending.value
    assert heard == [[(level, name) for level in range(3)] for name in "ab"]
    assert "never" not in ending.effects


@pytest.mark.parametrize("seed", range(5))
def test_speed_changes_nothing(seed: int) -> None:
    assert play(crossing, seed=seed).value == play(crossing).value


# -- ticks


def test_ticks_do_not_drift_and_what_is_overdue_comes_at_once() -> None:
    async def flow() -> Any:
        loop = asyncio.get_running_loop()
        began, times = loop.time(), []
        async for number in ticks(10, 4):
            times.append((number, loop.time() - began))
            await sleep(25 if number == 1 else 3)
        return times

    times = play(flow).value
    assert [number for number, _ in times] == [1, 2, 3, 4]
    assert [at for _, at in times] == pytest.approx([10, 35, 38, 41])


def test_ticks_are_recorded() -> None:
    async def flow() -> Any:
        return [await book(str(number)) async for number in ticks(60, 3)]

    ending = cut_anywhere(flow)
    calls = index_calls(ending.envelopes).by_scope.values()
    ticked = [call for call in calls if call.started.name == "tick"]
    assert [call.end.at // 10**9 for call in ticked if call.end] == [60, 120, 180]


# -- cost and bad input


def test_what_has_come_costs_one_event_to_see() -> None:
    async def flow() -> Any:
        alarms = on(Alarm)
        for level in range(10):
            await emit(Alarm(level))
        return [(await alarms.next()).value.level for _ in range(10)]

    ending = play(flow)
    assert ending.value == list(range(10))
    assert len(ending.envelopes) == 1 + 1 + 10 + 10 + 1
    assert not [e for e in ending.envelopes if isinstance(e.event, CallStarted)]


def test_a_predicate_that_fails_says_on_which_event() -> None:
    async def flow() -> Any:
        number = await emit(Alarm(0))
        with pytest.raises(UsageError, match=rf"on event {number}: ZeroDivisionError"):
            await on(Alarm, where=lambda alarm: 1 / alarm.level > 0).next()
        return await book("after")

    assert cut_anywhere(flow).value == "booked after"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ((), {}),
        ((Alarm,), {"outside": "x"}),
        ((Alarm(1),), {}),
        ((5,), {}),
        ((" ",), {}),
        ((), {"outside": ""}),
        ((Alarm,), {"until": 5}),
    ],
)
def test_a_source_that_cannot_be_is_said(given: tuple[Any, ...], options: Any) -> None:
    async def flow() -> Any:
        on(*given, **options)

    assert isinstance(play(flow).value, UsageError)


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_timeout_is_not_negative(timeout_s: float) -> None:
    async def flow() -> Any:
        await on(Alarm).next(timeout_s=timeout_s)

    assert "timeout_s is a time of at least 0" in str(play(flow).value)


@pytest.mark.parametrize(("seconds", "times"), [(0, 1), (-1, None), (float("nan"), 1), (1, -1)])
def test_ticks_take_a_time_above_0(seconds: float, times: int | None) -> None:
    async def flow() -> Any:
        async for _ in ticks(seconds, times):
            pass

    assert isinstance(play(flow).value, UsageError)


def test_an_event_of_a_class_that_cannot_be_found_again_is_said() -> None:
    @dataclass
    class Local:
        x: int

    async def flow() -> Any:
        await emit(Local(1))

    assert "define it in the module" in str(play(flow).value)
