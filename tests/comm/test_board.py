"""The blackboard: versions, reducers, conflicts, diffs that add up, watchers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent, gather, run, step
from accord.clock import VirtualClock, run_virtual
from accord.comm.blackboard import Blackboard
from accord.errors import ConflictError, UsageError
from accord.log.events import Written
from accord.runtime import Result, Runtime
from accord.testing.scripted import ScriptedEngine

board = Blackboard()


@dataclass
class Plan:
    title: str
    parts: list[int]


def play(flow: Callable[[], Coroutine[Any, Any, Any]], script: Any = "ok") -> Result[Any]:
    """Run ``flow`` on virtual time."""

    async def main() -> Result[Any]:
        engine = ScriptedEngine(script)
        return await Runtime(engine=engine, log="memory", clock=VirtualClock()).arun(flow)

    return run_virtual(main())


def written(result: Result[Any]) -> int:
    return sum(isinstance(envelope.event, Written) for envelope in result.log.envelopes)


def test_what_is_written_is_read_back_class_and_all() -> None:
    async def flow() -> Any:
        plan = Plan("日本語🌟", [1, 2])
        board.write("plan", plan)
        read = board.read("plan")
        read.parts.append(3)
        return read, board.read("plan"), board.read("nothing", "default")

    read, again, default = play(flow).output
    assert read == Plan("日本語🌟", [1, 2, 3])
    assert again == Plan("日本語🌟", [1, 2]), "changing what was read changes no board"
    assert default == "default"


def test_an_unchanged_value_is_no_write() -> None:
    async def flow() -> Any:
        versions = [board.write("k", {"a": 1}) for _ in range(3)]
        versions += [board.union("s", {1}), board.union("s", {1}), board.maximum("m", 2)]
        versions += [board.maximum("m", 1), board.merge("d", {"a": 1}), board.merge("d", {"a": 1})]
        board.remove("never there")
        return versions

    result = play(flow)
    one, two, three, *pairs = result.output
    assert one == two == three
    assert pairs[0::2] == pairs[1::2]
    assert written(result) == 4
    assert play(flow).output == result.output


def test_a_version_is_expected_or_it_is_a_conflict_that_names_both_sides() -> None:
    async def flow() -> Any:
        first = board.write("k", "one", if_version=0)
        board.write("k", "two", if_version=first)
        with pytest.raises(ConflictError) as caught:
            board.write("k", "three", if_version=first)
        return str(caught.value), caught.value.key, caught.value.version, board.version("k")

    message, key, version, now = play(flow).output
    assert (key, version) == ("k", now)
    assert "'three'" in message
    assert "'two'" in message
    assert "update()" in message


def test_branches_that_overwrite_each_other_conflict_and_name_the_writer() -> None:
    author = Agent("author", writes="draft")

    async def flow() -> Any:
        async def later() -> None:
            await asyncio.sleep(10)
            board.write("draft", "mine")

        await gather(author("x"), later())

    with pytest.raises(ConflictError, match="by author") as caught:
        play(flow)
    assert caught.value.writer == "author"


def test_what_came_before_a_branch_is_no_conflict_nor_what_comes_after_a_join() -> None:
    async def flow() -> Any:
        board.write("k", 0)

        async def branch(index: int) -> None:
            if index == 0:
                board.write("k", 1)
                board.write("k", 2)

        await gather(branch(index) for index in range(3))
        board.write("k", 3)
        return board.read("k")

    assert play(flow).output == 3


def test_lists_have_the_order_of_the_program_whoever_came_first() -> None:
    """SYN-14 on the board: the order in which branches finish changes nothing."""

    async def flow() -> Any:
        async def branch(index: int) -> None:
            await asyncio.sleep(10 - index)
            board.append("list", index)

        await gather(branch(index) for index in range(4))
        board.append("list", "last")
        return board.read("list")

    assert play(flow).output == [0, 1, 2, 3, "last"]


def test_a_reducer_that_does_not_go_with_what_is_there_is_refused() -> None:
    async def flow() -> Any:
        board.write("k", "text")
        with pytest.raises(UsageError, match="cannot append a int to 'k', which holds a str"):
            board.append("k", 1)
        with pytest.raises(UsageError, match="cannot merge"):
            board.merge("k", {"a": 1})
        return board.read("k")

    assert play(flow).output == "text"


@pytest.mark.parametrize("key", ["", " ", "a\nb", "a\ud800"])
def test_a_key_is_printable_text(key: str) -> None:
    async def flow() -> Any:
        with pytest.raises(UsageError, match="a key of the board is printable text"):
            board.write(key, 1)

    play(flow)


def test_a_board_belongs_to_a_run_and_to_its_loop() -> None:
    with pytest.raises(UsageError, match="outside of a run"):
        board.read("k")

    @step
    def in_a_thread() -> None:
        board.write("k", 1)

    async def flow() -> None:
        await in_a_thread()

    with pytest.raises(UsageError, match="from a thread"):
        run(flow, engine=ScriptedEngine(), log="memory")


def test_a_named_board_is_a_part_of_the_board() -> None:
    async def flow() -> Any:
        inner = Blackboard("team")
        inner.write("k", 1)
        board.write("k", 2)
        return inner.snapshot(), board.snapshot(), inner.keys(), inner.diff().values

    assert play(flow).output == ({"k": 1}, {"k": 2, "team/k": 1}, ["k"], {"k": 1})


def test_statistics_say_how_much_there_is() -> None:
    async def flow() -> Any:
        board.write("a", 1)
        board.write("b", 1)
        board.remove("a")
        return board.statistics()

    statistics = play(flow).output
    assert (statistics.keys, statistics.writes) == (1, 3)


def test_every_watcher_wakes_for_its_key_and_misses_nothing() -> None:
    async def flow() -> Any:
        async def watch(pattern: str, times: int) -> list[int]:
            seen: list[int] = []
            for _ in range(times):
                after = seen[-1] if seen else 0
                seen.append(await board.wait_for(pattern, after=after))
            return seen

        async def write() -> list[int]:
            versions: list[int] = []
            for index in range(3):
                await asyncio.sleep(1)
                versions.append(board.write("a", index))
                board.write(f"other{index}", index)
            return versions

        return await gather(watch("a", 3), watch("other*", 3), write())

    of_a, of_others, versions = play(flow).output
    assert of_a == versions
    assert len(set(of_others)) == 3


operations = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "merge", "union", "maximum", "remove", "look"]),
        st.sampled_from("ab"),
        st.integers(0, 3),
    ),
    max_size=25,
)


@given(operations)
def test_diffs_between_looks_add_up_to_the_board(made: list[tuple[str, str, int]]) -> None:
    """A state machine against a dict, and every diff folds the state before into the one after."""

    async def flow() -> Any:
        model: dict[str, Any] = {}
        copies = [(board.diff().position, board.snapshot())]
        for what, name, value in made:
            key = f"{what}/{name}" if what not in ("write", "remove", "look") else name
            match what:
                case "write":
                    board.write(key, value)
                    model[key] = value
                case "append":
                    board.append(key, value)
                    model.setdefault(key, []).append(value)
                case "merge":
                    board.merge(key, {str(value): value})
                    model.setdefault(key, {})[str(value)] = value
                case "union":
                    board.union(key, {value})
                    model.setdefault(key, set()).add(value)
                case "maximum":
                    board.maximum(key, value)
                    model[key] = max(value, model.get(key, value))
                case "remove":
                    board.remove(key)
                    model.pop(key, None)
                case _:
                    copies.append((board.diff().position, board.snapshot()))
        copies.append((board.diff().position, board.snapshot()))
        assert copies[-1][1] == model
        for since, before in copies:
            assert board.diff(since).apply(before) == model

    play(flow)


def test_a_diff_says_what_was_added_not_the_whole() -> None:
    async def flow() -> Any:
        for index in range(100):
            board.append("list", index)
        position = board.diff().position
        board.append("list", "new")
        return board.diff(position)

    diff = play(flow).output
    assert diff.values == {}
    assert diff.added == {"list": [("append", "new")]}


def test_a_position_is_not_negative() -> None:
    async def flow() -> Any:
        board.diff(-1)

    with pytest.raises(UsageError, match="counts from a position"):
        play(flow)


def test_own_tasks_that_write_keys_with_slashes_are_found_again() -> None:
    async def flow() -> list[Any]:
        async def write(value: int) -> None:
            board.append("team/notes", value)
            await book(str(value))

        async with asyncio.TaskGroup() as group:
            for value in range(3):
                group.create_task(write(value))
        return sorted(board.read("team/notes"))

    @step
    async def book(what: str) -> str:
        await asyncio.sleep(1)
        return what

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
        first = await runtime.arun(flow, run_id="r")
        return first.output, [e.scope for e in first.log.envelopes if e.scope.startswith("~")]

    output, scopes = run_virtual(main())
    assert output == [0, 1, 2]
    assert all(scope.count("/") == 1 for scope in scopes)


def test_events_and_prompts_do_not_depend_on_hash_order() -> None:
    """Two processes with other hash seeds write the same log."""
    import subprocess
    import sys
    from pathlib import Path

    script = Path(__file__).parent / "hash_order.py"
    logs = {
        subprocess.check_output(
            [sys.executable, str(script)], env={"PYTHONHASHSEED": seed, "PATH": ""}, text=True
        )
        for seed in ("1", "2", "3")
    }
    assert len(logs) == 1


def test_what_a_writer_does_with_its_value_later_changes_no_board() -> None:
    async def flow() -> Any:
        mine, inner = {"a": 1}, [1]
        board.write("k", mine)
        mine["b"] = 2
        board.merge("k", {"b": 2, "inner": inner})
        inner.append(2)
        board.merge("k", {"inner": [1, 2]})
        return board.read("k"), mine, inner

    assert play(flow).output == ({"a": 1, "b": 2, "inner": [1, 2]}, {"a": 1, "b": 2}, [1, 2])
