"""The simulated engine: its books, its clock, its cache, its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord import Agent, Runtime, gather
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Message, Reply, Request, TextDelta
from accord.engine.select import select
from accord.engine.sim.engine import Faults, SimEngine
from accord.engine.sim.presets import BYTES_S, FLOPS, PRESETS, known_profiles, profile_of
from accord.engine.sim.profile import Batch, Profile, load_profile
from accord.engine.sim.replica import Job, Replica
from accord.engine.sim.reply import minimal
from accord.errors import (
    ContextTooLongError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
    RateLimitedError,
    UsageError,
)
from accord.log.store.memory import MemoryStore

SMALL = Profile(
    name="small",
    source="made up",
    overhead_s=0.001,
    weights_s=0.005,
    token_s=0.0001,
    sequence_s=0.00002,
    kv_s=1e-7,
    attention_s=1e-8,
    window=600,
    kv_tokens=1600,
    concurrency=8,
    batch_tokens=256,
)


class StepByStep(Replica):
    """Without closed forms: a stretch is one step."""

    def _stretch_of(self, writing: Any, reading: Any) -> Any:
        stretch = super()._stretch_of(writing, reading)
        stretch.steps = 1
        return stretch


def jobs_of(seed: int, count: int = 40) -> list[tuple[float, Job]]:
    random = Random(seed)
    shared = [random.randbytes(1600) for _ in range(3)]
    jobs: list[tuple[float, Job]] = []
    at_s = 0.0
    for _ in range(count):
        at_s += random.expovariate(20)
        prompt = random.choice(shared)[: random.randrange(40, 1500)] + random.randbytes(8)
        length = random.randrange(1, 120)
        job = Job(
            prompt=prompt,
            reply=random.randbytes(length * 4),
            size=SMALL.tokens(len(prompt)),
            length=length,
            priority=random.randrange(3),
        )
        jobs.append((at_s, job))
    return jobs


def replay(replica: Replica, jobs: list[tuple[float, Job]], *, leaving: bool = False) -> None:
    for at_s, job in jobs:
        replica.advance(at_s)
        replica.submit(job, at_s)
        if leaving and job.number % 7 == 0:
            replica.cancel(jobs[job.number // 2][1])
        replica.check_integrity()
    while replica.wake_s() < float("inf"):
        replica.advance(replica.wake_s())
        replica.check_integrity()


@pytest.mark.parametrize("cache", ["blocks", "slots", "none"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_books_are_right_after_each_event(cache: Any, seed: int) -> None:
    profile = msgspec.structs.replace(
        SMALL, cache=cache, kv_tokens=Random(seed).choice([640, 4096])
    )
    replica = Replica(profile)
    replay(replica, jobs_of(seed), leaving=True)
    assert not replica.running
    assert not replica.waiting
    assert replica.load == 0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_the_closed_form_is_what_the_steps_add_up_to(seed: int) -> None:
    """Each token of each job at the same time, whether steps are summed up or done one by one."""
    fast, slow = Replica(SMALL), StepByStep(SMALL)
    ours, theirs = jobs_of(seed), jobs_of(seed)
    replay(fast, ours)
    replay(slow, theirs)
    for (_, mine), (_, other) in zip(ours, theirs, strict=True):
        assert mine.first_s == pytest.approx(other.first_s, abs=1e-6)
        assert mine.ended_s == pytest.approx(other.ended_s, abs=1e-6)
        assert mine.hit == other.hit
    assert fast.counters.steps == slow.counters.steps
    assert fast.counters.prefilled == slow.counters.prefilled
    assert fast.counters.stretches < slow.counters.stretches


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 10_000), st.floats(0.001, 30))
def test_steps_begun_by_a_time_are_the_most_that_fit(
    prefill: int, sequences: int, resident: int, seconds: float
) -> None:
    batch = Batch(prefill=prefill, before=100.0, sequences=sequences, resident=resident)
    steps = SMALL.steps_begun(batch, seconds)
    assert SMALL.steps_s(batch, steps) >= seconds or steps == 1
    assert steps == 1 or SMALL.steps_s(batch, steps - 1) < seconds


def request(text: str, **options: Any) -> Request:
    return Request(messages=(Message("user", text),), agent="a", **options)


async def ask(engine: SimEngine, asked: Request) -> tuple[Reply, float, float]:
    """The reply, and when its first token and its end came."""
    loop = asyncio.get_running_loop()
    first_s = 0.0
    async for piece in engine.generate(asked):
        if isinstance(piece, TextDelta):
            first_s = first_s or loop.time()
        else:
            return piece, first_s, loop.time()
    raise AssertionError("no reply")


def at_once(*asked: Request, engine: SimEngine) -> list[tuple[Reply, float, float]]:
    async def main() -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(engine, each)) for each in asked]
        engine.check_integrity()
        return [task.result() for task in tasks]

    return run_virtual(main())


def test_who_begins_alike_shares_blocks_and_the_time_to_read_them() -> None:
    engine = SimEngine(SMALL, replies=lambda *_: 10)
    brief = "x" * 1600
    (cold, cold_s, _), (warm, warm_s, _) = at_once(request(brief), request(brief), engine=engine)
    assert cold.usage is not None
    assert warm.usage is not None
    assert cold.usage.cached == 0
    assert warm.usage.cached >= 240  # what the first step has read when the second is taken in
    assert warm_s < 2 * cold_s
    assert engine.counters().recomputed == 0


def test_a_stretch_takes_the_time_that_its_profile_says() -> None:
    engine = SimEngine(SMALL, replies=lambda *_: 21)
    [(reply, first_s, end_s)] = at_once(request("x" * 391), engine=engine)  # 100 tokens
    assert reply.usage is not None
    assert reply.usage.prompt == 103
    reading = Batch(prefill=103)
    assert first_s == pytest.approx(SMALL.step_s(reading))
    writing = Batch(sequences=1, resident=103)
    assert end_s - first_s == pytest.approx(SMALL.steps_s(writing, 20))


def test_without_room_the_last_of_the_least_urgent_is_preempted_and_computed_anew() -> None:
    tight = msgspec.structs.replace(SMALL, kv_tokens=640)
    engine = SimEngine(tight, replies=lambda *_: 200)
    asked = [request(f"{n}" * 600, priority=5 if n == 3 else 0) for n in range(4)]
    replies = at_once(*asked, engine=engine)
    counters = engine.counters()
    assert counters.preemptions > 0
    assert counters.recomputed > 0
    assert all(reply.usage and reply.usage.completion == 200 for reply, _, _ in replies)
    assert replies[3][2] == min(end_s for _, _, end_s in replies)


def test_the_more_urgent_are_taken_in_first() -> None:
    one = msgspec.structs.replace(SMALL, concurrency=1)
    engine = SimEngine(one, replies=lambda *_: 50)
    ends = [
        end_s
        for _, _, end_s in at_once(
            request("first"),
            request("idle", priority=-1),
            request("urgent", priority=1),
            engine=engine,
        )
    ]
    assert ends[0] < ends[2] < ends[1]


def test_replicas_go_by_prefix_and_by_load() -> None:
    engine = SimEngine(SMALL, replicas=2, replies=lambda *_: 5)

    async def main() -> list[int]:
        a, b = "a" * 1200, "b" * 1200
        async with asyncio.TaskGroup() as group:
            for text in (a, b):
                group.create_task(ask(engine, request(text)))
        cached = []
        for text in (b, a, b, a):
            reply, _, _ = await ask(engine, request(text))
            assert reply.usage is not None
            cached.append(reply.usage.cached)
        return cached

    assert run_virtual(main()) == [304] * 4


def test_a_request_that_is_given_up_leaves_its_place_and_its_cache() -> None:
    one = msgspec.structs.replace(SMALL, concurrency=1)
    engine = SimEngine(one, replies=lambda *_: 300)

    async def main() -> Reply:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(engine, request("x" * 1200))
        reply, _, _ = await ask(engine, request("x" * 1200 + "more"))
        engine.check_integrity()
        return reply

    reply = run_virtual(main())
    assert reply.usage is not None
    assert reply.usage.cached >= 288


@pytest.mark.parametrize(
    ("faults", "raised"),
    [
        (Faults(refused=1), RateLimitedError),
        (Faults(error=1), EngineUnavailableError),
        (Faults(timeout=1), EngineTimeoutError),
        (Faults(disconnect=1), EngineUnavailableError),
    ],
)
def test_drawn_faults_are_the_engine_errors_that_they_stand_for(
    faults: Faults, raised: type[EngineError]
) -> None:
    async def main() -> None:
        with pytest.raises(raised):
            await ask(SimEngine(SMALL, faults=faults), request("go"))

    run_virtual(main())


def test_a_slow_request_is_held_back_before_it_begins() -> None:
    engine = SimEngine(SMALL, replies=lambda *_: 5, faults=Faults(slow=1, slow_s=30))
    [(_, first_s, end_s)] = at_once(request("go"), engine=engine)
    assert first_s > 30
    assert end_s - first_s < 1


def campaign(seed: int) -> tuple[float, bytes]:
    """A team on an engine that fails now and then: makespan, and the log."""
    engine = SimEngine(
        SMALL,
        seed=seed,
        faults=Faults(slow=0.1, slow_s=5, refused=0.1, error=0.1, disconnect=0.1),
    )
    worker = Agent("worker", "Work.", max_tokens=60)

    async def flow() -> list[str]:
        return await gather(worker(f"part {n}") for n in range(12))

    async def main() -> Any:
        runtime = Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock(), seed=seed)
        result = await runtime.arun(flow, run_id="r")
        assert result.tax.closes
        return result.tax.time.makespan, msgspec.json.encode(result.log.envelopes)

    return run_virtual(main())


def test_the_same_seed_gives_the_same_log_byte_for_byte() -> None:
    assert campaign(1) == campaign(1)
    assert campaign(1) != campaign(2)


def test_replies_depend_on_the_request_and_not_on_what_others_ask() -> None:
    alone = SimEngine(SMALL, seed=3)
    busy = SimEngine(SMALL, seed=3)
    [(mine, _, _)] = at_once(request("mine"), engine=alone)
    replies = at_once(request("other"), request("mine"), request("mine"), engine=busy)
    assert replies[1][0].text == mine.text
    assert replies[2][0].text != mine.text  # asked again, it samples again


def test_drawn_by_agent_a_reply_is_the_same_whatever_it_was_asked_and_however_often() -> None:
    engines = [SimEngine(SMALL, seed=3, draw_by="agent") for _ in range(2)]
    [(short, _, _)] = at_once(request("short"), engine=engines[0])
    replies = at_once(request("longer"), request("longer"), request("more"), engine=engines[1])
    assert replies[0][0].text == replies[1][0].text == short.text
    assert replies[2][0].text != short.text


def test_it_says_of_itself_what_the_scheduler_has_to_know() -> None:
    async def main(cache: Any) -> Any:
        return await SimEngine(msgspec.structs.replace(SMALL, cache=cache)).start()

    blocks, slots, none = (run_virtual(main(cache)) for cache in ("blocks", "slots", "none"))
    assert (blocks.prefix_cache, blocks.slots) == (True, False)
    assert (slots.prefix_cache, slots.slots) == (True, True)
    assert not none.prefix_cache


def test_a_cache_of_broken_blocks_does_not_hang() -> None:
    """Its last half block holds nothing."""
    broken = msgspec.structs.replace(SMALL, kv_tokens=330)
    engine = SimEngine(broken, replies=lambda *_: Reply(text="x" * 4000))
    [(reply, _, _)] = at_once(request("x" * 1200), engine=engine)
    assert reply.usage is not None
    assert reply.usage.prompt + reply.usage.completion <= 320


def test_a_reply_follows_the_schema_and_the_limit() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    [(reply, _, _), (cut, _, _)] = at_once(
        request("a", schema=schema), request("b", max_tokens=7), engine=SimEngine(SMALL, seed=1)
    )
    assert msgspec.json.decode(reply.text) == {"n": 0}
    assert cut.usage is not None
    assert cut.usage.completion <= 7


def test_a_prompt_larger_than_the_cache_is_refused_with_both_sizes() -> None:
    tight = msgspec.structs.replace(SMALL, kv_tokens=320)

    async def main() -> None:
        with pytest.raises(ContextTooLongError, match=r"holds 320 tokens .* has 40\d"):
            await ask(SimEngine(tight), request("x" * 1600))

    run_virtual(main())


def test_no_preset_is_faster_than_its_hardware() -> None:
    for name, cards, parameters in (("8b", 1, 8.03e9), ("70b", 4, 70.6e9)):
        profile = PRESETS[name]
        assert profile.token_s > 2 * parameters / (FLOPS * cards)
        assert profile.weights_s > 2 * parameters / (BYTES_S * cards)


def write(path: Path, **changes: Any) -> Path:
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(SMALL) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_s": -1}, "token_s is a time of at least 1e-9, not -1"),
        ({"kv_s": -0.1}, "kv_s is a time of at least 0"),
        ({"concurrency": 0}, "concurrency is at least 1"),
        ({"kv_tokens": 8}, "less than a block"),
        ({"cache": "magic"}, "cache"),
        ({"bytes_a_token": 0}, "bytes_a_token"),
        ({"speed": 3}, "speed"),
    ],
)
def test_a_profile_that_cannot_be_says_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_profile(write(tmp_path / "p.json", **changes))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("sim:nowhere.json", "there is no profile"),
        ("sim:/", "cannot be read"),
    ],
)
def test_an_engine_spec_without_a_profile_is_refused(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        select(spec)


def test_a_profile_is_named_or_in_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.json")
    assert select(f"sim:{path}").name == f"sim:{path}"
    assert select("sim").name == "sim:70b"
    for name in known_profiles():
        assert profile_of(name).token_s > 0
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(UsageError, match="no profile of an engine"):
        load_profile(tmp_path / "torn.json")
    with pytest.raises(UsageError, match="takes no model"):
        select("sim", model="x")


@pytest.mark.parametrize("make", [lambda: Faults(slow=0.6, error=0.6), lambda: Faults(error=-1)])
def test_faults_that_cannot_be_are_refused(make: Callable[[], Faults]) -> None:
    with pytest.raises(UsageError, match="shares of faults"):
        make()


def test_it_takes_at_least_one_replica() -> None:
    with pytest.raises(UsageError, match="at least one replica"):
        SimEngine(SMALL, replicas=0)


def spoil_blocks(replica: Replica) -> None:
    replica.kv.tree.blocks += 1  # type: ignore[attr-defined]


def spoil_reserved(replica: Replica) -> None:
    replica.kv.tree.reserved += 1  # type: ignore[attr-defined]


def spoil_load(replica: Replica) -> None:
    replica.load -= 1


def spoil_holding(replica: Replica) -> None:
    holding = replica.running[0].holding
    assert holding is not None
    holding.own = 0


def spoil_holders(replica: Replica) -> None:
    holding = replica.running[0].holding
    assert holding is not None
    assert holding.node is not None
    holding.node.holders = 0


@pytest.mark.parametrize(
    "spoil", [spoil_blocks, spoil_reserved, spoil_load, spoil_holding, spoil_holders]
)
def test_books_that_are_wrong_are_found_out(spoil: Callable[[Replica], None]) -> None:
    """``check_integrity`` checks: each figure, changed by one, is noticed."""
    replica = Replica(SMALL)
    for at_s, job in jobs_of(1, 6):
        replica.advance(at_s)
        replica.submit(job, at_s)
    replica.advance(at_s + 0.02)
    replica.check_integrity()
    spoil(replica)
    with pytest.raises(AssertionError):
        replica.check_integrity()


@pytest.mark.parametrize("at_s", [1e3, 1e7])
def test_it_works_however_late_it_is(at_s: float) -> None:
    """A float of so many seconds knows no nanoseconds."""

    async def main() -> float:
        await asyncio.sleep(at_s)
        engine = SimEngine(SMALL, replies=lambda *_: 30)
        async with asyncio.TaskGroup() as group:
            for n in range(6):
                group.create_task(ask(engine, request(f"late {n}")))
        return asyncio.get_running_loop().time()

    assert at_s < run_virtual(main()) < at_s + 10


@pytest.mark.parametrize("rate", [3.28, 4.6, 4.64])
def test_a_text_that_is_not_cut_comes_whole(rate: float) -> None:
    profile = msgspec.structs.replace(SMALL, bytes_a_token=rate)
    texts = ["x" * size + "\ud800" for size in range(260)]
    engine = SimEngine(profile, replies=lambda asked, _: texts[int(asked.messages[0].content)])
    replies = at_once(*(request(str(n)) for n in range(len(texts))), engine=engine)
    assert [reply.text for reply, _, _ in replies] == texts
    assert {reply.finish_reason for reply, _, _ in replies} == {"stop"}


SCHEMAS: list[tuple[dict[str, Any], Any]] = [
    ({"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": False}, [0, None]),
    ({"type": "array", "items": True}, [None]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 2**-10),
    ({"type": "integer", "maximum": -5}, -5),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": 1}, 3),
    ({"type": "string", "format": "date-time"}, "2030-01-01T00:00:00Z"),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 7}}}, 7),
    ({"$ref": "#/nowhere"}, None),
]


@pytest.mark.parametrize(("schema", "value"), SCHEMAS)
def test_the_smallest_value_is_one_that_the_schema_allows(
    schema: dict[str, Any], value: Any
) -> None:
    assert minimal(schema) == value


def test_a_schema_that_needs_itself_ends() -> None:
    endless: dict[str, Any] = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}},
                "required": ["next"],
            }
        },
    }
    assert minimal(endless)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Faults(slow=float("nan")),
        lambda: Faults(slow=1, slow_s=float("inf")),
        lambda: SimEngine(SMALL, replicas=2.5),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()
