"""Speculation: work on guesses, and what is held back until they prove right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from accord import Agent, Blackboard, Runtime, gather, interrupt, sleep, speculate, step, tool
from accord.clock import NANOSECONDS, VirtualClock, run_virtual
from accord.comm.mailbox import Mailbox, send
from accord.engine.base import Capabilities, Reply, Request, ToolCall
from accord.errors import RunSuspendedError, UsageError
from accord.flow.execution import Token
from accord.log.events import CallCancelled, CallStarted, Guessed, Written
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.observe.guesses import Guesses
from accord.reuse.site import Site
from accord.runtime import Result
from accord.sync.pipeline import Stage, pipeline
from accord.sync.speculation import NO_GUESS
from accord.testing.scripted import ScriptedEngine
from tests.sync.replays import book, cut_anywhere, play, resume

Flow = Callable[..., Coroutine[Any, Any, Any]]
board = Blackboard()


def results_of(
    flow: Flow, *runs: tuple[Any, ...], engine: Any = None, **options: Any
) -> list[Result[Any]]:
    """Runs of ``flow`` one after the other, in one runtime."""

    async def main() -> list[Result[Any]]:
        options.setdefault("log", "memory")
        async with Runtime(
            engine=engine or ScriptedEngine(), clock=VirtualClock(), cache="off", **options
        ) as runtime:
            return [await runtime.arun(flow, *inputs) for inputs in runs]

    return run_virtual(main())


def result_of(flow: Flow, *inputs: Any, **options: Any) -> Result[Any]:
    return results_of(flow, inputs, **options)[0]


def guesses_in(result: Result[Any]) -> list[bool | None]:
    """Those that were followed."""
    found = result.log.fold(Guesses).by_branch.values()
    return [each.right for each in found if each.followed]


def seconds(result: Result[Any]) -> float:
    return result.log.envelopes[-1].at / NANOSECONDS


@step(pure=True)
async def route(question: str) -> str:
    await asyncio.sleep(2)
    return question[0]


@step(pure=True)
async def answer(desk: str) -> str:
    await asyncio.sleep(3)
    return f"{desk} answers"


async def fails(desk: str) -> str:
    raise ValueError(desk)


def rule(desk: str) -> Callable[[str], str]:
    return lambda _: desk


# -- what it gives, and when


@pytest.mark.parametrize(("guess", "right", "took_s"), [("a", True, 3), ("b", False, 5)])
def test_a_right_guess_saves_the_time_worked_ahead_and_a_wrong_one_costs_none(
    guess: str, right: bool, took_s: float
):
    async def flow() -> str:
        return await speculate(route, "ab", then=answer, guess=rule(guess))

    result = result_of(flow)
    assert result.output == "a answers"
    assert guesses_in(result) == [right]
    assert seconds(result) == pytest.approx(took_s)
    assert result.tax.closes
    told = result.tax.reuse.speculated
    assert (told.predicted, told.committed) == (1, right)
    assert told.gained == pytest.approx(2 if right else 0)


def test_a_wrong_guess_is_cancelled_at_once():
    async def flow() -> str:
        return await speculate(route, "ab", then=answer, guess=rule("b"))

    calls = index_calls(result_of(flow).log.envelopes).by_scope
    wrong = calls["0/1/1"]
    assert isinstance(wrong.ended, CallCancelled)
    assert wrong.duration_ns == 2 * NANOSECONDS


def test_without_a_guess_the_last_run_at_this_place_is_followed():
    async def flow(*questions: str) -> list[str]:
        return [await speculate(route, each, then=answer) for each in questions]

    first, second, third = results_of(flow, ("ax", "bx"), ("ay", "cy"), ("az", "aw"))
    assert guesses_in(first) == []
    assert guesses_in(second) == [True, False]
    assert guesses_in(third) == [True, False]
    assert [result.output[1] for result in (first, second, third)] == [
        f"{desk} answers" for desk in "bca"
    ]


def test_the_same_question_asked_elsewhere_is_the_better_guess():
    async def flow(*questions: str) -> list[str]:
        return [await speculate(route, each, then=answer) for each in questions]

    _, second = results_of(flow, ("ax", "bx"), ("bx", "ax"))
    assert guesses_in(second) == [True, True]


def test_a_step_or_a_cheaper_agent_may_guess_and_is_a_call_like_any_other():
    engine = ScriptedEngine(lambda r: "b" if r.agent == "small" else "a", decode_s=1)
    small, large = Agent("small", max_tokens=8), Agent("large", max_tokens=8)

    async def flow() -> str:
        return await speculate(large, "?", then=answer, guess=small)

    result = result_of(flow, engine=engine)
    assert result.output == "a answers"
    assert {request.agent for request in engine.requests} == {"small", "large"}
    assert result.tax.closes


def test_what_need_not_be_equal_is_accepted_by_the_given_rule():
    async def flow() -> str:
        return await speculate(
            route,
            "a",
            then=answer,
            guess=rule("A"),
            accept=lambda guess, given: guess.lower() == given.lower(),
        )

    result = result_of(flow)
    assert (result.output, guesses_in(result)) == ("A answers", [True])


def test_what_the_call_raises_is_raised_and_what_ran_ahead_is_gone():
    @step(pure=True)
    async def breaks(_: str) -> str:
        await asyncio.sleep(1)
        raise KeyError("no such desk")

    async def flow() -> str:
        try:
            return await speculate(breaks, "a", then=answer, guess=rule("a"))
        except KeyError:
            return "told"

    result = result_of(flow)
    assert result.output == "told"
    assert guesses_in(result) == [False]
    assert result.tax.closes


def test_what_fails_on_a_right_guess_fails_and_on_a_wrong_one_is_forgotten():
    async def right() -> str:
        return await speculate(route, "a", then=fails, guess=rule("a"))

    with pytest.raises(ValueError, match="a"):
        result_of(right)

    async def then(desk: str) -> str:
        return await (fails(desk) if desk == "b" else answer(desk))

    async def wrong() -> str:
        return await speculate(route, "a", then=then, guess=rule("b"))

    assert result_of(wrong).output == "a answers"


def test_a_guess_that_fails_is_none():
    def broken(_: str) -> str:
        raise RuntimeError("no idea")

    async def flow() -> str:
        return await speculate(route, "a", then=answer, guess=broken)

    with pytest.warns(UserWarning, match=r"guess of 'route' failed .*no idea"):
        result = result_of(flow)
    assert (result.output, guesses_in(result)) == ("a answers", [])


@pytest.mark.parametrize("bad", [lambda q: q, "route", None])
def test_only_recorded_calls_can_be_foretold(bad: Any):
    async def flow() -> str:
        return await speculate(bad, "a", then=answer)

    with pytest.raises(UsageError, match=r"put @step on it"):
        result_of(flow)


@pytest.mark.parametrize(
    "function", [book, Agent("planner", writes="plan"), Agent("payer", tools=[tool(book.function)])]
)
def test_what_follows_does_not_begin_before_effects(function: Any):
    """It would not see what the call itself has done."""

    async def flow() -> str:
        return await speculate(function, "a", then=answer, guess=rule("a"))

    with pytest.raises(UsageError, match="follows would begin before them"):
        result_of(flow)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"then": None}, "then is an async function"),
        ({"then": "answer"}, "then is an async function"),
        ({"guess": "a"}, "guess is a function"),
        ({"accept": True}, "accept is a function"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_once(options: Any, what: str):
    async def flow() -> str:
        return await speculate(route, "a", **{"then": answer, **options})

    with pytest.raises(UsageError, match=what):
        result_of(flow)


def test_a_rule_may_have_no_guess():
    async def flow() -> str:
        return await speculate(route, "ab", then=answer, guess=lambda _: NO_GUESS)

    result = result_of(flow)
    assert (result.output, guesses_in(result)) == ("a answers", [])


def test_a_guess_that_the_log_cannot_hold_is_none_at_rest_too():
    async def flow() -> list[str]:
        first = [await speculate(route, "a", then=answer, guess=rule("b")) for _ in range(7)]
        return [*first, await speculate(route, "a", then=answer, guess=lambda _: object())]

    with pytest.warns(UserWarning, match="guess of 'route' failed"):
        assert result_of(flow).output == ["a answers"] * 8


def test_the_rule_of_acceptance_may_be_async():
    async def accept(guess: str, given: str) -> bool:
        return guess == given

    async def flow(guess: str) -> str:
        return await speculate(route, "a", then=answer, guess=rule(guess), accept=accept)

    for guess, right in (("a", True), ("b", False)):
        result = result_of(flow, guess)
        assert (result.output, guesses_in(result)) == ("a answers", [right])


def test_what_is_done_to_a_guess_does_not_make_it_right():
    @step(pure=True)
    async def listed(_: str) -> list[str]:
        await asyncio.sleep(1)
        return ["a"]

    async def then(names: list[str]) -> str:
        names.append("a")
        return await book(",".join(names))

    async def flow(guess: list[str]) -> str:
        return await speculate(listed, "", then=then, guess=lambda _: guess)

    for guess in ([], ["a"]):
        assert result_of(flow, guess).output == "booked a,a"


@pytest.mark.parametrize("waste", [-1, 1.5, "much", None, True])
def test_the_budget_is_a_number_of_tokens(waste: Any):
    async def flow() -> str:
        return await speculate(route, "a", then=answer, waste_tokens=waste)

    with pytest.raises(UsageError, match="waste_tokens"):
        result_of(flow)


def test_speculation_can_be_switched_off():
    async def flow() -> str:
        return await speculate(route, "ab", then=answer, guess=rule("a"))

    result = result_of(flow, speculate=False)
    assert (result.output, guesses_in(result)) == ("a answers", [])
    assert seconds(result) == pytest.approx(5)


def test_what_follows_a_wrong_guess_follows_from_what_was_really_given():
    """So the critical path runs through the call."""

    async def flow() -> str:
        return await speculate(route, "ab", then=answer, guess=rule("b"))

    result = result_of(flow)
    assert [each.name for each in result.tax.critical_path if each.name] == ["route", "answer"]
    assert result.tax.time.tools == pytest.approx(5)


# -- what others can see waits


charged: list[str] = []


@step
async def charge(desk: str) -> str:
    charged.append(desk)
    return desk


@pytest.mark.parametrize("guess", ["a", "b"])
def test_effects_wait_for_the_commit(guess: str):
    """MGR-7"""
    charged.clear()
    began: list[float] = []

    @step
    async def effect(desk: str) -> str:
        began.append(asyncio.get_running_loop().time())
        charged.append(desk)
        return desk

    async def flow() -> str:
        return await speculate(route, "a", then=effect, guess=rule(guess))

    result_of(flow)
    assert charged == ["a"]
    assert began == [2.0]


def test_effects_deep_below_wait_too():
    """In branches, tools of agents, and nested guesses: no effect of a wrong guess."""
    charged.clear()

    @tool
    async def pay(desk: str) -> str:
        """Pay."""
        charged.append(desk)
        return desk

    def script(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return "done"
        return [ToolCall("1", "pay", f'{{"desk": "{request.messages[-1].content}"}}')]

    clerk = Agent("clerk", "Pay.", tools=[pay], max_tokens=8)

    async def inner(desk: str) -> list[Any]:
        return await gather(clerk(desk), charge(desk), sleep(0.1))

    async def then(desk: str) -> Any:
        return await speculate(answer, desk, then=lambda _: inner(desk), guess=lambda d: d)

    async def flow() -> Any:
        return await speculate(route, "a", then=then, guess=rule("b"))

    result_of(flow, engine=ScriptedEngine(script))
    assert sorted(charged) == ["a", "a"]


@pytest.mark.parametrize(("guess", "right"), [("a", False), ("b", False)])
def test_a_write_to_the_board_stops_what_runs_ahead(guess: str, right: bool):
    """It cannot be held, so what follows is run again: nobody ever sees what was not so."""

    async def then(desk: str) -> str:
        await sleep(0.5)
        board.write("desk", desk)
        return desk

    async def flow() -> Any:
        return await speculate(route, "a", then=then, guess=rule(guess)), board.read("desk")

    result = result_of(flow)
    assert result.output == ("a", "a")
    written = [e.event for e in result.log.envelopes if isinstance(e.event, Written)]
    assert len(written) == 1
    assert guesses_in(result) == [right]


def test_an_agent_that_writes_its_answer_waits_with_that():
    writer = Agent("writer", writes="draft", max_tokens=8)

    async def flow() -> Any:
        out = await speculate(route, "a", then=writer, guess=rule("a"))
        return out, board.read("draft")

    engine = ScriptedEngine(lambda r: f"about {r.messages[-1].content}", decode_s=1)
    result = result_of(flow, engine=engine)
    assert result.output == ("about a", "about a")
    assert guesses_in(result) == [True]
    assert seconds(result) == pytest.approx(2)


def test_messages_wait_for_the_commit():
    async def then(desk: str) -> str:
        await send("inbox", desk)
        return desk

    async def flow() -> Any:
        inbox = Mailbox("inbox")
        wrong = await speculate(route, "a", then=then, guess=rule("b"))
        right = await speculate(route, "c", then=then, guess=rule("c"))
        return wrong, right, [(await inbox.receive()).body for _ in range(2)]

    assert result_of(flow).output == ("a", "c", ["a", "c"])


def test_a_question_to_a_person_waits_for_the_commit():
    async def then(desk: str) -> str:
        return await interrupt(f"ask {desk}?")

    async def flow(guess: str) -> str:
        return await speculate(route, "a", then=then, guess=rule(guess))

    async def main(guess: str) -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
        with pytest.raises(RunSuspendedError) as raised:
            await runtime.arun(flow, guess, run_id="run")
        (question,) = raised.value.questions
        again = await runtime.aresume("run", flow, answers={question.id: "yes"})
        return question.question, again.output

    for guess in "ab":
        assert run_virtual(main(guess)) == ("ask a?", "yes")


def test_what_an_agent_said_on_a_wrong_guess_is_no_part_of_its_history():
    clerk = Agent("clerk", "Answer.", sees="diff", max_tokens=8)

    async def then(desk: str) -> str:
        return await clerk(f"about {desk}")

    async def flow() -> str:
        await speculate(route, "a", then=then, guess=rule("b"))
        return await clerk("and now?")

    engine = ScriptedEngine(lambda r: f"re {r.messages[-1].content}", decode_s=1)
    result_of(flow, engine=engine)
    last = "\n".join(message.content for message in engine.requests[-1].messages)
    assert "about a" in last
    assert "about b" not in last


@pytest.mark.parametrize("swallows", ["gather", "task", "except"])
def test_whatever_swallows_it_what_could_not_wait_is_done_again(swallows: str):
    async def write(desk: str) -> None:
        board.write("desk", desk)

    async def then(desk: str) -> str:
        if swallows == "gather":
            await asyncio.gather(write(desk), return_exceptions=True)  # noqa: TID251  # users do
        elif swallows == "task":
            left = asyncio.create_task(write(desk))  # noqa: TID251  # users do
            await sleep(0.1)
            assert left.done()
            left.cancel()
            left.exception()
        else:
            with suppress(BaseException):
                await write(desk)
        return await book(desk)

    async def flow() -> Any:
        out = await speculate(route, "a", then=then, guess=rule("a"))
        return out, board.read("desk")

    full = play(flow)
    assert full.value == ("booked a", "a")
    assert full.effects == ["a"]


def test_time_held_counts_against_no_limit():
    slowly = Agent("slowly", max_tokens=8, timeout_s=3)
    in_time = Agent("in time", max_tokens=8, deadline_s=2.5, tools=[tool(book.function)])

    def script(request: Request) -> Any:
        if request.agent == "in time" and request.messages[-1].role != "tool":
            return Reply(text="", tool_calls=(ToolCall("1", "book", '{"what": "it"}'),))
        return "ok"

    async def then(desk: str) -> Any:
        async with asyncio.timeout(1):
            await book(desk)
        return await slowly(desk), await in_time(desk)

    async def flow() -> Any:
        return await speculate(route, "a", then=then, guess=rule("a"))

    assert result_of(flow, engine=ScriptedEngine(script, decode_s=1)).output == ("ok", "ok")


def test_tasks_left_behind_by_a_wrong_guess_end():
    began: list[str] = []

    async def then(desk: str) -> str:
        async def stray() -> None:
            began.append(desk)
            await book(desk)

        left = asyncio.get_running_loop().create_task(stray(), name="stray")
        await answer(desk)
        if desk == "a":
            await left
        return desk

    async def flow() -> str:
        out = await speculate(route, "a", then=then, guess=rule("b"))
        await sleep(10)
        return out

    full = play(flow)  # it says if a task is left
    assert (full.value, full.effects, began) == ("a", ["a"], ["b", "a"])


def test_news_of_wrong_guesses_is_not_told():
    """Whoever prints a reply while it is written prints what is so."""
    worker = Agent("worker", max_tokens=8)
    engine = ScriptedEngine(lambda r: f"about {r.messages[-1].content}", decode_s=1, pieces=4)

    async def flow(guess: str) -> str:
        return await speculate(route, "a", then=worker, guess=rule(guess))

    async def heard(guess: str) -> str:
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        items = [item async for item in runtime.stream(flow, guess)]
        return "".join(item.text for item in items if isinstance(item, Token))

    assert run_virtual(heard("b")) == "about a"
    assert run_virtual(heard("a")) in ("", "about a")


def test_what_is_seen_of_it_follows_from_the_call():
    """So a fork in which the call gave something else does not keep it."""

    async def then(desk: str) -> str:
        await sleep(3)
        board.write("desk", desk)
        return await book(desk)

    async def flow() -> Any:
        return await speculate(route, "a", then=then, guess=rule("a")), board.read("desk")

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
        await runtime.arun(flow, run_id="run")
        return (await runtime.afork("run", {"0/0/0": "b"}, flow)).output

    assert run_virtual(main()) == ("booked b", "b")


def test_an_agent_remembers_the_call_that_was_foretold():
    clerk = Agent("clerk", sees="diff", max_tokens=8)
    engine = ScriptedEngine(lambda r: f"re {r.messages[-1].content}", decode_s=1)

    async def then(_: str) -> str:
        return await clerk("and now?")

    async def flow(guess: str) -> str:
        return await speculate(clerk, "q", then=then, guess=rule(guess))

    for guess in ("re q", "wrong"):
        for follows in (True, False):
            result_of(flow, guess, engine=engine, speculate=follows)
            said = [message.content for message in engine.requests[-1].messages]
            assert said == ["q", "re q", "and now?"]


def test_what_the_call_itself_writes_is_seen_by_what_follows():
    @step(pure=True)
    async def writes(question: str) -> str:
        await asyncio.sleep(1)
        board.write("plan", question)
        return question

    async def then(_: str) -> Any:
        return board.read("plan")

    async def flow() -> Any:
        return await speculate(writes, "a", then=then, guess=rule("a"))

    assert result_of(flow).output == "a"


def test_an_effect_that_was_held_has_its_own_time():
    payer = Agent("payer", tools=[tool(slowly_paid)], timeout_s=4, max_tokens=8)

    def script(request: Request) -> Any:
        if request.messages[-1].role != "tool":
            return Reply(text="", tool_calls=(ToolCall("1", "slowly_paid", '{"what": "it"}'),))
        return "paid"

    async def flow() -> Any:
        return await speculate(route, "a", then=payer, guess=rule("a"))

    engine = ScriptedEngine(script, decode_s=1)
    assert result_of(flow, engine=engine).output == "paid"


async def slowly_paid(what: str) -> str:
    """Pay."""
    await asyncio.sleep(1)
    return what


@pytest.mark.parametrize("gives_up", ["timeout_s", "deadline_s", "timeout"])
def test_what_gave_up_behind_others_is_done_again(gives_up: str):
    """One place, which the call that was foretold holds for ten seconds."""
    router = Agent("router", max_tokens=8)
    options: Any = {} if gives_up == "timeout" else {gives_up: 5}
    clerk = Agent("clerk", max_tokens=8, **options)
    engine = ScriptedEngine(
        lambda _: "ok",
        decode_s=lambda r: 10.0 if r.agent == "router" else 1.0,
        capabilities=Capabilities(model="m", concurrency=1),
    )

    async def then(desk: str) -> str:
        try:
            async with asyncio.timeout(5 if gives_up == "timeout" else None):
                return await clerk(desk)
        except TimeoutError:
            return "fallback"

    async def flow() -> str:
        return await speculate(router, "?", then=then, guess=rule("ok"))

    assert result_of(flow, engine=engine).output == "ok"


# -- what it costs


async def write_at_length(desk: str) -> str:
    """A thousand words, on an engine that is ``wordy``."""
    for _ in range(10):
        await Agent("worker", max_tokens=200)(desk)
    return desk


def wordy() -> ScriptedEngine:
    return ScriptedEngine(lambda _: "word " * 100, decode_s=0.1)


def test_wrong_guesses_stop_when_their_budget_is_spent():
    async def flow() -> list[str]:
        return [
            await speculate(route, "a", then=write_at_length, guess=rule("b"), waste_tokens=1000)
            for _ in range(3)
        ]

    told = result_of(flow, engine=wordy()).tax.reuse.speculated
    assert 0 < told.wasted <= 1000


def test_the_budget_holds_for_guesses_side_by_side():
    async def flow() -> list[str]:
        return await gather(
            speculate(route, "a", then=write_at_length, guess=rule("b"), waste_tokens=1000)
            for _ in range(20)
        )

    told = result_of(flow, engine=wordy()).tax.reuse.speculated
    assert 0 < told.wasted <= 1000


def test_a_right_guess_is_not_stopped_by_the_budget():
    async def flow() -> str:
        return await speculate(route, "a", then=write_at_length, guess=rule("a"), waste_tokens=500)

    assert result_of(flow, engine=wordy()).output == "a"


def test_a_site_at_which_guesses_do_not_pay_rests_and_begins_again_when_they_do():
    async def flow() -> list[bool]:
        before = [await speculate(route, "a", then=answer, guess=rule("b")) for _ in range(8)]
        after = [await speculate(route, "a", then=answer, guess=rule("a")) for _ in range(8)]
        return before == after  # pyright: ignore[reportReturnType]

    found = guesses_in(result_of(flow))
    assert found[:3] == [False] * 3
    assert len(found) < 3 + 8
    assert found[-1] is True


def test_the_next_process_knows_that_guesses_did_not_pay():
    store = MemoryStore()

    async def flow() -> list[str]:
        return [await speculate(route, "a", then=answer, guess=rule(desk)) for desk in "bbbbbbbb"]

    first, second, third = (result_of(flow, log=store) for _ in range(3))
    assert len(guesses_in(first)) == 3
    assert guesses_in(second) == guesses_in(third) == []
    assert third.tax.reuse.speculated.rested == 8


def test_that_is_known_of_a_call_that_is_made_once_a_run_too():
    store = MemoryStore()

    async def flow() -> str:
        return await speculate(route, "a", then=answer, guess=rule("b"))

    followed = [len(guesses_in(result_of(flow, log=store))) for _ in range(12)]
    assert followed == [1, 1, 1, *[0] * 9]


def test_a_guess_that_costs_something_is_tried_again_now_and_then():
    """For only what is guessed can be scored."""
    store = MemoryStore()
    guesser, router = (Agent(name, max_tokens=8) for name in ("guesser", "router"))
    engine = ScriptedEngine(
        lambda r: "b" if r.agent == "guesser" else "a",
        decode_s=lambda r: 0.1 if r.agent == "guesser" else 1.0,
    )

    async def flow() -> list[str]:
        return [await speculate(router, "?", then=answer, guess=guesser) for _ in range(60)]

    told = result_of(flow, engine=engine, log=store).tax.reuse.speculated
    assert 3 <= told.predicted <= 8


def test_only_work_counts_as_begun_early():
    """Not what was held, and not what was done by then."""

    async def then(desk: str) -> str:
        await asyncio.sleep(0)
        out = await quick(desk)
        return await book(out)

    @step(pure=True)
    async def quick(desk: str) -> str:
        await asyncio.sleep(0.5)
        return desk

    async def flow() -> str:
        return await speculate(route, "a", then=then, guess=rule("a"))

    assert result_of(flow).tax.reuse.speculated.gained == pytest.approx(0.5)


def test_what_was_right_and_of_no_use_is_told_apart():
    async def then(desk: str) -> str:
        board.write("desk", desk)
        return desk

    async def flow(guess: str) -> str:
        return await speculate(route, "a", then=then, guess=rule(guess))

    for guess, stopped in (("a", 1), ("b", 0)):
        told = result_of(flow, guess).tax.reuse.speculated
        assert (told.predicted, told.committed, told.stopped) == (1, 0, stopped)


def test_what_follows_has_to_be_async():
    async def flow() -> Any:
        return await speculate(route, "a", then=str.upper)  # pyright: ignore[reportArgumentType]

    with pytest.raises(UsageError, match="then is an async function"):
        result_of(flow)


@pytest.mark.parametrize(("percent", "pays"), [(0, False), (15, False), (35, True), (90, True)])
def test_a_site_pays_by_its_odds(percent: int, pays: bool):
    random, site = Random(percent), Site()
    verdicts = []
    for _ in range(400):
        verdicts.append(site.pays)
        site.score(right=random.random() < percent / 100, worked_s=2.0)
    share = sum(verdicts[20:]) / len(verdicts[20:])
    assert share > 0.8 if pays else share < 0.4


def test_what_runs_ahead_goes_after_all_others():
    engine = ScriptedEngine(
        lambda _: "ok",
        decode_s=lambda r: 10.0 if r.agent == "router" else 1.0,
        capabilities=Capabilities(model="m", concurrency=2),
    )
    router, other = (Agent(name, max_tokens=8) for name in ("router", "other"))
    clerk = Agent("clerk", max_tokens=8, priority=5)

    async def flow() -> Any:
        return await gather(
            speculate(router, "?", then=clerk, guess=rule("ok")),
            *(other(str(number)) for number in range(3)),
        )

    result_of(flow, engine=engine)
    assert [request.agent for request in engine.requests][-1] == "clerk"


# -- tools called ahead


def looping(terms: list[str]) -> Callable[[Request], Any]:
    def script(request: Request) -> Any:
        made = sum(message.role == "tool" for message in request.messages)
        if made == len(terms):
            return "found"
        return Reply(
            text="next",
            tool_calls=(ToolCall(f"c{made}", "search", f'{{"term": "{terms[made]}"}}'),),
            finish_reason="tool_calls",
        )

    return script


@pytest.mark.parametrize(
    ("second", "right", "took_s"),
    [(["x", "y"], [True, True], 6.0), (["x", "z"], [True, False], 8.0), (["x"], [True, False], 4)],
)
def test_tools_are_called_while_the_model_writes_as_the_last_run_asked_for_them(
    second: list[str], right: list[bool], took_s: float
):
    ran: list[str] = []

    @tool(pure=True)
    async def search(term: str) -> str:
        """Search."""
        await asyncio.sleep(2)
        ran.append(term)
        return f"about {term}"

    scout = Agent("scout", "Search.", tools=[search], speculate=True, max_tokens=8)
    scripts = iter([looping(["x", "y"]), looping(second)])
    current: list[Any] = []

    def script(request: Request) -> Any:
        return current[0](request)

    engine = ScriptedEngine(script, decode_s=2)

    async def flow() -> str:
        current[:] = [next(scripts)]
        return await scout("go")

    first, again = results_of(flow, (), (), engine=engine)
    assert seconds(first) == pytest.approx(10)
    assert again.output == "found"
    assert guesses_in(again) == right
    assert seconds(again) == pytest.approx(took_s)
    said = [m.content for m in engine.requests[-1].messages if m.role == "tool"]
    assert said == [f"about {term}" for term in second]


def test_tools_with_effects_are_never_called_ahead():
    ran: list[str] = []

    @tool
    async def search(term: str) -> str:
        """Search, and pay for it."""
        ran.append(term)
        return term

    scout = Agent("scout", "Search.", tools=[search], speculate=True, max_tokens=8)
    scripts = iter([looping(["x", "y"]), looping(["z"])])
    current: list[Any] = []

    def script(request: Request) -> Any:
        return current[0](request)

    engine = ScriptedEngine(script, decode_s=2)

    async def flow() -> str:
        current[:] = [next(scripts)]
        return await scout("go")

    _, again = results_of(flow, (), (), engine=engine)
    assert ran == ["x", "y", "z"]
    assert guesses_in(again) == []


def test_an_agent_that_could_call_tools_ahead_is_read_while_it_writes():
    """One without tools has none to call."""
    writer = Agent("writer", speculate=True, max_tokens=8)
    engine = ScriptedEngine("one. two. three.", decode_s=3, pieces=3)
    heard: list[float] = []

    async def reads(chunks: Any) -> str:
        async for _ in chunks:
            heard.append(asyncio.get_running_loop().time())  # noqa: PERF401  # when each came
        return "read"

    async def flow() -> Any:
        return await pipeline(["a"], writer, Stage(reads, streams=True))

    result_of(flow, engine=engine)
    assert heard[0] < 2
    assert len(heard) == 3


# -- crashes


@step(pure=True)
async def pick(question: str) -> str:
    await asyncio.sleep(0.05)
    return question[0]


async def booked(desk: str) -> str:
    await pick(desk)
    await book(f"for {desk}")
    return await book(f"and {desk}")


def right() -> Flow:
    async def flow() -> Any:
        return await speculate(pick, "ab", then=booked, guess=rule("a")), await book("end")

    return flow


def wrong() -> Flow:
    async def flow() -> Any:
        return await speculate(pick, "ab", then=booked, guess=rule("b")), await book("end")

    return flow


def nested() -> Flow:
    async def then(desk: str) -> Any:
        return await speculate(pick, f"{desk}x", then=booked, guess=rule("a"))

    async def flow() -> Any:
        first = await speculate(pick, "ab", then=then, guess=rule("a"))
        return first, await speculate(pick, "ab", then=then, guess=rule("c"))

    return flow


def in_branches() -> Flow:
    async def one(number: int) -> Any:
        guess = "ab"[number % 2]
        return await speculate(pick, "a", then=booked, guess=rule(guess))

    async def flow() -> Any:
        return await gather(one(number) for number in range(3))

    return flow


def failing() -> Flow:
    async def then(desk: str) -> str:
        await book(desk)
        raise ValueError(desk)

    async def flow() -> Any:
        try:
            return await speculate(pick, "a", then=then, guess=rule("a"))
        except ValueError:
            await book("mended")
            return await speculate(pick, "a", then=booked, guess=rule("b"))

    return flow


@step(pure=True)
async def slow(question: str) -> str:
    await asyncio.sleep(5)
    return question[0]


def stopped() -> Flow:
    async def then(desk: str) -> Any:
        await pick("x")
        board.write("desk", desk)
        return await book(desk), await book(f"more {desk}")

    async def flow() -> Any:
        return await speculate(slow, "a", then=then, guess=rule("a")), board.read("desk")

    return flow


def judged() -> Flow:
    @step(pure=True)
    async def judge(guess: str, given: str) -> bool:
        await asyncio.sleep(0.05)
        return guess.lower() == given

    async def flow() -> Any:
        out = [
            await speculate(pick, "ab", then=booked, guess=rule(guess), accept=judge)
            for guess in "AB"
        ]
        await sleep(1)
        return out, await book("end")

    return flow


def sends() -> Flow:
    async def then(desk: str) -> Any:
        box = Mailbox(f"box {desk}")
        await send(f"box {desk}", desk)
        return (await box.receive()).body, await book(desk)

    async def flow() -> Any:
        return await speculate(slow, "a", then=then, guess=rule("a"))

    return flow


def out_of_budget() -> Flow:
    worker = Agent("worker", max_tokens=100)

    async def then(desk: str) -> Any:
        for _ in range(4):
            await worker(desk)
        return await book(desk)

    async def flow() -> Any:
        return await speculate(slow, "a", then=then, guess=rule("a"), waste_tokens=250)

    return flow


def gives_up_waiting() -> Flow:
    async def then(desk: str) -> str:
        try:
            async with asyncio.timeout(0.2):
                return await book(desk)
        except TimeoutError:
            return await book("late")

    async def flow() -> Any:
        return await speculate(slow, "a", then=then, guess=rule("a"))

    return flow


def timed_out() -> Flow:
    async def slowly(desk: str) -> str:
        await sleep(5)
        return await book(desk)

    async def flow() -> Any:
        try:
            async with asyncio.timeout(1):
                return await speculate(pick, "a", then=slowly, guess=rule("a"))
        except TimeoutError:
            return await book("late")

    return flow


@pytest.mark.parametrize(
    "program",
    [
        right,
        wrong,
        nested,
        in_branches,
        failing,
        stopped,
        judged,
        sends,
        out_of_budget,
        gives_up_waiting,
        timed_out,
    ],
)
def test_cut_anywhere_and_resumed_it_comes_to_the_same(program: Callable[[], Flow]):
    full = cut_anywhere(program())
    assert any(isinstance(each.event, Guessed) for each in full.envelopes)


def test_a_recorded_guess_is_followed_again_whatever_is_guessed_by_now():
    """Effects that followed on it must not come twice."""
    guesses = iter("ab")

    async def flow() -> Any:
        return await speculate(pick, "a", then=booked, guess=lambda _: next(guesses))

    full = play(flow)
    cut = next(
        e.seq
        for e in full.envelopes
        if isinstance(e.event, CallStarted) and e.event.preview == "and a"
    )
    again = resume(flow, full, cut)
    assert again.value == full.value
    assert again.effects == ["and a"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_faster_no_wrong_guess_has_effects(seed: int):
    random = Random(seed)
    charged.clear()

    @step(pure=True)
    async def decide(question: str) -> str:
        await asyncio.sleep(random.random())
        return question

    async def then(desk: str) -> str:
        await sleep(random.random())
        await charge(desk)
        await sleep(random.random())
        return await charge(desk)

    async def one(number: int) -> str:
        guess = str(number + random.randrange(2))
        return await speculate(decide, str(number), then=then, guess=rule(guess))

    async def flow() -> Any:
        return await gather(one(number) for number in range(8))

    assert result_of(flow).tax.closes
    assert sorted(charged) == sorted([*map(str, range(8))] * 2)


@pytest.mark.parametrize("fails", [True, False])
def test_a_recorded_guess_is_followed_though_none_can_be_made_by_now(fails: bool):
    async def flow() -> Any:
        return await speculate(slow, "a", then=booked, guess=None if not fails else next)

    async def first() -> Any:
        return await speculate(slow, "a", then=booked, guess=rule("a"))

    full = play(first)
    for cut in range(3, len(full.envelopes)):
        again = resume(flow, full, cut, repeat_unknown=True)
        assert again.value == full.value, cut


def test_a_guess_that_was_cut_off_is_judged_when_it_is_resumed():
    async def flow() -> Any:
        return await speculate(slow, "a", then=answer, guess=rule("a"))

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(), log="memory", clock=VirtualClock())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.arun(flow, run_id="run"), 2)
        return (await runtime.aresume("run", flow)).tax.reuse.speculated

    told = run_virtual(main())
    assert (told.predicted, told.committed, told.wasted) == (1, 1, 0)
