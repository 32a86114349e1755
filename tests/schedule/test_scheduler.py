"""The way to an engine, on the virtual clock: who goes when, and that nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent, Retry, Runtime, ask, gather, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, TextDelta, ToolCall
from accord.errors import DeadlinePassedError, RateLimitedError
from accord.graph.build import StateGraph
from accord.graph.node import NODE_S
from accord.graph.shape import END, START
from accord.log.events import CallFinished, Envelope
from accord.log.store.memory import MemoryStore
from accord.schedule.admission import Admission
from accord.schedule.limits import Limit, Limits
from accord.schedule.line import Ask, Line
from accord.schedule.policy import POLICIES, Policy, policy_of, slo
from accord.schedule.scheduler import Scheduler
from accord.schedule.settings import Settings
from accord.schedule.ticket import Ticket
from accord.sync.actor import Actor, answering
from accord.sync.actors import actors
from accord.testing.scripted import ScriptedEngine

worker = Agent("worker", retry=Retry(attempts=3))


def test_all_agents_share_the_cool_down_that_one_was_told_of() -> None:
    """The engine says "in 10 s" once; nobody asks before."""
    times: list[float] = []

    def script(_: Any) -> Any:
        now = asyncio.get_running_loop().time()
        times.append(now)
        return RateLimitedError("wait", retry_after_s=10.0) if len(times) == 1 else "ok"

    async def late(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return await worker("go")

    async def flow() -> list[str]:
        return await gather(late(float(index)) for index in range(5))

    async def main() -> Any:
        runtime = Runtime(engine=ScriptedEngine(script), log=MemoryStore(), clock=VirtualClock())
        return (await runtime.arun(flow)).output

    assert run_virtual(main()) == ["ok"] * 5
    assert times[0] == 0
    assert all(time >= 10 for time in times[1:])


def test_no_more_requests_are_at_the_engine_than_it_serves() -> None:
    at_once = 0
    peak = 0

    class Counting(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
            nonlocal at_once, peak
            at_once += 1
            peak = max(peak, at_once)
            try:
                async for piece in super().generate(request):
                    yield piece
            finally:
                at_once -= 1

    engine = Counting("ok", decode_s=1.0, capabilities=Capabilities(concurrency=2))

    async def flow() -> None:
        await gather(worker(str(index)) for index in range(6))

    async def main() -> Any:
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        return (await runtime.arun(flow)).tax

    tax = run_virtual(main())
    assert peak == 2
    assert tax.time.makespan == 3.0
    assert tax.time.queueing == 2.0
    assert tax.time.thinking == 1.0


def test_a_rate_limit_in_the_middle_pauses_the_run_and_repeats_nothing() -> None:
    """RTL-9: a 429 in task 3 of 5; the run waits and finishes, tasks 1 and 2 are not made again."""
    refused: list[str] = []

    def script(request: Any) -> Any:
        task = request.messages[-1].content
        if task == "3" and not refused:
            refused.append(task)
            return RateLimitedError("slow down", retry_after_s=7.0)
        return f"did {task}"

    async def flow() -> list[str]:
        return [await worker(str(task)) for task in range(1, 6)]

    engine = ScriptedEngine(script)

    async def main() -> Any:
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        return await runtime.arun(flow)

    result = run_virtual(main())
    assert result.output == [f"did {task}" for task in range(1, 6)]
    asked = [request.messages[-1].content for request in engine.requests]
    assert asked == ["1", "2", "3", "3", "4", "5"]
    assert result.tax.time.queueing == 7.0


def test_cancelling_a_run_stops_the_tool_that_its_agent_uses() -> None:
    """CAN-3: the tool does nothing after the cancel."""
    seen: list[str] = []

    @tool
    async def slow() -> str:
        """Work for long."""
        seen.append("began")
        await asyncio.sleep(100)
        seen.append("went on")
        return "done"

    agent = Agent("a", tools=[slow])
    asked = [ToolCall(id="1", name="slow", arguments="{}")]

    async def main() -> None:
        runtime = Runtime(engine=ScriptedEngine([asked]), log=MemoryStore(), clock=VirtualClock())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runtime.arun(agent, "go"))
            await asyncio.sleep(0.1)
            task.cancel()
        await asyncio.sleep(1000)

    run_virtual(main())
    assert seen == ["began"]


def test_usage_streamed_is_the_usage_of_the_end() -> None:
    """STR-15: what a hook sees at an agent's end is what the run reports."""

    async def main() -> tuple[Any, Any]:
        runtime = Runtime(
            engine=ScriptedEngine("four words of text", pieces=3, decode_s=1.0),
            log=MemoryStore(),
            clock=VirtualClock(),
        )
        seen: list[Any] = []
        async for item in runtime.stream(worker, "go", run_id="r"):
            if isinstance(item, Envelope) and isinstance(item.event, CallFinished):
                seen.append(item.event.usage)  # noqa: PERF401  # a hook, as a user writes it
        return seen, (await runtime.aresume("r", worker)).usage

    seen, final = run_virtual(main())
    assert final.completion > 0
    assert [usage for usage in seen if usage is not None] == [final]


