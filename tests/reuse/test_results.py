"""The cache by itself: how long results are of use, whose turn it is, what is said of faults."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.clock import VirtualClock, run_virtual
from accord.errors import UsageError
from accord.reuse.results import (
    DAY_S,
    MODES,
    SKEW_S,
    TTL_S,
    Entry,
    Mode,
    ResultCache,
    caching,
    racing,
)
from accord.reuse.store import Row

KEY = b"key"
FAULT = "fault of the test"


def entry(value: object) -> Entry:
    return Entry(result=msgspec.Raw(msgspec.json.encode(value)))


def value_of(found: Entry | None) -> Any:
    return None if found is None else msgspec.json.decode(found.result)


def keep(cache: ResultCache, value: object, key: bytes = KEY) -> bool:
    return cache.keep(key, entry(value), tenant="", kind="request", name="a")


def anything(entry: Entry) -> Any:
    return value_of(entry)


def but_for(value: str) -> Any:
    """Takes any result but that one."""

    def unpack(entry: Entry) -> Any:
        if value_of(entry) == value:
            raise ValueError(value)
        return value_of(entry)

    return unpack


class Time:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


# ----------------------------------------------------------------------- how long it is of use


def test_what_is_kept_is_of_use_for_its_time_and_no_longer() -> None:
    time = Time()
    cache = ResultCache(ttl_s=10, now_s=time)
    keep(cache, "old")
    time.now_s += 9.99
    assert value_of(cache.look(KEY)) == "old"
    time.now_s += 0.01
    assert cache.look(KEY) is None
    keep(cache, "new")
    assert value_of(cache.look(KEY)) == "new"


def test_it_is_of_use_for_thirty_days_or_as_one_says() -> None:
    assert TTL_S == 30 * DAY_S
    time = Time()
    usual, forever = ResultCache(now_s=time), ResultCache(ttl_s=None, now_s=time)
    for cache in (usual, forever):
        keep(cache, 1)
    time.now_s += TTL_S
    assert (usual.look(KEY), value_of(forever.look(KEY))) == (None, 1)


def test_a_clock_that_has_gone_back_is_told_once_and_costs_what_was_kept() -> None:
    time = Time()
    cache = ResultCache(now_s=time)
    keep(cache, "before")
    time.now_s -= SKEW_S / 2
    assert value_of(cache.look(KEY)) == "before", "clocks of machines differ a little"
    time.now_s -= SKEW_S
    with pytest.warns(UserWarning, match="clock has gone back") as said:
        assert [cache.look(KEY), cache.look(KEY)] == [None, None]
    assert len(said) == 1
    keep(cache, "now")
    assert value_of(cache.look(KEY)) == "now"


def test_a_clock_that_gives_whole_numbers_is_one() -> None:
    cache = ResultCache(now_s=lambda: 5)
    keep(cache, "value")
    assert value_of(cache.look(KEY)) == "value"


@pytest.mark.parametrize("options", [{"ttl_s": 0}, {"ttl_s": -1.0}, {"most_bytes": 0}])
def test_a_cache_that_keeps_nothing_is_refused(options: Any) -> None:
    with pytest.raises(UsageError, match="a cache's"):
        ResultCache(**options)


def test_a_word_that_is_no_mode_is_refused_with_those_there_are() -> None:
    wrong: Any = "yes"
    with pytest.raises(UsageError, match="off, read, write, on, not 'yes'"), caching(wrong):
        pass


def test_what_is_too_large_is_not_counted_as_kept() -> None:
    cache = ResultCache(most_bytes=500)
    assert not keep(cache, "x" * 500)
    assert cache.statistics().kept == 0


# ----------------------------------------------------------------------------- whose turn it is


class Making:
    """Calls at one key that take a second each; counts those that were made."""

    def __init__(self, cache: ResultCache | None = None) -> None:
        self.cache = cache or ResultCache(now_s=VirtualClock().epoch_s)
        self.made = 0

    async def call(self, gives: Any = "value", mode: Mode = "on", takes_s: float = 1) -> Any:
        """Ask; whoever has to make it gives ``gives``, raises it, or nothing if it is None."""
        async with self.cache.turn(KEY, mode, anything) as turn:
            if turn.entry is not None:
                return value_of(turn.entry)
            self.made += 1
            await asyncio.sleep(takes_s)
            if isinstance(gives, Exception):
                raise gives
            if gives is not None and mode in ("on", "write"):
                keep(self.cache, gives)
            turn.made(None if gives is None else entry(gives))
            return gives


async def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def caught(each: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await each
        except Exception as error:
            return str(error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(caught(each)) for each in calls]
    return [task.result() for task in tasks]


def seconds() -> float:
    return asyncio.get_running_loop().time()


def test_of_equal_calls_at_once_one_is_made() -> None:
    async def main() -> None:
        making = Making()
        assert await together(*(making.call() for _ in range(1000))) == ["value"] * 1000
        assert (making.made, seconds()) == (1, 1.0)
        counted = making.cache.statistics()
        assert (counted.misses, counted.hits, counted.joined, counted.kept) == (1, 999, 999, 1)
        assert not making.cache._flights[asyncio.get_running_loop()]

    run_virtual(main())


@pytest.mark.parametrize("gives", [ValueError(FAULT), None])
def test_if_that_gives_nothing_of_use_the_others_are_made_at_once(gives: Any) -> None:
    async def main() -> None:
        making = Making()
        first, *others = await together(making.call(gives), *(making.call(i) for i in range(9)))
        assert first == (None if gives is None else FAULT)
        assert others == list(range(9))
        assert (making.made, seconds()) == (10, 2.0)
        assert await making.call() in range(9), "and what they gave is kept"

    run_virtual(main())


def test_who_comes_while_the_others_are_made_waits_for_one_of_them() -> None:
    async def main() -> None:
        making = Making()

        async def late() -> Any:
            await asyncio.sleep(1.5)
            return await making.call("late")

        found = await together(making.call(None), making.call("a"), making.call("b"), late())
        assert found == [None, "a", "b", "a"]

    run_virtual(main())


def test_if_that_is_cancelled_the_next_makes_it_and_nobody_is_lost() -> None:
    async def main() -> None:
        making = Making()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(making.call(i)) for i in range(6)]
            for each in range(3):
                await asyncio.sleep(0.5)
                tasks[each].cancel()
        assert [task.cancelled() for task in tasks] == [True] * 3 + [False] * 3
        assert [task.result() for task in tasks[3:]] == [3, 3, 3]
        assert (making.made, seconds()) == (4, 2.5)

    run_virtual(main())


def test_one_that_waits_and_is_cancelled_costs_nobody_anything() -> None:
    async def main() -> None:
        making = Making()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(making.call(i)) for i in range(4)]
            await asyncio.sleep(0.5)
            tasks[1].cancel()
            tasks[2].cancel()
        assert [tasks[0].result(), tasks[3].result()] == [0, 0]
        assert making.made == 1

    run_virtual(main())


def test_all_may_be_cancelled() -> None:
    async def main() -> None:
        making = Making()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(making.call(i)) for i in range(4)]
            await asyncio.sleep(0.5)
            for task in tasks:
                task.cancel()
        assert not making.cache._flights[asyncio.get_running_loop()]
        assert await making.call("again") == "again"

    run_virtual(main())


@pytest.mark.parametrize(
    ("mode", "made", "kept"),
    [("off", 2, None), ("read", 1, "first"), ("write", 2, "second"), ("on", 1, "first")],
)
def test_who_only_reads_waits_and_who_only_writes_does_not(
    mode: Mode, made: int, kept: Any
) -> None:
    async def main() -> None:
        making = Making()
        await together(making.call("first"), making.call("second", mode))
        assert making.made == made
        assert value_of(making.cache.look(KEY)) == (kept or "first")

    run_virtual(main())


def test_who_only_reads_keeps_nothing_and_is_waited_for_by_nobody() -> None:
    async def main() -> None:
        making = Making()
        found = await together(*(making.call(i, "read") for i in range(3)))
        assert (found, making.made) == ([0, 1, 2], 3)
        assert making.cache.look(KEY) is None

    run_virtual(main())


def test_what_one_cannot_use_that_another_has_made_it_makes_itself() -> None:
    async def main() -> None:
        making = Making()

        async def choosy() -> Any:
            async with making.cache.turn(KEY, "on", but_for("value")) as turn:
                return "made" if turn.entry is None else value_of(turn.entry)

        assert await together(making.call(), choosy()) == ["value", "made"]
        assert value_of(making.cache.look(KEY)) == "value"

    run_virtual(main())


def test_who_races_does_not_wait_and_who_waits_takes_what_was_first() -> None:
    """A second attempt that waited for the first would be of no use."""

    async def main() -> None:
        making = Making()

        async def raced() -> Any:
            with racing():
                return await making.call("raced")

        async with asyncio.TaskGroup() as group:
            first = group.create_task(making.call("first", takes_s=60))
            await asyncio.sleep(0)
            waiting = group.create_task(making.call("waiting"))
            assert await group.create_task(raced()) == "raced"
            first.cancel()
            assert await waiting == "raced"
        assert (making.made, seconds()) == (2, 1.0)

    run_virtual(main())


asked_for = st.tuples(
    st.sampled_from(["on", "on", "on", "read", "write", "off"]),
    st.integers(0, 4),  # when it begins
    st.integers(1, 4),  # how long it takes
    st.sampled_from(["gives", "gives", "nothing", "fails"]),
    st.none() | st.integers(0, 5),  # when it is cancelled
    st.booleans(),  # whether it races
)


@given(st.lists(asked_for, min_size=1, max_size=12))
def test_whatever_happens_to_some_the_others_end_with_what_somebody_made(plan: Any) -> None:
    async def main() -> None:
        making, given_by = Making(), set[int]()

        async def one(number: int, mode: Mode, begins: int, takes: int, ends: str) -> Any:
            await asyncio.sleep(begins)
            gives: Any = {"gives": number, "nothing": None, "fails": ValueError(FAULT)}[ends]
            found = await making.call(gives, mode, takes)
            given_by.update({number} & {found})
            return found

        async def racing_one(*how: Any) -> Any:
            with racing():
                return await one(*how)

        tasks: list[asyncio.Task[Any]] = []
        for number, (mode, begins, takes, ends, cancelled, races) in enumerate(plan):
            work = (racing_one if races else one)(number, mode, begins, takes, ends)
            tasks.append(asyncio.create_task(work))  # noqa: TID251
            if cancelled is not None:
                asyncio.get_running_loop().call_later(cancelled, tasks[-1].cancel)
        await asyncio.wait(tasks)
        for task, (mode, _, _, ends, cancelled, _) in zip(tasks, plan, strict=True):
            if task.cancelled():
                assert cancelled is not None
            elif task.exception() is not None:
                assert ends == "fails"
            elif task.result() is None:
                assert ends == "nothing"
            else:
                assert task.result() in given_by
                assert mode in ("on", "read") or task.result() == tasks.index(task)
        assert not making.cache._flights.get(asyncio.get_running_loop())

    run_virtual(main())


def test_loops_of_several_threads_share_what_is_kept() -> None:
    """Each makes its own calls: none may wait for what belongs to another loop."""
    cache, ready = ResultCache(), Barrier(4)
    found: list[list[Any]] = []

    def work(number: int) -> None:
        async def main() -> None:
            ready.wait()
            found.extend([await together(*(ask(bytes([k])) for _ in range(5))) for k in range(50)])

        async def ask(key: bytes) -> Any:
            async with cache.turn(key, "on", anything) as turn:
                if turn.entry is None:
                    await asyncio.sleep(0)
                    turn.made(entry(key[0]))
                    keep(cache, key[0], key)
                    return key[0]
                return value_of(turn.entry)

        asyncio.run(main())

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted([[key] * 5 for key in range(50)] * 4)
    assert cache.statistics().faults == 0


# ------------------------------------------------------------------------------------ what is wrong


def ask(cache: ResultCache, unpack: Any = anything) -> tuple[Any, bool]:
    """What is found and whether it could be kept anew, if not."""

    async def main() -> tuple[Any, bool]:
        async with cache.turn(KEY, "on", unpack) as turn:
            if turn.entry is not None:
                return value_of(turn.entry), False
            return None, keep(cache, "new")

    return asyncio.run(main())


def poison(path: Path, body: bytes) -> None:
    """A row that is whole, and is not what was kept there."""
    made = Row(KEY, "", "request", "a", Time.now_s, body)
    with closing(ResultCache(path)) as cache:
        cache.store.put(made)


def test_a_result_that_was_changed_is_told_once_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with closing(ResultCache(path)) as cache:
        keep(cache, "value")
        keep(cache, "other", b"other")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE results SET body = X'7B7D'")
    with closing(ResultCache(path)) as cache:
        with pytest.warns(UserWarning, match="changed or damaged") as said:
            assert [cache.look(b"other"), ask(cache)] == [None, (None, True)]
        assert len(said) == 1
        assert ask(cache) == ("new", False)
        assert cache.statistics().faults == 2


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"result":', b'{"took_ns":"x"}'])
def test_a_result_that_is_none_is_told_and_made_anew(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c"
    poison(path, body)
    with closing(ResultCache(path, now_s=Time())) as cache:
        with pytest.warns(UserWarning, match="not what was kept there"):
            assert ask(cache) == (None, True)
        assert ask(cache) == ("new", False)


def test_a_result_that_is_of_no_use_is_told_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "c"
    poison(path, b'{"result":"old"}')
    with closing(ResultCache(path, now_s=Time())) as cache:
        with pytest.warns(UserWarning, match="not what was kept there"):
            assert ask(cache, but_for("old")) == (None, True)
        assert ask(cache) == ("new", False)


def test_a_file_that_cannot_be_used_is_told_once_and_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "c.cache.sqlite3"
    path.write_text("no database " * 1000)
    with closing(ResultCache(path)) as cache:
        with pytest.warns(UserWarning, match="result cache is not used: .* is damaged") as said:
            assert ask(cache) == (None, False)
        path.unlink()
        assert ask(cache) == (None, False), "nothing is said twice, or tried"
        assert len(said) == 1
        assert cache.statistics().faults == 4
    assert not path.exists()


def test_a_file_that_somebody_holds_up_is_done_without_this_once(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with (
        closing(ResultCache(path)) as cache,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        keep(cache, "value", b"other")
        other.execute("BEGIN IMMEDIATE")
        assert not keep(cache, "value")
        other.execute("ROLLBACK")
        assert keep(cache, "value")


def test_a_name_that_utf8_cannot_hold_is_not_kept() -> None:
    cache = ResultCache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cache.keep(KEY, entry(1), tenant="", kind="request", name="\ud800")
    assert cache.look(KEY) is None


def test_the_modes_of_the_command_line_are_those_there_are() -> None:
    from accord.cli.arguments import build_parser

    for mode in MODES:
        assert build_parser().parse_args(["run", "x.py", "--cache", mode]).cache == mode
