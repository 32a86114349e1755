"""``kill -9`` while equal requests wait for one, and while code runs ahead on guesses."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from accord.testing.stub import StubServer
from tests.crash.test_kill import Case

FLOW = """
import asyncio
from pathlib import Path
from accord import Agent, gather, speculate, step

writer = Agent("writer", "Write.", seed=1)
router = Agent("router", "Route.", seed=1)

@step
async def book(what: str) -> str:
    with Path("effects").open("a") as file:
        file.write(what + "\\n")
    await asyncio.sleep(0.005)
    return what

async def handled(number: int, desk: str) -> str:
    text = await writer(f"{number} for {desk}")
    await book(f"{number}:{len(text)}")
    return await writer(f"{number} done")

async def flow() -> str:
    same = await gather(writer("all the same") for _ in range(8))
    assert len(set(same)) == 1
    ends = []
    for number in range(4):
        question = f"question {number}"
        guess = (lambda _: "wrong") if number % 2 else router
        async def then(desk, number=number):
            return await handled(number, desk)
        ends.append(await speculate(router, question, then=then, guess=guess))
    return "|".join([same[0], *ends])
"""
MOMENTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(MOMENTS))
def test_a_killed_run_comes_to_the_same_and_no_waiter_is_lost(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    with StubServer(delay_s=0.02) as stub:
        full = Case(whole, stub.url, FLOW)
        full.start().communicate(timeout=60)
        expected = full.resume()["output"]
        calls = len(stub.requests)
        case = Case(cut, stub.url, FLOW)
        process = case.start()
        after = calls + random.randint(1, calls)
        stub.wait_until(lambda stub: len(stub.requests) >= after, timeout_s=30)
        threading.Event().wait(random.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        result = case.resume()
        repeated = Counter[str]()
        if result["status"] != "finished":
            assert "it may have happened" in result["error"]["message"], seed
            repeated.update(case.effects()[-1:])
            result = case.resume("--repeat-unknown")
    assert result["output"] == expected, seed
    happened, once = Counter(case.effects()), Counter(set(full.effects()))
    assert not once - happened, f"seed {seed}: {happened}"
    assert not happened - once - repeated, f"seed {seed}: {happened}"