# -- the scheduler itself


class Yard:
    """Requests through one scheduler; who was at the engine, from when to when."""

    def __init__(
        self,
        *,
        concurrency: int = 1,
        policy: str | Policy = "fcfs",
        limits: Limits | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.scheduler = Scheduler(
            ScriptedEngine(capabilities=capabilities or Capabilities(concurrency=concurrency)),
            Settings(policy=policy_of(policy), limits=limits),
        )
        self.sent: list[str] = []
        self.at: dict[str, float] = {}
        self.failed: dict[str, BaseException] = {}
        self.failed_at: dict[str, float] = {}

    async def job(
        self,
        name: str,
        *,
        after_s: float = 0.0,
        takes_s: float = 1.0,
        reads_s: float = 0.0,
        uses: tuple[int, int] = (0, 0),
        raises: Exception | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        **said: Any,
    ) -> None:
        await asyncio.sleep(after_s)
        loop = asyncio.get_running_loop()
        due_s = None if deadline_s is None else loop.time() + deadline_s
        asked = Ask(**{"run": name, **said}, priority=lambda: priority, deadline_s=due_s)
        try:
            async with self.scheduler.place(asked) as place:
                self.sent.append(name)
                self.at[name] = loop.time()
                await asyncio.sleep(reads_s)
                if raises is not None:
                    raise raises  # noqa: TRY301  # as an engine would
                place.warm()
                await asyncio.sleep(takes_s - reads_s)
                place.settle(*uses)
        except Exception as error:
            self.failed[name] = error
            self.failed_at[name] = loop.time()

    def run(self, *jobs: dict[str, Any]) -> Yard:
        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(self.job(**job))

        run_virtual(main())
        assert not self.scheduler._line
        assert not self.scheduler._active
        assert not len(self.scheduler._following)
        return self


def test_background_load_does_not_hold_up_what_is_urgent() -> None:
    """RTL-8: one place of 200 ms, a hundred low ones wait; a high one starts within one call."""
    low = [{"name": f"low {n}", "takes_s": 0.2, "priority": -1} for n in range(100)]
    high = {"name": "high", "after_s": 1.05, "takes_s": 0.2, "priority": 1}
    for policy in POLICIES:
        assert Yard(policy=policy).run(*low, high).at["high"] <= 1.05 + 0.2


def test_endless_urgent_requests_do_not_starve_a_low_one() -> None:
    """RTL-8: with aging, a low one is served within the time that its rank is worth."""
    high = [
        {"name": f"high {n}", "after_s": n * 0.2, "takes_s": 0.2, "priority": 2} for n in range(300)
    ]
    low = {"name": "low", "after_s": 0.1, "takes_s": 0.2}
    assert Yard(policy="priority").run(*high, low).at["low"] <= 30
    assert Yard(policy="fcfs").run(*high, low).at["low"] >= 59  # as it says


def test_all_who_ask_in_one_turn_compete() -> None:
    jobs = [{"name": name, "remaining_s": left} for name, left in (("a", 1), ("b", 3), ("c", 2))]
    assert Yard(policy="critical_path").run(*jobs).sent == ["b", "c", "a"]


def test_least_attained_lets_a_short_run_past_a_long_one() -> None:
    long = [{"name": f"long {n}", "run": "long", "takes_s": 5.0} for n in range(4)]
    short = {"name": "short", "after_s": 6.0, "run": "short"}
    assert Yard(policy="least_attained").run(*long, short).at["short"] == 10.0
    assert Yard(policy="fcfs").run(*long, short).at["short"] == 20.0


def test_budget_slows_down_who_has_used_most() -> None:
    limits = Limits(agent=Limit(tokens=1000))
    spends = [
        {"name": f"fast {n}", "agent": "fast", "prefill": 100, "uses": (100, 0)} for n in range(4)
    ]
    slow = {"name": "slow", "after_s": 0.5, "agent": "slow", "prefill": 100, "uses": (100, 0)}
    assert Yard(policy="budget", limits=limits).run(*spends, slow).sent[1] == "slow"


def test_slo_tries_fewer_at_once_and_takes_it_back_where_they_only_wait_longer() -> None:
    """An engine that is no faster with fewer."""
    jobs = [{"name": str(n), "takes_s": 3.0} for n in range(400)]
    yard = Yard(policy=slo(target_s=1.0), concurrency=16).run(*jobs)
    assert yard.scheduler._concurrency.round == 1
    assert yard.scheduler._concurrency.limit == 16
    yard = Yard(policy=slo(target_s=500.0), concurrency=16).run(*jobs)
    assert yard.scheduler._concurrency.round == 0


def test_a_policy_of_the_users_own() -> None:
    jobs = [{"name": name, "agent": name} for name in "cab"]
    policy = Policy(name="by name", key=lambda ticket, _: (float(ord(ticket.agent)),))
    assert Yard(policy=policy).run(*jobs).sent == ["a", "b", "c"]


def test_a_policy_that_fails_is_told_to_those_who_wait() -> None:
    def broken(ticket: Ticket, now_s: float) -> tuple[float, ...]:
        raise KeyError(ticket.agent)

    yard = Yard(policy=policy_of("fcfs"))
    yard.scheduler._line = Line(Policy(name="broken", key=broken))
    assert isinstance(yard.run({"name": "a"}).failed["a"], KeyError)


def test_a_cancelled_request_leaves_no_trace() -> None:
    """While it waits, in the turn in which it gets its place, and at the engine."""

    async def main(after_s: float) -> None:
        limits = Limits(run=Limit(tokens=100))
        yard = Yard(limits=limits)
        async with asyncio.TaskGroup() as group:
            group.create_task(yard.job("first", run="r", prefill=60, uses=(60, 0)))
            second = group.create_task(yard.job("second", run="r", prefill=40, takes_s=2.0))
            third = group.create_task(yard.job("third", run="r", prefill=40))
            await asyncio.sleep(after_s)
            second.cancel()
            await third
            assert yard.at["third"] == max(1.0, after_s)

    for after_s in (0.5, 1.0, 1.5):
        run_virtual(main(after_s))


def test_one_that_is_cancelled_as_a_place_becomes_free_leaves_it_to_the_next() -> None:
    async def main() -> Yard:
        yard = Yard()
        async with asyncio.TaskGroup() as group:
            async with yard.scheduler.place(Ask(run="first")):
                a = group.create_task(yard.job("a"))
                group.create_task(yard.job("b"))
                await asyncio.sleep(1.0)
            a.cancel()  # it hears of it only after it is decided who has the place
        return yard

    yard = run_virtual(main())
    assert (yard.sent, yard.at, yard.failed) == (["b"], {"b": 1.0}, {})
    assert yard.scheduler._active == 0


def test_a_lasting_policy_that_fails_leaves_nothing_behind() -> None:
    def broken(ticket: Ticket, now_s: float) -> tuple[float, ...]:
        raise KeyError(ticket.agent)

    policy = Policy(name="broken", key=broken, lasting=True)
    yard = Yard(policy=policy).run({"name": "a", "deadline_s": 9.0}, {"name": "b"})
    assert [type(yard.failed[name]) for name in "ab"] == [KeyError] * 2
    assert [each.asking for each in yard.scheduler._admission._tenures.values()] == [0, 0]


def test_our_own_faults_are_not_told_as_those_of_requests() -> None:
    async def main() -> tuple[Yard, list[Any]]:
        yard, caught = Yard(), list[Any]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: caught.append(context["exception"]))
        await yard.scheduler.start()
        works, yard.scheduler._admission.runs = yard.scheduler._admission.runs, None  # type: ignore[assignment]
        async with asyncio.TaskGroup() as group:
            group.create_task(yard.job("a"))
            await asyncio.sleep(1.0)
            yard.scheduler._admission.runs = works
            yard.scheduler.look()
        return yard, caught

    yard, caught = run_virtual(main())
    assert [type(each) for each in caught] == [TypeError]
    assert yard.sent == ["a"]


