"""Does a bounded summary keep what was said within reach? 200 turns, 30 facts planted.

The summary of an agent's conversation may take 5% of the tokens that it stands for. A fact is
within reach if the summary says it, or if the line that stands for its turn names a handle
behind which it is found.
"""

import random
import re
from typing import cast

from accord import Agent, Runtime
from accord.agent import recall
from accord.engine.base import Request
from accord.testing.scripted import ScriptedEngine
from accord.tokens.summary import HEAD
from bench._counting import Tokenizer, text_of, with_tokenizer
from bench.harness import Row

QUICK = False  # needs the local model
TURNS, FACTS = 200, 30
talker = Agent("talker", "Talk.", sees="summary", expected_calls=10 * TURNS)


def run() -> list[Row]:
    return cast("list[Row]", with_tokenizer(_measure))


async def _measure(count: Tokenizer) -> list[Row]:
    draw = random.Random(7)
    facts = {
        turn: f"The code of vault {turn} is {draw.randint(1000, 9999)}."
        for turn in draw.sample(range(TURNS - 20), FACTS)
    }
    said = [await text_of(120, f"turn {turn}", count) for turn in range(TURNS)]

    def answer(request: Request) -> str:
        turn = int(re.findall(r"Turn (\d+)\.", request.messages[-1].content)[-1])
        words = said[turn].split(". ")
        middle = len(words) // 2
        return (
            ". ".join([*words[:middle], facts[turn].rstrip("."), *words[middle:]])
            if turn in facts
            else said[turn]
        )

    engine = ScriptedEngine(answer)

    async def talk() -> None:
        for turn in range(TURNS):
            await talker(f"Turn {turn}. Go on.")

    async with Runtime(engine=engine, log="memory") as runtime:
        log = (await runtime.arun(talk)).log
    last = next(r for r in reversed(engine.requests) if HEAD in r.messages[0].content)
    lines = last.messages[0].content.removeprefix(HEAD).strip().split("\n")
    position = len(log.envelopes)
    behind = {
        line: recall.text_behind(
            log, line.split(" ")[0].rstrip(":"), "talker", talker.spec, position
        )
        for line in lines
    }
    stood_for = sum([await count(text) for text in behind.values()])
    summary = await count("\n".join(lines))
    covered = "\n".join(behind.values())
    known = [fact for fact in facts.values() if fact[:-1] in covered]
    told = [fact for fact in known if any(fact[:-1] in line for line in lines)]
    shown = "\n".join(m.content for m in last.messages)
    within_reach = [f for f in facts.values() if f[:-1] in covered or f[:-1] in shown]
    full = sum([await count(text) for text in said])
    return [
        Row(
            what="summary of what it stands for",
            measured=100 * summary / stood_for,
            unit="%",
            target=5,
        ),
        Row(
            what="facts within reach",
            measured=len(within_reach),
            unit=f"of {FACTS}",
            target=FACTS,
            at_least=True,
        ),
        Row(what="facts that the summary itself says", measured=len(told), unit=f"of {FACTS}"),
        Row(what="conversation", measured=full, unit="tokens"),
        Row(what="summary", measured=summary, unit="tokens"),
        Row(
            what="prompts sent, of sending all each time",
            measured=100 * await _share(engine.requests, count),
            unit="%",
        ),
    ]


async def _share(requests: list[Request], count: Tokenizer) -> float:
    sent = 0
    for request in requests:
        sent += await count("\n".join(message.content for message in request.messages))
    whole = TURNS * (TURNS + 1) / 2 * 130
    return sent / whole
