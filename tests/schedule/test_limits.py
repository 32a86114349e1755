"""Limits on a rate, and an agent's budget with its ladder: never overspent, always accounted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent, Blackboard, Runtime, gather
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, Usage
from accord.errors import BudgetExceededError, RateLimitedError, UsageError
from accord.log.events import (
    NOTHING,
    AttemptFailed,
    CallCancelled,
    CallFailed,
    CallFinished,
    CallStarted,
    Envelope,
    ErrorRecord,
)
from accord.log.store.memory import MemoryStore
from accord.schedule.budget import Budget, Spending
from accord.schedule.limits import Limit, Limits
from accord.schedule.line import Ask
from accord.schedule.scheduler import Scheduler
from accord.schedule.settings import Settings
from accord.testing.scripted import ScriptedEngine


def work(flow: Any, engine: ScriptedEngine, *inputs: Any, **options: Any) -> Any:
    async def main() -> Any:
        runtime = Runtime(
            engine=engine,
            clock=VirtualClock(),
            **{"log": MemoryStore(), **options},
        )
        return await runtime.arun(flow, *inputs, run_id="r")

    return run_virtual(main())


def dispatched(limits: Limits, jobs: list[tuple[float, int, int]]) -> list[tuple[float, int]]:
    """When requests of so many tokens went out; each is (asked at, reserved, used)."""
    sent: list[tuple[float, int]] = []

    async def job(scheduler: Scheduler, after_s: float, reserved: int, used: int) -> None:
        await asyncio.sleep(after_s)
        asked = Ask(run="r", agent="a", prefill=reserved)
        async with scheduler.place(asked) as place:
            entry = asyncio.get_running_loop().time(), used
            sent.append(entry)
            await asyncio.sleep(1.0)
            place.settle(used, 0)

    async def main() -> None:
        scheduler = Scheduler(ScriptedEngine(), Settings(limits=limits))
        async with asyncio.TaskGroup() as group:
            for each in jobs:
                group.create_task(job(scheduler, *each))

    run_virtual(main())
    return sent


def test_requests_that_go_out_together_stay_within_the_limit() -> None:
    """RTL-1: 100 tokens a minute, 58/80/175/175/175 at once. Larger than all: alone."""
    limits = Limits(agent=Limit(tokens=100, patience_s=1000))
    sent = dispatched(limits, [(0.0, size, size) for size in (58, 80, 175, 175, 175)])
    assert sent == [(0.0, 58), (60.0, 80), (120.0, 175), (180.0, 175), (240.0, 175)]


sizes = st.integers(1, 60)


@given(st.lists(st.tuples(st.integers(0, 20).map(float), sizes, sizes), max_size=10))
def test_a_limit_is_never_overspent(jobs: list[tuple[float, int, int]]) -> None:
    """In no window is more sent than the limit, as long as requests use what they said."""
    honest = [(at_s, max(a, b), min(a, b)) for at_s, a, b in jobs]
    limit = Limit(tokens=100, requests=4, per_s=10.0, patience_s=10_000)
    sent = dispatched(Limits(run=limit), honest)
    assert len(sent) == len(jobs)
    for begin, _ in sent:
        within = [used for at_s, used in sent if begin <= at_s < begin + 10.0]
        assert sum(within) <= 100
        assert len(within) <= 4


def test_what_was_used_beyond_what_was_reserved_is_charged() -> None:
    """An engine that lies about usage: the next one waits for it."""
    limits = Limits(agent=Limit(tokens=100))
    assert dispatched(limits, [(0.0, 10, 99), (2.0, 10, 10)]) == [(0.0, 99), (60.0, 10)]


def test_nobody_goes_past_one_that_waits_for_room() -> None:
    """Else a stream of small ones would starve a large one."""
    jobs = [(0.0, 60, 60), (1.0, 80, 80), *((2.0 + n, 20, 20) for n in range(5))]
    sent = dispatched(Limits(agent=Limit(tokens=100, patience_s=1000)), jobs)
    assert sent[1] == (60.0, 80)


def test_a_wait_longer_than_the_patience_is_refused_with_its_end() -> None:
    """RTL-1: the error says what is left, and when there is room."""
    writer = Agent("writer", max_tokens=50)
    limits = Limits(agent=Limit(tokens=100, per_s=3600))

    async def flow() -> Any:
        return await gather([writer("a"), writer("b")], policy="isolate")

    reply = Reply(text="ok", usage=Usage(prompt=10, completion=50))
    first, second = work(flow, ScriptedEngine(reply, decode_s=60.0), limits=limits).output
    assert first == "ok"
    assert isinstance(second, BudgetExceededError)
    assert (second.left, second.resets_in_s) == (40, 3540.0)
    assert "agent 'writer'" in str(second)


def test_limits_of_a_run_end_with_it_and_those_of_a_tenant_do_not() -> None:
    writer = Agent("writer", max_tokens=90)
    reply = Reply(text="ok", usage=Usage(prompt=10, completion=90))

    async def main(limits: Limits) -> float:
        runtime = Runtime(
            engine=ScriptedEngine(reply), log=MemoryStore(), clock=VirtualClock(), limits=limits
        )
        for name in "ab":
            await runtime.arun(writer, "go", run_id=name)
        return asyncio.get_running_loop().time()

    limit = Limit(tokens=100)
    assert run_virtual(main(Limits(run=limit))) == 0.0
    assert run_virtual(main(Limits(tenant=limit))) == 60.0


def test_a_limit_counts_over_all_engines() -> None:
    reply = Reply(text="ok", usage=Usage(prompt=10, completion=90))
    other = Agent("b", max_tokens=90, engine=ScriptedEngine(reply))

    async def flow() -> float:
        await gather([Agent("a", max_tokens=90)("go"), other("go")])
        return asyncio.get_running_loop().time()

    limits = Limits(run=Limit(tokens=100))
    assert work(flow, ScriptedEngine(reply), limits=limits).output == 60.0


def go(jobs: list[tuple[float, str, str, int, float]], limits: Limits, **options: Any) -> Any:
    """When each was sent, or refused; each is (asked at, run, agent, tokens, takes)."""
    sent: list[float | BudgetExceededError] = []

    async def job(scheduler: Scheduler, n: int, after_s: float, *asked: Any) -> None:
        run, agent, tokens, takes_s = asked
        await asyncio.sleep(after_s)
        try:
            async with scheduler.place(Ask(run=run, agent=agent, prefill=tokens)) as place:
                sent[n] = asyncio.get_running_loop().time()
                await asyncio.sleep(abs(takes_s))
                if takes_s < 0:
                    raise RateLimitedError("no")  # noqa: TRY301  # as an engine would
                place.settle(tokens, 0)
        except RateLimitedError:
            pass
        except BudgetExceededError:
            sent[n] = -asyncio.get_running_loop().time()

    async def main() -> None:
        engine = ScriptedEngine(capabilities=Capabilities(**options))
        scheduler = Scheduler(engine, Settings(limits=limits))
        async with asyncio.TaskGroup() as group:
            for n, each in enumerate(jobs):
                sent.append(-1.0)
                group.create_task(job(scheduler, n, *each))

    run_virtual(main())
    return sent


def test_a_request_that_came_to_nothing_was_one() -> None:
    """Its tokens are given back."""
    limits = Limits(agent=Limit(requests=2, tokens=100, per_s=10.0))
    jobs = [(float(n), "r", "a", 80, -0.5) for n in range(3)]
    assert go(jobs, limits) == [0.0, 1.0, 10.0]


def test_patience_ends_also_while_no_place_is_free() -> None:
    limits = Limits(agent=Limit(tokens=100, patience_s=5.0))
    jobs = [(0.0, "r", "a", 90, 100.0), (1.0, "r", "a", 90, 1.0)]
    for concurrency in (1, 2):
        assert go(jobs, limits, concurrency=concurrency) == [0.0, -6.0]


def test_nobody_goes_past_one_that_waits_for_several_limits() -> None:
    agent, run = Limit(tokens=100), Limit(tokens=100, per_s=120.0)
    jobs = [
        (0.0, "r", "a", 60, 1.0),
        (1.0, "r", "a", 60, 1.0),
        (2.0, "q", "a", 40, 1.0),
    ]
    assert go(jobs, Limits(agent=agent, run=run)) == [0.0, 120.0, 120.0]


def test_limits_last_over_the_loops_of_sync_runs() -> None:
    limits = Limits(tenant=Limit(requests=1, patience_s=0.0))
    runtime = Runtime(engine=ScriptedEngine("ok"), log=MemoryStore(), limits=limits)
    runtime.run(Agent("a"), "go")
    with pytest.raises(BudgetExceededError):
        runtime.run(Agent("a"), "go")


def test_a_virtual_loop_that_begins_anew_owes_nothing() -> None:
    limits = Limits(agent=Limit(tokens=100))
    jobs = [(n * 5.0, "r", "a", 60, 1.0) for n in range(2)]
    assert [go(jobs, limits) for _ in range(2)] == [[0.0, 60.0]] * 2


@pytest.mark.parametrize(("tenants", "ends_s"), [("aa", 60.0), ("ab", 0.0)])
def test_runtimes_given_the_same_limits_share_those_of_a_tenant(
    tenants: str, ends_s: float
) -> None:
    limits = Limits(tenant=Limit(requests=1))

    async def main() -> float:
        for tenant in tenants:
            runtime = Runtime(
                engine=ScriptedEngine("ok"),
                log=MemoryStore(),
                clock=VirtualClock(),
                limits=limits,
                tenant=tenant,
            )
            await runtime.arun(Agent("a"), "go")
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == ends_s


def test_room_that_one_scheduler_gives_back_is_had_by_another() -> None:
    limits = Limits(agent=Limit(tokens=100))

    async def job(used: int) -> float:
        scheduler = Scheduler(ScriptedEngine(), Settings(limits=limits))
        async with scheduler.place(Ask(agent="a", prefill=100)) as place:
            at_s = asyncio.get_running_loop().time()
            await asyncio.sleep(7.0)
            place.settle(used, 0)
        return at_s

    async def main() -> list[float]:
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(job(0)) for _ in range(2)]
        return [each.result() for each in jobs]

    assert run_virtual(main()) == [0.0, 7.0]


@pytest.mark.parametrize(
    "options", [{}, {"tokens": 0}, {"requests": -1}, {"tokens": 1.5}, {"tokens": 1, "per_s": 0}]
)
def test_a_limit_of_nothing_is_none(options: Any) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Limit(**options)


# -- the budget of an agent, and its ladder


class Spender(ScriptedEngine):
    """Uses all that it may: ten tokens of prompt, and ``max_tokens``."""

    def __init__(self, **options: Any) -> None:
        def script(request: Request) -> Reply:
            usage = Usage(prompt=10, completion=request.max_tokens or 0)
            return Reply(text="word", usage=usage)

        super().__init__(script, decode_s=1.0, **options)


def test_the_ladder_is_taken_a_rung_at_a_time() -> None:
    """Shorter, then cheaper, then refused; and the log says on which rung each was made."""
    agent = Agent("writer", max_tokens=200, budget=500, cheaper="mini")
    failed: list[BudgetExceededError] = []

    async def flow() -> None:
        try:
            while True:
                await agent("go")
        except BudgetExceededError as error:
            failed.append(error)

    engine = Spender()
    result = work(flow, engine)
    sent = [(request.model, request.max_tokens) for request in engine.requests]
    assert sent[:3] == [(None, 200), (None, 200), (None, 79)]  # a prompt of about one token
    assert all(model == "mini" for model, _ in sent[3:])
    rungs = [e.event.rung for e in result.log.envelopes if isinstance(e.event, CallFinished)]
    assert [rung for rung in rungs if rung] == ["shorter", *["cheaper"] * len(sent[3:])]
    [error] = failed
    assert error.left is not None
    assert "budget of 500" in str(error)


def test_a_budget_is_not_overspent_by_calls_side_by_side() -> None:
    """They wait for what others have reserved, before they get less than they want."""
    agent = Agent("writer", max_tokens=100, budget=1000)

    async def flow() -> Any:
        return await gather((agent(str(n)) for n in range(20)), policy="isolate")

    engine = ScriptedEngine(Reply(text="x", usage=Usage(prompt=1, completion=60)), decode_s=1.0)
    result = work(flow, engine)
    assert result.usage.prompt + result.usage.completion <= 1000
    assert [isinstance(each, str) for each in result.output].count(True) >= 16 - 1
    assert isinstance(result.output[-1], BudgetExceededError)


def test_a_reply_that_must_be_json_is_not_cut() -> None:
    agent = Agent("writer", output=list[int], max_tokens=200, budget=150)
    with pytest.raises(BudgetExceededError, match="at least 20"):
        work(agent, Spender(), "go")


def test_what_others_wrote_is_summarised_before_a_request_is_refused() -> None:
    board = Blackboard()
    reader = Agent("reader", reads="notes", max_tokens=64, budget=700)

    async def flow() -> str:
        for n in range(4):
            board.append("notes", f"Note {n}. " + "The harbour is old and wide. " * 60)
        return await reader("go")

    engine = ScriptedEngine("ok")
    assert work(flow, engine).output == "ok"
    assert sum(len(message.content) for message in engine.requests[0].messages) < 4 * 600


def test_a_budget_goes_on_where_it_was_after_a_resume() -> None:
    """It is read off the log: what an earlier process has used is used."""
    store, agent = MemoryStore(), Agent("writer", max_tokens=64, budget=200)
    broken = True

    async def flow() -> str:
        await agent("one")
        if broken:
            raise RuntimeError("stop")
        await agent("two")
        return await agent("three")

    async def main(*, resumes: bool) -> Any:
        runtime = Runtime(engine=Spender(), log=store, clock=VirtualClock())
        return await (runtime.aresume("r", flow) if resumes else runtime.arun(flow, run_id="r"))

    with pytest.raises(RuntimeError):
        run_virtual(main(resumes=False))
    broken = False
    with pytest.raises(BudgetExceededError):
        run_virtual(main(resumes=True))
    agent = Agent("writer", max_tokens=64, budget=400)
    assert run_virtual(main(resumes=True)).output == "word"


def test_a_cut_reply_changes_nothing_that_is_recorded_as_asked() -> None:
    agent = Agent("writer", max_tokens=200, budget=150)
    result = work(agent, Spender(), "go")
    [asked] = [
        result.log.values.decode(e.event.input)[0]
        for e in result.log.envelopes
        if isinstance(e.event, CallStarted) and e.event.kind == "request"
    ]
    assert asked.max_tokens == 200


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0},
        {"budget": -5},
        {"deadline_s": 0},
        {"deadline_s": -1.0},
        {"priority": 1.5},
        {"priority": True},
        {"cheaper": "mini"},
    ],
)
def test_terms_that_cannot_be_are_refused_when_the_agent_is_made(options: Any) -> None:
    with pytest.raises(UsageError, match="agent 'a'"):
        Agent("a", **options)


def test_agents_of_one_name_share_what_is_used_each_up_to_its_own_budget() -> None:
    small, large = (Agent("writer", max_tokens=100, budget=n) for n in (250, 480))

    async def flow() -> Any:
        return await gather(
            [agent("go") for _ in range(4) for agent in (large, small)], policy="isolate"
        )

    result = work(flow, Spender())
    assert 400 <= result.usage.prompt + result.usage.completion <= 480 + 5 * 9


def test_spending_is_known_as_of_any_event_and_on_which_model_also_of_what_failed() -> None:
    usage = Usage(prompt=10, completion=90)
    error = ErrorRecord(type="builtins:ValueError", message="x")
    events = [
        CallStarted(kind="request", name="a", key=""),
        AttemptFailed(call=0, attempt=1, error=error, retry_in_s=0.0, usage=usage, rung="cheaper"),
        CallFinished(call=0, output=NOTHING, usage=usage),
        CallStarted(kind="request", name="a", key=""),
        CallCancelled(call=3, usage=usage, rung="cheaper"),
        CallStarted(kind="request", name="b", key=""),
        CallFailed(call=5, error=error),
    ]
    spending = Spending()
    for seq, event in enumerate(events):
        spending.add(Envelope(seq, 0, "", (), event))
    assert [spending.used("a", 0.5, n) for n in range(6)] == [0.0, 0.0, 50.0, 150.0, 150.0, 200.0]
    assert (spending.used("a", None), spending.used("b", None)) == (300.0, 0.0)
    assert not spending._agents


def test_an_engine_that_claims_too_much_is_charged_what_it_claims() -> None:
    agent = Agent("writer", max_tokens=100, budget=1000)
    lie = Reply(text="x", usage=Usage(prompt=900, completion=5000))

    async def flow() -> str:
        await agent("one")
        return await agent("two")

    with pytest.raises(BudgetExceededError, match="0 are left"):
        work(flow, ScriptedEngine(lie))


def test_a_budget_of_a_piece_of_work_says_what_is_left() -> None:
    budget = Budget(100, "node 'a'")
    budget.settle(70)
    with pytest.raises(BudgetExceededError) as caught, budget.reserved(31, "a request"):
        pass
    assert caught.value.left == 30


@pytest.mark.parametrize("limits", [5, Limit(tokens=500), {"run": 5}])
def test_limits_of_another_kind_are_refused_before_a_run(limits: Any) -> None:
    with pytest.raises(UsageError, match="limits is a Limits"):
        Runtime(engine=ScriptedEngine("ok"), log=MemoryStore(), limits=limits)
    with pytest.raises(UsageError, match="takes a Limit"):
        Limits(run=limits if limits == 5 else 7)  # type: ignore[arg-type]