def test_the_next_decision_is_not_put_off_by_a_later_one() -> None:
    async def main() -> list[float]:
        scheduler, found = Yard().scheduler, list[float]()
        for when_s in (5.0, 9.0, 3.0):
            scheduler._wake_at(when_s)
            assert scheduler._timer is not None
            found.append(scheduler._timer.when())
        return found

    assert run_virtual(main()) == [5.0, 5.0, 3.0]


@pytest.mark.parametrize("policy", ["edf", "slo", "fcfs"])
def test_what_is_too_late_is_refused_and_not_sent(policy: str) -> None:
    yard = Yard(policy=policy).run(
        {"name": "long", "takes_s": 5.0},
        {"name": "late", "after_s": 1.0, "deadline_s": 2.0},
        {"name": "in time", "after_s": 1.0, "deadline_s": 9.0},
        {"name": "passed", "after_s": 1.0, "deadline_s": 0.0},
    )
    assert yard.sent == ["long", "in time"]
    assert [type(yard.failed[name]) for name in ("late", "passed")] == [DeadlinePassedError] * 2
    assert "'late'" not in str(yard.failed["late"])  # an agent is named, not the run


# -- what the engine refuses


def test_a_fan_out_finds_out_how_many_an_engine_takes() -> None:
    """RTL-6: three at once else 429; twenty jobs are all done, with at most ten refusals."""
    at_once = refused = 0

    class Three(ScriptedEngine):
        async def generate(self, request: Request) -> AsyncIterator[TextDelta | Reply]:
            nonlocal at_once, refused
            if at_once == 3:
                refused += 1
                raise RateLimitedError("too many")
            at_once += 1
            try:
                async for piece in super().generate(request):
                    yield piece
            finally:
                at_once -= 1

    async def flow() -> list[str]:
        return await gather(Agent(f"worker {n}")("go") for n in range(20))

    async def main() -> Any:
        engine = Three("ok", prefill_s=0.2, decode_s=1.0, capabilities=Capabilities(refuses=True))
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        return await runtime.arun(flow)

    assert run_virtual(main()).output == ["ok"] * 20
    assert refused <= 10


