"""Actors: one message at a time, in causal order; supervised, drained, and the same on a replay."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from accord import Agent, gather, send, sleep, step
from accord.comm.interrupt import interrupt
from accord.comm.mailbox import Mailbox, Message, ask, dead_letters, reply
from accord.errors import (
    CallTimeoutError,
    DeadlockError,
    MailboxFullError,
    RunSuspendedError,
    UsageError,
)
from accord.log.events import CallStarted, MailboxClosed, MessageTaken, Written
from accord.sync.actor import Actor, Handled, actor_statistics, answering
from accord.sync.actors import actors
from accord.testing.scripted import ScriptedEngine
from tests.sync.replays import book, cut_anywhere, play, resume, wait


@dataclass
class FlakyError(Exception):
    """Fails with what it was given."""

    what: str


@step(pure=True)
async def fail(what: str) -> None:
    raise FlakyError(what)


async def add(total: int, message: Message[int]) -> int:
    return total + message.body


async def collect(seen: list[Any], message: Message[Any]) -> list[Any]:
    await wait()
    return [*seen, message.body]


def test_a_state_is_what_the_last_message_left() -> None:
    async def flow() -> Any:
        async with actors(Actor("counter", add, state=1)) as team:
            before = team.state("counter")
            for number in range(10):
                await send("counter", number)
        return before, team.state("counter")

    assert play(flow).value == (1, 46)


def test_messages_are_handled_one_at_a_time_in_the_order_of_sending() -> None:
    at_work: list[int] = []

    async def handler(seen: list[int], message: Message[int]) -> list[int]:
        at_work.append(message.body)
        assert len(at_work) == 1
        await wait()
        at_work.remove(message.body)
        return [*seen, message.body]

    async def flow() -> Any:
        async with actors(Actor("a", handler, state=[])) as team:
            for number in range(20):
                await send("a", number)
        return team.state("a")

    assert play(flow).value == list(range(20))


def test_causes_come_before_what_they_cause() -> None:
    """What A sent to C before it told B, C sees before what B sends on that account."""

    async def tell(_: Any, message: Message[str]) -> None:
        await send("c", f"{message.to}: {message.body}")
        if message.to == "a":
            await send("b", message.body)

    async def flow() -> Any:
        async with actors(Actor("a", tell), Actor("b", tell), Actor("c", collect, state=[])) as t:
            for number in range(5):
                await send("a", str(number))
        return t.state("c")

    seen = play(flow).value
    assert len(seen) == 10
    assert all(seen.index(f"a: {n}") < seen.index(f"b: {n}") for n in range(5))


def test_a_sender_waits_while_an_actor_has_no_room() -> None:
    async def slow(_: Any, message: Message[int]) -> None:
        await sleep(10)

    async def flow() -> Any:
        loop = asyncio.get_running_loop()
        began, times = loop.time(), []
        async with actors(Actor("slow", slow, capacity=2)) as team:
            for number in range(5):
                await send("slow", number)
                times.append(loop.time() - began)
            with pytest.raises(MailboxFullError):
                await send("slow", 5, timeout_s=1)
        return times, team.statistics("slow")

    times, statistics = play(flow).value
    assert times == pytest.approx([0, 0, 0, 10, 20], abs=0.01) or times == pytest.approx(
        [0, 0, 10, 20, 30], abs=0.01
    )
    assert (statistics.handled, statistics.waiting, statistics.max_waiting) == (5, 0, 2)


def test_who_asks_is_answered_once_the_message_is_handled() -> None:
    async def double(_: Any, message: Message[int]) -> Handled:
        return Handled(reply=message.body * 2)

    async def flow() -> Any:
        async with actors(Actor("double", double, state="kept")) as team:
            await send("double", 0)  # nobody asked, nobody is answered
            return await gather(ask("double", 1), ask("double", 2)), team.state("double")

    ending = play(flow)
    assert ending.value == ([2, 4], "kept")
    assert dead_letters(ending.log) == []


def test_an_answer_may_come_early_or_later() -> None:
    async def later(waiting: list[Any], message: Message[str]) -> list[Any]:
        if message.body == "open":
            for each in waiting:
                await reply(each, "opened")
            return []
        return [*waiting, message]

    async def flow() -> Any:
        async with actors(Actor("door", later, state=[])):

            async def open_it() -> None:
                await sleep(5)
                await send("door", "open")

            return await gather(ask("door", "knock"), ask("door", "knock"), open_it())

    assert play(flow).value == ["opened", "opened", None]


def test_an_ask_has_a_deadline() -> None:
    async def silent(_: Any, message: Message[str]) -> None:
        await sleep(100)

    async def flow() -> Any:
        async with actors(Actor("silent", silent), drain_s=0):
            with pytest.raises(CallTimeoutError, match="'silent' has not answered within 3 s"):
                await ask("silent", "?", timeout_s=3)
        return asyncio.get_running_loop().time()

    assert play(flow).value == pytest.approx(3)


def test_an_actor_that_asks_itself_is_told() -> None:
    async def flow() -> Any:
        async def itself(_: Any, message: Message[str]) -> None:
            await ask("narcissus", "who is the fairest?")

        async with actors(Actor("narcissus", itself)):
            await send("narcissus", "go")

    error = play(flow).value
    assert isinstance(error, UsageError)
    assert "actor 'narcissus' asks itself" in str(error)


@pytest.mark.parametrize("timeout_s", [None, 5])
def test_actors_that_ask_each_other_end_in_an_error(timeout_s: float | None) -> None:
    async def flow() -> Any:
        async def other(_: Any, message: Message[str]) -> Handled:
            name = {"a": "b", "b": "a"}[message.to]
            return Handled(reply=await ask(name, "you first", timeout_s=timeout_s))

        async with actors(Actor("a", other), Actor("b", other)):
            await send("a", "go")

    if timeout_s is None:
        with pytest.raises(DeadlockError):
            play(flow)
    else:
        assert isinstance(play(flow).value, CallTimeoutError)


def test_an_actor_may_stop_itself_and_what_is_left_are_dead_letters() -> None:
    async def three(seen: int, message: Message[int]) -> Handled:
        return Handled(state=seen + 1, stop=seen == 2)

    async def flow() -> Any:
        async with actors(Actor("three", three, state=0, capacity=2)) as team:
            for number in range(7):
                await send("three", number)  # never waits for one who takes no more
        return team.state("three")

    ending = play(flow)
    assert ending.value == 3
    assert [letter.body for letter in dead_letters(ending.log)] == [3, 4, 5, 6]


def test_at_the_end_all_is_handled_and_all_that_this_leads_to() -> None:
    async def countdown(seen: list[int], message: Message[int]) -> list[int]:
        await wait()
        if message.body:
            await send("b" if message.to == "a" else "a", message.body - 1)
        return [*seen, message.body]

    async def flow() -> Any:
        a, b = Actor("a", countdown, state=[]), Actor("b", countdown, state=[])
        async with actors(a, b) as team:
            await send("a", 9)
        return team.state("a"), team.state("b")

    assert play(flow).value == ([9, 7, 5, 3, 1], [8, 6, 4, 2, 0])


@pytest.mark.parametrize("drain_s", [0, 25])
def test_draining_has_a_deadline_after_which_the_rest_is_left(drain_s: float) -> None:
    async def slow(seen: int, message: Message[int]) -> int:
        await sleep(10)
        return seen + 1

    async def flow() -> Any:
        async with actors(Actor("slow", slow, state=0), drain_s=drain_s) as team:
            for number in range(5):
                await send("slow", number)
        return team.state("slow"), await book("after"), team.statistics("slow").waiting

    ending = cut_anywhere(flow)
    handled, _, waiting = ending.value
    assert (handled, waiting) == ((0, 4) if drain_s == 0 else (2, 2))
    closed = [e.event for e in ending.envelopes if isinstance(e.event, MailboxClosed)]
    assert len(closed) == 1


def test_the_same_actors_may_live_again_and_begin_anew() -> None:
    async def flow() -> Any:
        states: list[int] = []
        counter = Actor("counter", add, state=0)
        for _ in range(3):
            async with actors(counter) as team:
                await send("counter", 1)
                await send("counter", 2)
            states.append(team.state("counter"))
        await send("counter", 100)
        async with actors(counter) as team:
            pass  # what was sent in between waits for it
        return states, team.state("counter")

    assert cut_anywhere(flow).value == ([3, 3, 3], 100)


# -- supervision


async def spoil(seen: list[str], message: Message[str]) -> list[str]:
    """Changes its state before it fails, and fails as long as ``failures`` say so."""
    seen.append(message.body)
    if failures.get(message.body, 0) > 0:
        failures[message.body] -= 1
        await fail(message.body)
    return seen


failures: dict[str, int] = {}


def test_a_failed_message_is_tried_again_with_the_state_from_before_it() -> None:
    async def flow() -> Any:
        async with actors(Actor("a", spoil, state=[], restarts=2)) as team:
            for body in ("x", "y", "z"):
                await send("a", body)
        return team.state("a"), team.statistics("a")

    failures.update(x=1, y=2)
    state, statistics = play(flow).value
    assert state == ["x", "y", "z"]
    assert (statistics.handled, statistics.failed, statistics.restarts) == (3, 0, 3)


def test_after_so_many_restarts_the_failure_ends_all() -> None:
    other_was_cancelled: list[bool] = []

    async def other(_: Any, message: Message[str]) -> None:
        try:
            await sleep(1000)
        except asyncio.CancelledError:
            other_was_cancelled.append(True)
            raise

    async def flow() -> Any:
        async with actors(Actor("a", spoil, state=[], restarts=1), Actor("b", other)):
            await send("b", "work")
            await send("a", "x")
            await sleep(1000)

    failures.update(x=2)
    other_was_cancelled.clear()
    ending = play(flow)
    assert ending.value == FlakyError("x")
    assert other_was_cancelled
    assert actor_statistics(ending.log, "a").failed == 1


def test_a_skipped_message_is_a_dead_letter_and_who_asked_is_told() -> None:
    async def flow() -> Any:
        async with actors(Actor("a", spoil, state=[], restarts=1, on_failure="skip")) as team:
            await send("a", "x")
            with pytest.raises(FlakyError, match="y"):
                await ask("a", "y")
            await send("a", "z")
        return team.state("a"), team.statistics("a")

    failures.update(x=2, y=2, z=0)
    ending = play(flow)
    state, statistics = ending.value
    assert state == ["z"]
    assert (statistics.handled, statistics.failed, statistics.restarts) == (1, 2, 2)
    assert [(m.to, m.body) for m in dead_letters(ending.log)] == [("a/dead", "x"), ("a/dead", "y")]


def test_dead_letters_can_be_taken() -> None:
    async def no(_: Any, message: Message[str]) -> None:
        raise ValueError(message.body)

    async def flow() -> Any:
        box: Mailbox[str] = Mailbox("a/dead")
        async with actors(Actor("a", no, on_failure="skip")):
            await send("a", "x", sender="me")
            return await box.receive()

    message = play(flow).value
    assert (message.body, message.sender) == ("x", "me")


def test_a_mistake_of_the_flow_is_not_skipped() -> None:
    async def wrong(_: Any, message: Message[str]) -> None:
        await send("", "x")

    async def flow() -> Any:
        async with actors(Actor("a", wrong, restarts=5, on_failure="skip")):
            await send("a", "go")

    assert isinstance(play(flow).value, UsageError)


def test_a_person_s_answer_is_waited_for_and_the_others_go_on() -> None:
    """The run stops, and goes on with what the actor was at when the answer is there."""

    async def clerk(seen: list[str], message: Message[str]) -> list[str]:
        booked = await book(message.body)
        answer = await interrupt(f"may I {message.body}?")
        await send("other", answer)
        return [*seen, booked, answer]

    async def flow() -> Any:
        async with actors(
            Actor("clerk", clerk, state=[]), Actor("other", collect, state=[]), drain_s=1000
        ) as team:
            await send("clerk", "sell")
            await send("other", "hello")
        return team.state("clerk"), team.state("other")

    first = play(flow)
    assert isinstance(first.value, RunSuspendedError)
    [question] = first.value.questions
    assert question.question == "may I sell?"
    again = resume(flow, first, len(first.envelopes), answers={question.id: "yes"})
    assert again.value == (["booked sell", "yes"], ["hello", "yes"])
    assert again.effects == []


def test_who_waits_for_one_that_waits_for_a_person_does_not_hold_the_run() -> None:
    async def clerk(_: Any, message: Message[str]) -> Handled:
        return Handled(reply=await interrupt(f"may I {message.body}?"))

    async def flow() -> Any:
        async def beside() -> str:
            await sleep(5)
            return await book("beside")

        async with actors(Actor("clerk", clerk), Actor("other", order, state=[])):
            await send("other", "hello")
            return await gather(ask("clerk", "sell"), beside())

    first = play(flow)
    assert isinstance(first.value, RunSuspendedError)
    assert first.effects == ["other hello", "beside"]
    [question] = first.value.questions
    again = resume(flow, first, len(first.envelopes), answers={question.id: "yes"})
    assert again.value == ["yes", "booked beside"]
    assert again.effects == []


def test_a_failing_block_cancels_its_actors() -> None:
    async def flow() -> Any:
        async def slow(_: Any, message: Message[int]) -> None:
            await sleep(1000)

        try:
            async with actors(Actor("slow", slow)):
                await send("slow", 1)
                await sleep(1)
                await fail("no more")
        except FlakyError as error:
            await send("slow", 2)
            return error.what, await book("after")

    assert cut_anywhere(flow).value == ("no more", "booked after")


# -- replays


async def order(seen: list[str], message: Message[str]) -> Handled:
    """An effect for each message; the second part of the team is told of it."""
    booked = await book(f"{message.to} {message.body}")
    if message.to == "first":
        await send("second", message.body)
    return Handled(state=[*seen, booked], reply=len(seen))


async def busy() -> Any:
    """Back-pressure, questions, and an actor that sends to another."""
    async with actors(
        Actor("first", order, state=[], capacity=2), Actor("second", order, state=[])
    ) as team:
        numbers = [await ask("first", "a")]
        for body in "bcd":
            await wait()
            await send("first", body)
        await ask("second", "e", timeout_s=1000)
    return numbers, sorted(team.state("second")), team.state("first"), await book("after")


async def supervised() -> Any:
    async def handler(seen: list[str], message: Message[str]) -> list[str]:
        booked = await book(message.body)
        if message.body in "bd":
            await fail(message.body)
        return [*seen, booked]

    async with actors(Actor("a", handler, state=[], restarts=1, on_failure="skip")) as team:
        for body in "abcde":
            await send("a", body)
    return team.state("a"), team.statistics("a").failed


async def handled() -> Any:
    """A failure that the flow gets over: what was cut off stays so, on a replay, too."""

    async def handler(seen: int, message: Message[str]) -> int:
        await wait()
        if message.body == "bad":
            await fail("bad")
        await book(f"{message.to} {message.body}")
        return seen + 1

    caught = ""
    try:
        async with actors(Actor("a", handler, state=0), Actor("b", handler, state=0)):
            await send("a", "good")
            await send("b", "bad")
            await sleep(1000)
    except FlakyError as error:
        caught = error.what
    await send("a", "late")
    return caught, await book("after")


async def agents() -> Any:
    writer, critic = Agent("writer", "Write."), Agent("critic", "Criticise.")
    async with actors(
        Actor("writer", answering(writer, to="critic")),
        Actor("critic", answering(critic, to="shelf")),
        Actor("shelf", collect, state=[]),
    ) as team:
        texts = await gather(ask("writer", "one"), ask("writer", "two"))
    return texts, team.state("shelf")


@pytest.mark.parametrize("flow", [busy, supervised, handled, agents], ids=lambda f: f.__name__)
def test_cut_anywhere_a_run_ends_the_same_and_effects_happen_once(flow: Any) -> None:
    cut_anywhere(flow)


def test_a_message_is_handled_once_whenever_the_crash_comes() -> None:
    full = play(busy)
    for position in range(1, len(full.envelopes)):
        again = resume(busy, full, position, repeat_unknown=True).envelopes
        taken = [e.event.message for e in again if isinstance(e.event, MessageTaken)]
        assert len(taken) == len(set(taken))
        sent = [e for e in again if isinstance(e.event, Written)]
        assert len(sent) == len([e for e in full.envelopes if isinstance(e.event, Written)])


def test_an_effect_that_may_have_happened_is_told_not_tried_again() -> None:
    async def flow() -> Any:
        async def handler(_: Any, message: Message[str]) -> None:
            await book(message.body)

        async with actors(Actor("a", handler, restarts=3, on_failure="skip")):
            await send("a", "x")
        return "done"

    full = play(flow)
    begun = next(
        e.seq for e in full.envelopes if isinstance(e.event, CallStarted) and e.event.kind == "step"
    )
    again = resume(flow, full, begun + 1)
    assert "may have happened" in str(again.value)
    assert again.effects == []
    assert resume(flow, full, begun + 1, repeat_unknown=True).value == "done"


@pytest.mark.parametrize("seed", range(10))
def test_speed_changes_neither_states_nor_the_order_of_one_sender(seed: int) -> None:
    async def flow() -> Any:
        async def talk(name: str) -> None:
            for number in range(5):
                await wait()
                await send("ear", (name, number))

        async with actors(Actor("ear", collect, state=[], capacity=3)) as team:
            await gather(talk("a"), talk("b"), talk("c"))
        return team.state("ear")

    seen = play(flow, seed=seed).value
    assert sorted(seen) == [(name, number) for name in "abc" for number in range(5)]
    for name in "abc":
        assert [number for who, number in seen if who == name] == list(range(5))


def test_agents_as_actors_answer_and_send_on() -> None:
    engine = ScriptedEngine(lambda r: f"{r.agent}({r.messages[-1].content})")
    ending = play(agents, engine=engine)
    assert ending.value == (
        ["writer(one)", "writer(two)"],
        ["critic(writer(one))", "critic(writer(two))"],
    )


def test_what_a_handler_writes_is_in_the_actor_s_name() -> None:
    async def tell(_: Any, message: Message[str]) -> None:
        await send("nobody", "hi")

    async def flow() -> Any:
        async with actors(Actor("teller", tell)):
            await send("teller", "go")

    [letter] = dead_letters(play(flow).log)
    assert letter.sender == "teller"


# -- bad input


def test_two_actors_of_one_name_and_none_are_said() -> None:
    async def flow() -> Any:
        with pytest.raises(UsageError, match="two are called 'a'"):
            async with actors(Actor("a", add), Actor("a", add)):
                pass
        with pytest.raises(UsageError, match="there is none"):
            async with actors():
                pass
        with pytest.raises(UsageError, match="drain_s"):
            async with actors(Actor("a", add), drain_s=-1):
                pass

    assert play(flow).value is None


def not_async(state: int, message: Message[int]) -> int:
    return state


@pytest.mark.parametrize(
    "options",
    [
        {"handler": not_async},
        {"handler": Agent("agent")},
        {"handler": book},
        {"handler": 5},
        {"name": " "},
        {"capacity": 0},
        {"restarts": -1},
        {"on_failure": "hope"},
    ],
)
def test_an_actor_that_cannot_be_is_said_where_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Actor(**{"name": "a", "handler": add, **options})


def test_an_unknown_actor_is_said_and_a_state_the_log_cannot_hold() -> None:
    async def flow() -> Any:
        async with actors(Actor("a", add, state=0)) as team:
            with pytest.raises(UsageError, match="no actor 'b' here"):
                team.state("b")
        async with actors(Actor("a", add, state=object())):
            pass

    assert "the state of actor 'a'" in str(play(flow).value)
