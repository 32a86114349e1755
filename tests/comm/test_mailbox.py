"""Messages: once each, in causal order, with room for so many; nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from accord import Agent, gather
from accord.clock import VirtualClock, run_virtual
from accord.comm.mailbox import Mailbox, ask, close_mailbox, dead_letters, send
from accord.errors import CallTimeoutError, MailboxFullError, UsageError
from accord.log.store.memory import MemoryStore
from accord.runtime import Result, Runtime
from accord.testing.scripted import ScriptedEngine


@dataclass
class Order:
    what: str
    count: int


def play(flow: Callable[[], Coroutine[Any, Any, Any]]) -> Result[Any]:
    """Run ``flow`` on virtual time."""

    async def main() -> Result[Any]:
        engine = ScriptedEngine()
        return await Runtime(engine=engine, log="memory", clock=VirtualClock()).arun(flow)

    return run_virtual(main())


def test_a_message_keeps_its_class_and_says_who_sent_it() -> None:
    async def flow() -> Any:
        shop: Mailbox[Order] = Mailbox("shop")
        number = await Mailbox("customer").send("shop", Order("茶", 2))
        message = await shop.receive()
        assert message.id == number
        return message

    message = play(flow).output
    assert (message.sender, message.to, message.body) == ("customer", "shop", Order("茶", 2))


def test_each_message_is_taken_once_in_the_order_of_sending() -> None:
    async def flow() -> Any:
        box: Mailbox[int] = Mailbox("box")
        for index in range(5):
            await send("box", index)
        taken = [(await box.receive()).body for _ in range(5)]
        with pytest.raises(CallTimeoutError):
            await box.receive(timeout_s=1)
        return taken

    assert play(flow).output == [0, 1, 2, 3, 4]


def test_two_who_take_from_one_mailbox_share_its_messages() -> None:
    async def flow() -> Any:
        async def take(times: int) -> list[int]:
            box: Mailbox[int] = Mailbox("box")
            return [(await box.receive()).body for _ in range(times)]

        async def give() -> None:
            for index in range(6):
                await asyncio.sleep(1)
                await send("box", index)

        return await gather(take(3), take(3), give())

    one, other, _ = play(flow).output
    assert sorted(one + other) == [0, 1, 2, 3, 4, 5]


def test_topics_and_broadcasts_reach_all_that_follow_but_not_their_sender() -> None:
    async def flow() -> Any:
        a, b = Mailbox[str]("a", topics=["news"]), Mailbox[str]("b", topics=["news"])
        await a.send("news", "from a")
        await send("*", "to all")
        heard = [(await b.receive()).body, (await b.receive()).body, (await a.receive()).body]
        return heard, a.statistics().waiting, b.statistics().waiting

    assert play(flow).output == (["from a", "to all", "to all"], 0, 0)


def test_a_sender_waits_while_there_is_no_room() -> None:
    async def flow() -> Any:
        box: Mailbox[int] = Mailbox("box", capacity=2)
        sent_at: list[float] = []

        async def give() -> None:
            for index in range(4):
                await send("box", index)
                sent_at.append(asyncio.get_running_loop().time())

        async def take() -> None:
            for _ in range(4):
                await asyncio.sleep(10)
                await box.receive()

        began = asyncio.get_running_loop().time()
        await gather(give(), take())
        return [at - began for at in sent_at], box.statistics()

    times, statistics = play(flow).output
    assert times == pytest.approx([0, 0, 10, 20])
    assert (statistics.received, statistics.taken, statistics.waiting) == (4, 4, 0)


@pytest.mark.parametrize("timeout_s", [0, 5])
def test_a_full_mailbox_is_said_and_the_message_is_not_sent(timeout_s: float) -> None:
    async def flow() -> Any:
        box: Mailbox[int] = Mailbox("box", capacity=1)
        await send("box", 1)
        with pytest.raises(MailboxFullError, match="'box' was full"):
            await send("box", 2, timeout_s=timeout_s)
        return (await box.receive()).body, box.statistics().waiting

    assert play(flow).output == (1, 0)


def test_a_question_gets_its_own_answer() -> None:
    async def flow() -> Any:
        async def server() -> None:
            box: Mailbox[int] = Mailbox("double")
            questions = [await box.receive() for _ in range(2)]
            for question in reversed(questions):
                await box.reply(question, question.body * 2)

        return await gather(ask("double", 1), ask("double", 2), server())

    assert play(flow).output[:2] == [2, 4]


@pytest.mark.parametrize(("room_at", "ends_at"), [(3, 5), (None, 5)])
def test_a_question_has_one_deadline_for_room_and_answer(
    room_at: float | None, ends_at: float
) -> None:
    async def flow() -> Any:
        box: Mailbox[int] = Mailbox("box", capacity=1)
        await send("box", 1)

        async def take() -> None:
            if room_at is not None:
                await asyncio.sleep(room_at)
                await box.receive()

        async def wonder() -> tuple[Any, float]:
            began = asyncio.get_running_loop().time()
            try:
                await ask("box", 2, timeout_s=5)
            except (CallTimeoutError, MailboxFullError) as error:
                return error, asyncio.get_running_loop().time() - began
            raise AssertionError

        return (await gather(take(), wonder()))[1]

    error, took = play(flow).output
    assert took == pytest.approx(ends_at)
    expected = MailboxFullError if room_at is None else CallTimeoutError
    assert isinstance(error, expected)
    assert "5 s" in str(error)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("counter", "see that its owner replies"),
        ("conter", "no mailbox of that name was open; did you mean 'counter'?"),
        ("zebra", "no mailbox of that name was open; open are: counter"),
        ("closed", "no mailbox of that name was open"),
    ],
)
def test_a_question_to_no_mailbox_says_so(asked: str, says: str) -> None:
    async def flow() -> None:
        Mailbox[int]("counter")
        Mailbox[int]("closed")
        close_mailbox("closed")
        await ask(asked, 1, timeout_s=1)

    with pytest.raises(CallTimeoutError, match="has not answered within 1 s") as caught:
        play(flow)
    assert says in str(caught.value)


def test_what_was_open_when_the_time_was_up_is_the_same_on_a_replay() -> None:
    said: list[str] = []

    async def flow() -> None:
        try:
            await ask("conter", 1, timeout_s=1)
        except CallTimeoutError as error:
            said.append(str(error))
        Mailbox[int]("counter")
        if len(said) == 1:
            raise RuntimeError

    async def main() -> None:
        store = MemoryStore()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            with pytest.raises(RuntimeError):
                await runtime.arun(flow, run_id="r")
            await runtime.aresume("r", flow)

    run_virtual(main())
    assert said[0] == said[1]
    assert "open are: none" in said[0]


def test_a_message_to_nobody_is_kept_and_counted_and_may_be_taken_later() -> None:
    async def flow() -> Any:
        await send("wrter", "lost")
        await send("writer", "early")
        with pytest.raises(CallTimeoutError):
            await ask("nobody", "?", timeout_s=1)
        return (await Mailbox[str]("writer").receive()).body

    result = play(flow)
    assert result.output == "early"
    assert [(letter.to, letter.body) for letter in dead_letters(result.log)] == [
        ("wrter", "lost"),
        ("nobody", "?"),
    ]


@pytest.mark.parametrize("name", ["", "  ", "a\nb"])
def test_a_name_is_printable_text(name: str) -> None:
    async def flow() -> Any:
        with pytest.raises(UsageError, match="messages go to a name"):
            await send(name, 1)
        with pytest.raises(UsageError, match="messages go to a name"):
            Mailbox(name)

    play(flow)


def test_a_mailbox_has_room_for_one_at_least() -> None:
    async def flow() -> Any:
        Mailbox("box", capacity=0)

    with pytest.raises(UsageError, match="at least 1"):
        play(flow)


def test_what_is_sent_to_everybody_is_no_answer() -> None:
    async def flow() -> Any:
        async def server() -> None:
            box: Mailbox[int] = Mailbox("server")
            for _ in range(3):
                question = await box.receive()
                if question.to == "server":
                    await box.reply(question, question.body * 2)

        async def client() -> Any:
            await send("*", 0)
            return [await ask("server", 1), await ask("server", 2)]

        return (await gather(server(), client()))[1]

    assert play(flow).output == [2, 4]


def test_opened_again_it_has_to_be_alike() -> None:
    async def flow() -> Any:
        Mailbox("box", capacity=1)
        Mailbox("box", capacity=1)
        Mailbox("box", capacity=2)

    with pytest.raises(UsageError, match=r"open with topics .* and capacity 1"):
        play(flow)


def test_an_agent_s_message_wakes_who_waits_and_waits_for_room() -> None:
    async def flow() -> Any:
        box: Mailbox[str] = Mailbox("boss", capacity=1)
        clerk = Agent("clerk", writes="@boss")
        times: list[float] = []

        async def work() -> None:
            for index in range(3):
                await clerk(str(index))
                times.append(asyncio.get_running_loop().time())

        async def boss() -> None:
            for _ in range(3):
                await box.receive()
                await asyncio.sleep(10)

        began = asyncio.get_running_loop().time()
        await gather(work(), boss())
        return [time - began for time in times]

    assert play(flow).output == pytest.approx([0, 0, 10])


def test_what_an_agent_was_shown_is_taken_and_nothing_else() -> None:
    async def flow() -> Any:
        box: Mailbox[str] = Mailbox("reader", capacity=2)
        await send("reader", "direct")
        await send("*", "to all")
        await send("team/x", "topic")
        await Agent("reader", reads=["@reader", "@team/*"])()
        await Agent("blind", reads={"@other": "nothing"})()
        await send("other", "unseen")
        return box.statistics().waiting

    result = play(flow)
    assert result.output == 1, "the broadcast waits in the mailbox, too"
    assert [letter.body for letter in dead_letters(result.log)] == ["unseen"]


def test_a_look_of_an_agent_makes_room_for_who_waits() -> None:
    async def flow() -> Any:
        Mailbox[str]("clerk", capacity=1)
        clerk = Agent("clerk", reads="@clerk")

        async def fill() -> str:
            await send("clerk", "first")
            await send("clerk", "second")
            return "sent"

        async def look() -> None:
            await asyncio.sleep(1)
            await clerk()

        return (await gather(fill(), look()))[0]

    assert play(flow).output == "sent"