# -- single-flight

BRIEF = b"x" * 4096


def test_of_many_that_begin_alike_one_goes_ahead() -> None:
    cache = Capabilities(prefix_cache=True)
    alike = [
        {"name": f"a{n}", "prompt": BRIEF + b"%d" % n, "reads_s": 2.0, "takes_s": 3.0}
        for n in range(4)
    ]
    other = {"name": "other", "prompt": b"y" * 4096, "reads_s": 2.0}
    yard = Yard(capabilities=cache).run(*alike, other)
    assert [yard.at[job["name"]] for job in alike] == [0.0, 2.0, 2.0, 2.0]
    assert yard.at["other"] == 0.0
    assert set(Yard(capabilities=Capabilities()).run(*alike).at.values()) == {0.0}


def test_a_prefix_that_the_engine_has_is_not_waited_for() -> None:
    cache = Capabilities(prefix_cache=True)
    first = {"name": "first", "prompt": BRIEF + b"1", "reads_s": 2.0, "takes_s": 3.0}
    later = [
        {"name": f"l{n}", "after_s": 5.0, "prompt": BRIEF + b"%d" % n, "reads_s": 1.0}
        for n in range(2, 5)
    ]
    yard = Yard(capabilities=cache).run(first, *later)
    assert [yard.at[job["name"]] for job in later] == [5.0] * 3


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_if_the_leader_is_lost_the_next_one_leads(how: str) -> None:
    """A caller's timeout throws away nothing that others share: they go on one after another."""

    async def main() -> dict[str, float]:
        yard = Yard(capabilities=Capabilities(prefix_cache=True))
        raises = RateLimitedError("no") if how == "fails" else None
        async with asyncio.TaskGroup() as group:
            leader = group.create_task(
                yard.job("leader", prompt=BRIEF + b"0", reads_s=1.0, takes_s=9.0, raises=raises)
            )
            for n in (1, 2):
                group.create_task(
                    yard.job(f"{n}", prompt=BRIEF + b"%d" % n, reads_s=2.0, takes_s=3.0)
                )
            await asyncio.sleep(1.0)
            leader.cancel()
        return yard.at

    at = run_virtual(main())
    assert (at["leader"], at["1"], at["2"]) == (0.0, 1.0, 3.0)


