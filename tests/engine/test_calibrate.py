"""Fitting finds the profile that points were made of; measuring finds out what an engine shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.clock import run_virtual
from accord.engine.base import Capabilities, Reply, Usage
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.fit import TIMES, Known, error_of, fit, predicted
from accord.engine.sim.measure import Measured, Reading, Writing, measure
from accord.engine.sim.profile import Profile
from accord.errors import EngineProtocolError, UsageError
from accord.testing.scripted import ScriptedEngine

KNOWN = Known(name="again", source="a test", machine="none")

LLAMA = Profile(
    name="like llama.cpp",
    template_tokens=12,
    source="made up",
    overhead_s=0.004,
    weights_s=0.016,
    token_s=0.003,
    sequence_s=0.002,
    kv_s=2e-6,
    attention_s=4e-7,
    request_s=0.01,
    window=8192,
    kv_tokens=4 * 8192,
    concurrency=4,
    cache="slots",
)
PAGED = msgspec.structs.replace(
    LLAMA, name="like vLLM", cache="blocks", block_tokens=64, token_s=0.0006
)


def points(profile: Profile, noise: Callable[[], float] = lambda: 1.0) -> Measured:
    readings = [
        Reading(tokens=tokens, before=before, seconds=1.0, held_out=tokens == 700)
        for tokens in (2, 8, 60, 250, 700, 1500, 3000)
        for before in (0, 500, 2000)
    ]
    writings = [
        Writing(sequences=n, context=n * each, seconds=1.0, held_out=n == 3)
        for n in (1, 2, 3, 4, 8)
        for each in (60, 900, 3000)
    ]

    def timed(point: Reading | Writing) -> float:
        return predicted(profile, point) * noise()

    return Measured(
        engine="made up",
        model="",
        readings=tuple(msgspec.structs.replace(r, seconds=timed(r)) for r in readings),
        writings=tuple(msgspec.structs.replace(w, seconds=timed(w)) for w in writings),
        prompts=((400, 120), (4000, 1020), (800, 220)),
        concurrency=profile.concurrency,
        cache=profile.cache,
        block_tokens=profile.block_tokens,
        window=profile.window,
        kv_tokens=profile.kv_tokens,
    )


times = st.floats(min_value=1e-3, max_value=0.1)
tiny = st.one_of(st.just(0.0), st.floats(min_value=1e-8, max_value=1e-5))


@settings(max_examples=30, deadline=None)
@given(
    overhead_s=st.one_of(st.just(0.0), times),
    token_s=st.floats(min_value=1e-4, max_value=0.01),
    sequence_s=st.one_of(st.just(0.0), times),
    kv_s=tiny,
    attention_s=tiny,
    request_s=st.one_of(st.just(0.0), times),
    # The bend, in tokens. Between 250 and 700, where nothing is measured, it could be anywhere.
    bend=st.integers(min_value=0, max_value=250),
)
def test_a_profile_is_found_again_in_points_that_it_made(bend: int, **found: float) -> None:
    profile = msgspec.structs.replace(LLAMA, weights_s=bend * found["token_s"], **found)
    again = fit(points(profile), KNOWN)
    assert again.fit is not None
    assert again.fit.error < 0.01
    assert again.fit.held_out_error < 0.05


def test_each_of_the_times_is_found() -> None:
    again = fit(points(LLAMA), KNOWN)
    for name in TIMES:
        assert getattr(again, name) == pytest.approx(getattr(LLAMA, name), rel=0.02), name


def test_points_that_a_busy_machine_spoiled_pull_little() -> None:
    random = Random(1)
    noisy = points(LLAMA, lambda: 3.0 if random.random() < 0.15 else random.uniform(0.97, 1.03))
    again = fit(noisy, KNOWN)
    clean = points(LLAMA)
    assert error_of(again, [*clean.readings, *clean.writings]) < 0.04


def test_what_was_measured_stays_as_it_was() -> None:
    again = fit(points(PAGED), KNOWN)
    assert (again.name, again.cache, again.block_tokens) == ("again", "blocks", 64)
    assert (again.window, again.kv_tokens, again.concurrency) == (8192, 4 * 8192, 4)
    assert (again.bytes_a_token, again.template_tokens) == (4.0, 20)
    assert (again.door_s, again.aside_tokens) == (0.003, 0)
    assert again.fit is not None
    assert again.fit.points + again.fit.held_out == 36


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UsageError, match="too few to fit"):
        fit(msgspec.structs.replace(points(LLAMA), writings=()), KNOWN)


@pytest.mark.parametrize("profile", [LLAMA, PAGED], ids=lambda profile: profile.cache)
def test_an_engine_is_measured_as_it_is(profile: Profile) -> None:
    measured = run_virtual(measure(SimEngine(profile, replies=lambda r, _: r.max_tokens or 1)))
    assert measured.cache == profile.cache
    assert measured.block_tokens == (64 if profile.cache == "blocks" else None)
    assert measured.concurrency == 4
    again = fit(measured, KNOWN)
    assert again.fit is not None
    assert again.fit.held_out_error < 0.05
    assert again.bytes_a_token == pytest.approx(profile.bytes_a_token, rel=0.01)
    assert again.template_tokens == pytest.approx(12, abs=1)
    assert again.token_s == pytest.approx(profile.token_s, rel=0.1)


def test_a_cache_that_shares_nothing_is_seen() -> None:
    profile = msgspec.structs.replace(PAGED, cache="none")
    measured = run_virtual(measure(SimEngine(profile)))
    assert measured.cache == "none"


def test_how_many_it_works_on_is_found_where_it_does_not_say() -> None:
    class Silent(SimEngine):
        async def start(self) -> Capabilities:
            found = await super().start()
            return Capabilities(window=found.window, kv_tokens=found.kv_tokens)

    profile = msgspec.structs.replace(PAGED, concurrency=3)
    measured = run_virtual(measure(Silent(profile, replies=lambda r, _: r.max_tokens or 1)))
    assert measured.concurrency == 3
    assert max(each.sequences for each in measured.writings) <= 3


@pytest.mark.parametrize(
    "usage", [None, Usage(prompt=5, completion=5, estimated=True)], ids=["none", "estimated"]
)
def test_an_engine_without_usage_is_refused(usage: Usage | None) -> None:
    class Mute(ScriptedEngine):
        async def generate(self, request):
            yield Reply(text="so", usage=usage)

    with pytest.raises(EngineProtocolError, match="how many tokens"):
        run_virtual(measure(Mute()))


def test_a_window_that_is_too_small_is_refused() -> None:
    small = msgspec.structs.replace(PAGED, window=300, kv_tokens=600)
    with pytest.raises(UsageError, match="window of 300 tokens"):
        run_virtual(measure(SimEngine(small)))


def test_being_cancelled_leaves_nothing_running() -> None:
    async def cut() -> int:
        engine = SimEngine(LLAMA)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await measure(engine)
        engine.check_integrity()
        return len(asyncio.all_tasks())

    assert run_virtual(cut()) == 1


@pytest.mark.parametrize(
    "usage",
    [
        Usage(prompt=10**8, completion=12),
        Usage(prompt=100, completion=12, cached=100),
        Usage(prompt=-5, completion=12),
        Usage(prompt=100, completion=10**9),
    ],
)
def test_counts_that_cannot_be_are_refused_at_the_first_reply(usage: Usage) -> None:
    engine = ScriptedEngine(Reply(text="x " * 12, usage=usage), decode_s=0.1, pieces=4)
    with pytest.raises(EngineProtocolError, match="no fitting a profile to such counts"):
        run_virtual(measure(engine, seconds=5, rounds=1))
