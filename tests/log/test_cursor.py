"""A cursor sees each event once, in order, and waits for the next."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.log.cursor import Cursor
from accord.log.events import Envelope
from tests.log.logs import new_log, note


async def following(cursor: Cursor) -> list[Envelope]:
    """What comes next, however long it takes."""
    while True:
        await cursor.ready()
        if found := list(cursor):
            return found


def test_a_cursor_waits_and_sees_each_event_once():
    async def main():
        log, _ = new_log()
        seen: list[list[int]] = []

        async def reader() -> None:
            cursor = Cursor(log)
            while sum(map(len, seen)) < 6:
                seen.append([envelope.seq for envelope in await following(cursor)])

        async def writer() -> None:
            for count in (1, 3, 2):
                await asyncio.sleep(1)
                for number in range(count):
                    log.append("", (), note(number))

        async with asyncio.TaskGroup() as group:
            group.create_task(reader())
            group.create_task(writer())
        assert seen == [[0], [1, 2, 3], [4, 5]]

    run_virtual(main())


def test_a_cursor_passes_over_what_it_is_not_for():
    async def main():
        log, _ = new_log()
        cursor = Cursor(log, start=1, only=lambda envelope: envelope.scope == "mine")
        for scope in ("mine", "other", "mine", "other"):
            log.append(scope, (), note(0))
        assert [envelope.seq for envelope in cursor] == [2]
        loop = asyncio.get_running_loop()
        loop.call_later(1, log.append, "other", (), note(0))
        loop.call_later(2, log.append, "mine", (), note(0))
        assert [envelope.seq for envelope in await following(cursor)] == [5]
        assert VirtualClock().now_ns() == 2 * NANOSECONDS

    run_virtual(main())


def test_a_reader_that_gave_up_does_not_stop_the_others():
    async def main():
        log, _ = new_log()
        waiting = [asyncio.get_running_loop().create_task(following(Cursor(log))) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        log.append("", (), note(1))
        assert [len(await task) for task in waiting[1:]] == [1, 1]
        await asyncio.wait(waiting)
        assert waiting[0].cancelled()

    run_virtual(main())


def test_an_event_counts_as_seen_when_the_next_is_asked_for():
    async def main():
        log, _ = new_log()
        cursor = Cursor(log)
        for number in range(3):
            log.append("", (), note(number))
        for envelope in cursor:
            if envelope.seq == 1:
                break  # as if cancelled with it in hand
        assert [envelope.seq for envelope in cursor] == [1, 2]

    run_virtual(main())


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(0, 5))
def test_diffs_between_cursors_add_up_to_the_log(steps: list[int], start: int):
    """0 appends; others are cursors that look."""

    async def main():
        log, _ = new_log()
        cursors = [Cursor(log), Cursor(log), Cursor(log, start=start)]
        seen: list[list[int]] = [[], [], []]

        def look(which: int) -> None:
            seen[which] += [envelope.seq for envelope in cursors[which]]

        for step in steps:
            if step == 0:
                log.append("", (), note(len(log.envelopes)))
            else:
                look(step - 1)
        for which in range(3):
            look(which)
        everything = list(range(len(log.envelopes)))
        assert seen == [everything, everything, everything[start:]]

    run_virtual(main())