def test_with_slots_followers_go_one_at_a_time_as_long_as_that_is_quicker() -> None:
    slots = Capabilities(prefix_cache=True, slots=True, concurrency=4)
    short = [
        {"name": f"s{n}", "prompt": BRIEF + b"%d" % n, "reads_s": 1.0, "takes_s": 2.0, "decode": 24}
        for n in range(3)
    ]
    assert [*Yard(capabilities=slots).run(*short).at.values()] == [0.0, 2.0, 4.0]
    long = [{**job, "decode": 2000, "uses": (1024, 2000)} for job in short]
    assert [*Yard(capabilities=slots).run(*long).at.values()] == [0.0, 1.0, 2.0]


def test_nobody_follows_a_leader_that_hangs_for_ever() -> None:
    """Nothing is known of the engine yet; then that it reads fast."""
    cache = Capabilities(prefix_cache=True)
    hangs = {"name": "hangs", "prompt": BRIEF + b"0", "reads_s": 9000.0, "takes_s": 9001.0}
    others = [
        {
            "name": f"{n}",
            "prompt": BRIEF + b"%d" % n,
            "after_s": 0.5,
            "reads_s": 2.0,
            "takes_s": 3.0,
        }
        for n in (1, 2)
    ]
    yard = Yard(capabilities=cache).run(hangs, *others)
    assert [round(yard.at[name], 3) for name in "12"] == [81.92, 83.92]
    fast = {"name": "fast", "prompt": b"y" * 4096, "reads_s": 0.1}
    yard = Yard(capabilities=cache).run(hangs, *others, fast)
    assert yard.at["1"] == 81.92  # it was told when it was sent
    yard = Yard(capabilities=cache).run(
        fast, {**hangs, "after_s": 1.0}, *({**job, "after_s": 1.5} for job in others)
    )
    assert [round(yard.at[name], 3) for name in "12"] == [6.0, 8.0]


# -- admission


def asked(admission: Admission, number: int, run: str, prompt: bytes, tokens: int) -> Ticket:
    ticket = Ticket(number=number, run=run, agent="a", prompt=prompt, prefill=tokens)
    admission.ask(ticket)
    return ticket


def held(admission: Admission) -> dict[str, int]:
    return {run: admission._held(each) for run, each in admission._tenures.items()}


def test_what_a_run_shares_is_what_its_newest_prompt_shares() -> None:
    admission = Admission(10_000)
    asked(admission, 1, "old", BRIEF + b"1", 1024)
    first = asked(admission, 2, "new", BRIEF + b"2", 1024)
    assert held(admission) == {"old": 1024, "new": 1}
    admission.answered(first, 1.0)
    asked(admission, 3, "new", b"another" * 600, 1050)
    assert held(admission) == {"old": 1024, "new": 1050}


def test_requests_side_by_side_of_one_agent_share_what_they_begin_with() -> None:
    admission = Admission(10_000)
    for number in range(3):
        asked(admission, number, "r", BRIEF + b"%d" % number, 1024)
    assert held(admission) == {"r": 1026}


def test_what_is_shared_counts_with_the_oldest_run_that_still_uses_it() -> None:
    admission = Admission(10_000)
    last = [asked(admission, n, run, BRIEF + b"%d" % n, 1024) for n, run in enumerate("abc")][-1]
    assert held(admission) == {"a": 1024, "b": 1, "c": 1}
    admission.ended("a")
    assert held(admission) == {"b": 1024, "c": 1024 - 1023}
    admission.answered(Ticket(number=1, run="b", agent="a"), 1.0)
    admission.runs([last], 100.0)  # b has made way
    assert admission._held(admission._tenures["c"]) == 1024


endings = st.binary(max_size=4).map(lambda end: bytes(each % 2 for each in end))


@given(st.lists(st.tuples(st.integers(0, 4), endings, st.booleans()), max_size=30))
def test_what_all_hold_is_never_counted_as_less_than_it_is(
    asks: list[tuple[int, bytes, bool]],
) -> None:
    """Runs begin, go on in other words, and end; each byte is counted with one of those left."""
    admission, prompts = Admission(10_000), dict[str, bytes]()
    for number, (n, end, ends) in enumerate(asks):
        run = f"run {n}"
        if ends:
            admission.ended(run)
            prompts.pop(run, None)
        else:
            prompts[run] = BRIEF[:1024] + end
            ticket = asked(admission, number, run, prompts[run], len(prompts[run]))
            admission.answered(ticket, 0.0)
        least = {each[:size] for each in prompts.values() for size in range(1, len(each) + 1)}
        assert sum(held(admission).values()) >= len(least)


def test_what_is_shared_is_counted_as_the_prompts_are() -> None:
    """A language of two tokens to four bytes."""
    admission = Admission(10_000)
    for n, run in enumerate("ab"):
        asked(admission, n, run, BRIEF + b"%d" % n, 2048)
    assert held(admission) == {"a": 2048, "b": 1}


def test_runs_that_do_not_fit_the_cache_wait_at_the_boundary_of_a_call() -> None:
    kv = Capabilities(kv_tokens=1000)

    async def main() -> dict[str, float]:
        yard = Yard(capabilities=kv)

        async def run(name: str, calls: int, priority: int = 0, after_s: float = 0.0) -> None:
            await asyncio.sleep(after_s)
            for n in range(calls):
                await yard.job(f"{name}{n}", run=name, prefill=600, priority=priority)
            yard.scheduler.ended(name)

        async with asyncio.TaskGroup() as group:
            for name, calls in (("a", 3), ("b", 2)):
                group.create_task(run(name, calls))
            group.create_task(run("urgent", 1, priority=1, after_s=0.5))
        return yard.at

    at = run_virtual(main())
    assert at == {"a0": 0.0, "urgent0": 0.5, "a1": 1.5, "a2": 2.5, "b0": 3.5, "b1": 4.5}


def test_what_runs_share_counts_once() -> None:
    kv = Capabilities(kv_tokens=3000)
    jobs = [{"name": f"r{n}", "prompt": BRIEF * 2 + b"%d" % n, "prefill": 2048} for n in range(3)]
    assert set(Yard(capabilities=kv).run(*jobs).at.values()) == {0.0}


def test_a_run_that_does_nothing_makes_way() -> None:
    kv = Capabilities(kv_tokens=1000)
    yard = Yard(capabilities=kv).run(
        {"name": "a", "prefill": 900}, {"name": "b", "prefill": 900, "after_s": 0.1}
    )
    assert yard.at["b"] == 31.0


# -- inheritance


def test_an_actor_that_is_asked_by_someone_urgent_works_at_that_priority() -> None:
    """Priority inversion: what it is at, and what waits before the urgent question, goes first."""
    clerk, noise = Agent("clerk"), Agent("noise")

    @tool
    async def look_up(what: str) -> str:
        """Look it up."""
        return await ask("clerk", what)

    boss = Agent("boss", priority=5, tools=[look_up])
    sent: list[tuple[str, int]] = []

    def script(request: Request) -> Any:
        sent.append((request.agent, request.priority))
        if request.agent == "boss" and request.messages[-1].role != "tool":
            return [ToolCall(id="1", name="look_up", arguments='{"what": "x"}')]
        return "ok"

    async def flow() -> None:
        async with actors(Actor("clerk", answering(clerk))):

            async def idle() -> Any:
                return await ask("clerk", "idle")

            async def noisy(n: int) -> Any:
                await asyncio.sleep(0)
                return await noise(str(n))

            await gather([idle(), boss("go"), *(noisy(n) for n in range(5))])

    async def main() -> None:
        engine = ScriptedEngine(script, decode_s=1.0, capabilities=Capabilities(concurrency=1))
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock())
        await runtime.arun(flow)

    run_virtual(main())
    asked = [agent for agent, _ in sent]
    assert asked.count("clerk") == asked.count("boss") == 2
    # The idle question came first, and while the clerk was at it, noise stood in the line. One may
    # go past, in the moment in which the answer is on its way.
    assert asked[: len(asked) - asked[::-1].index("boss")].count("noise") <= 1
    assert [priority for agent, priority in sent if agent == "clerk"][-1] == 5


def test_an_agent_works_at_the_priority_of_whom_it_works_for() -> None:
    seen: dict[str, int] = {}

    def script(request: Request) -> Any:
        seen.setdefault(request.agent, request.priority)
        if request.agent in ("urgent", "background") and request.messages[-1].role != "tool":
            name = f"helper_{request.agent}"
            return [ToolCall(id="1", name=name, arguments='{"task": "x"}')]
        return "ok"

    helpers = {
        name: Agent(f"helper_{name}", "Help.", priority=1) for name in ("urgent", "background")
    }
    urgent = Agent("urgent", priority=3, tools=[helpers["urgent"].as_tool()])
    background = Agent("background", priority=-2, tools=[helpers["background"].as_tool()])

    async def flow() -> None:
        await urgent("go")
        await background("go")
        await Agent("plain")("go")

    async def main() -> None:
        runtime = Runtime(engine=ScriptedEngine(script), log=MemoryStore(), clock=VirtualClock())
        await runtime.arun(flow)

    run_virtual(main())
    assert seen == {
        "urgent": 3,
        "helper_urgent": 3,
        "background": -2,
        "helper_background": 1,
        "plain": 0,
    }


def test_priority_deadline_and_budget_change_no_key() -> None:
    """A run may be resumed with others."""
    store = MemoryStore()

    async def main(agent: Agent[str], *, resumes: bool) -> Any:
        engine = ScriptedEngine("ok")
        runtime = Runtime(engine=engine, log=store, clock=VirtualClock())
        work = runtime.aresume("r", agent) if resumes else runtime.arun(agent, "x", run_id="r")
        return await work

    run_virtual(main(Agent("a"), resumes=False))
    again = Agent("a", priority=4, deadline_s=9.0, budget=5000, cheaper="mini")
    assert run_virtual(main(again, resumes=True)).output == "ok"
    assert again._version == Agent("a")._version


# -- learned ways


@pytest.mark.parametrize("policy", [slo(), policy_of("critical_path"), None])
def test_policies_that_look_ahead_are_told_what_the_last_run_took(policy: Policy | None) -> None:
    seen: list[float] = []

    def own(ticket: Ticket, now_s: float) -> tuple[float, ...]:
        seen.append(ticket.remaining_s)
        return policy.key(ticket, now_s) if policy is not None else (0.0,)

    chosen = policy_of(own) if policy is None else replace(policy, key=own)

    async def main() -> None:
        engine = ScriptedEngine("ok", decode_s=2.0)
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock(), policy=chosen)
        for _ in range(2):
            await runtime.arun(worker, "go")

    run_virtual(main())
    assert (seen[0], seen[-1]) == (0.0, 2.0)


def test_what_a_graph_declares_never_stands_beside_what_was_measured() -> None:
    """Seconds both; and of one run either all are declared or all are learned."""
    seen: dict[str, float] = {}

    class State(TypedDict, total=False):
        x: str

    def node(agent: Agent[str]) -> Any:
        async def work(state: State) -> State:
            return {"x": await agent("go")}

        return work

    def own(ticket: Ticket, _now_s: float) -> tuple[float, ...]:
        seen[ticket.agent] = ticket.remaining_s
        return (0.0,)

    def flow(*names: str) -> Any:
        graph = StateGraph(State)
        for before, name in pairwise([START, *names]):
            graph.add_node(name, node(Agent(name)))
            graph.add_edge(before, name)
        return graph.add_edge(names[-1], END).compile()

    async def main(remaining: dict[str, float] | None) -> None:
        engine = ScriptedEngine("ok", decode_s=2.0)
        runtime = Runtime(
            engine=engine,
            log=MemoryStore(),
            clock=VirtualClock(),
            policy=own,
            remaining=remaining,
        )
        await runtime.arun(flow("b", "c"), {})

    run_virtual(main(None))
    assert seen == {"b": 2 * NODE_S, "c": NODE_S}
    run_virtual(main({"b": 7.0}))
    assert seen == {"b": 7.0, "c": 0.0}


def test_the_way_to_the_end_is_read_off_the_last_run_of_the_flow() -> None:
    """The first run takes its branches as they come; the second begins with the long one."""
    store, sent = MemoryStore(), []

    async def long() -> str:
        await Agent("long")("go")
        await asyncio.sleep(10.0)
        return await Agent("after")("go")

    async def branches() -> None:
        await gather([Agent("short")("go"), Agent("short")("go"), long()])

    def script(request: Request) -> str:
        sent.append(request.agent)
        return "ok"

    async def main(policy: str) -> Any:
        engine = ScriptedEngine(script, decode_s=2.0, capabilities=Capabilities(concurrency=1))
        runtime = Runtime(engine=engine, log=store, clock=VirtualClock(), policy=policy)
        return (await runtime.arun(branches)).tax.time.makespan

    assert run_virtual(main("critical_path")) == 18.0
    assert run_virtual(main("critical_path")) == 14.0
    assert sent == ["short", "short", "long", "after", "long", "short", "short", "after"]
    assert run_virtual(main("fcfs")) == 18.0
