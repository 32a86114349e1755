"""How far is the simulated engine off the real ones, on work that its profile was not fitted to?

A profile is fitted as `accord calibrate` does it, in rounds between those of the work, so that a
machine that is slower for a while is slower for both; it should have nothing else to do. The work:
eight agents at once on one brief; sixteen requests of mixed lengths, one after another; and
conversations that together need 1.5 times the KV cache. Replies have the lengths that are asked
for, in both. vLLM is asked where ACCORD_VLLM_URL names one, or `make bench-vllm` has installed it.
"""

import asyncio
import json
import os
import random
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from accord.clock import run_virtual
from accord.engine.base import Engine, Message, Reply, Request
from accord.engine.local import LocalEngine
from accord.engine.openai import OpenAIEngine
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.fit import Known, fit
from accord.engine.sim.measure import Measured, measure, text_of
from accord.engine.sim.profile import Profile
from bench._vllm.server import served
from bench.harness import Row

QUICK = False  # a quarter of an hour of two real engines
ROUNDS = 3
KEPT = os.environ.get("ACCORD_HONEST")
"""A folder for all that was measured, as JSON."""
WORDS_A_TOKEN = 0.97
LLAMA_GAP_S, VLLM_GAP_S = 3.0, 1.5
"""Between arrivals of the mixed requests: about what each engine takes for one."""
ROUND_S = 90.0
"""Of calibration, about."""
SLOTS, WINDOW = 2, 2560
ASIDE_TOKENS = 512 * 2**20 // (30 * 3 * 64 * 2 * 2)
"""What fits beside the local engine's slots: layers x KV heads x width x 2 bytes x K and V."""
VLLM_OPTIONS = (
    "--max-num-seqs=4",
    "--max-model-len=4096",
    "--num-gpu-blocks-override=49",  # one of 128 tokens stays empty
)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation: what is said in each turn, and how many tokens the reply to it has."""

    arrives_s: float
    system: str
    turns: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What became of one. Times are seconds since the work began."""

    chat: int
    sent_s: float
    first_s: float
    end_s: float
    prompt: int
    cached: int
    written: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one piece of work."""

    makespan_s: float
    first_token_s: float
    """The mean time to the first token."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one real engine did, and the profile that was fitted to it meanwhile."""

    name: str
    profile: Profile
    work: dict[str, list[Chat]]
    outcomes: dict[str, list[Outcome]]


def run() -> list[Row]:
    # A simulation runs on a loop of its own, so all come after the real engines.
    return [row for found in asyncio.run(_measure()) for row in _rows(found)]


async def _measure() -> list[Found]:
    local = LocalEngine(slots=SLOTS, window=WINDOW, threads=os.cpu_count())
    try:
        found = [await _worked("llama.cpp", local, gap_s=LLAMA_GAP_S)]
    finally:
        await local.close()
        local.unload()
    async with _vllm() as vllm:
        if vllm is not None:
            found.append(await _worked("vLLM", vllm, gap_s=VLLM_GAP_S))
    return found


@asynccontextmanager
async def _vllm() -> AsyncIterator[Engine | None]:
    """One that was started for this, or None."""
    with served(VLLM_OPTIONS) as url:
        if url is None:
            print("vLLM is left out: `make bench-vllm` installs it")
            yield None
            return
        engine = OpenAIEngine(url, read_timeout_s=600.0)
        yield engine
        await engine.close()


async def _worked(name: str, engine: Engine, *, gap_s: float) -> Found:
    kv_tokens = (await engine.start()).kv_tokens
    assert kv_tokens is not None
    work = workloads(kv_tokens, gap_s)
    outcomes: dict[str, list[Outcome]] = {title: [] for title in work}
    measured = await _calibrated(engine, None)
    for number in range(ROUNDS):
        for title, chats in work.items():
            turns = await carried_out(engine, _fresh(chats, number))
            _keep(f"{name}-{title}-{number}", [asdict(turn) for turn in turns])
            outcomes[title].append(outcome(turns))
        measured = await _calibrated(engine, measured)
    known = Known(name=name, source=engine.name, machine="here", aside_tokens=ASIDE_TOKENS)
    profile = fit(measured, known)
    _keep(f"{name}-measured", msgspec.to_builtins(measured))
    _keep(f"{name}-profile", msgspec.to_builtins(profile))
    return Found(name=name, profile=profile, work=work, outcomes=outcomes)


async def _calibrated(engine: Engine, before: Measured | None) -> Measured:
    """One more round of what `accord calibrate` measures."""
    found = await measure(engine, seconds=ROUND_S, rounds=1, concurrency=4)
    if before is None:
        return found
    return msgspec.structs.replace(
        found,
        readings=(*before.readings, *found.readings),
        writings=(*before.writings, *found.writings),
        prompts=(*before.prompts, *found.prompts),
    )


def _rows(found: Found) -> list[Row]:
    name, profile = found.name, found.profile
    rows: list[Row] = []
    makespans: list[float] = []
    firsts: list[float] = []
    for title, chats in found.work.items():
        turns = simulated(profile, chats)
        _keep(f"{name}-{title}-sim", [asdict(turn) for turn in turns])
        sim = outcome(turns)
        real_s = statistics.median(each.makespan_s for each in found.outcomes[title])
        first_s = statistics.median(each.first_token_s for each in found.outcomes[title])
        makespans.append(abs(sim.makespan_s / real_s - 1))
        firsts.append(abs(sim.first_token_s / first_s - 1))
        rows += [
            Row(what=f"{name}, {title}: makespan", measured=real_s, unit="s"),
            Row(what="  simulated", measured=sim.makespan_s, unit="s"),
            Row(what="  first token, mean", measured=first_s, unit="s"),
            Row(what="  simulated", measured=sim.first_token_s, unit="s"),
        ]
    assert profile.fit is not None
    return [
        Row(
            what=f"{name}: error of the makespan, median",
            measured=100 * statistics.median(makespans),
            unit="%",
            target=10,
        ),
        Row(
            what=f"{name}: error of the mean time to the first token, median",
            measured=100 * statistics.median(firsts),
            unit="%",
            target=15,
        ),
        Row(
            what=f"{name}: error of the profile on points held out",
            measured=100 * profile.fit.held_out_error,
            unit="%",
        ),
        *rows,
    ]


def workloads(kv_tokens: int, gap_s: float) -> dict[str, list[Chat]]:
    """The work, by name, for an engine whose cache holds ``kv_tokens``."""
    source = random.Random("honest")
    brief = _text(1500, source)
    team = [
        Chat(arrives_s=0.0, system=brief, turns=((f"You are number {n}. Go on.", 32),))
        for n in range(8)
    ]
    mixed = [
        Chat(
            arrives_s=n * gap_s * source.uniform(0.6, 1.4),
            system=_text(int(50 * 40 ** source.random()), source),
            turns=(("Go on.", source.randrange(16, 129)),),
        )
        for n in range(16)
    ]
    each = int(1.5 * kv_tokens / 5)
    contention = [
        Chat(
            arrives_s=0.0,
            system=_text(each * 6 // 10, source),
            turns=(("Go on.", 48), (_text(each * 4 // 10 - 100, source), 48)),
        )
        for _ in range(5)
    ]
    return {"one brief": team, "mixed": mixed, "1.5 x KV": contention}


def _text(tokens: int, source: random.Random) -> str:
    return f"{source.getrandbits(32):08x} {text_of(int(tokens * WORDS_A_TOKEN), source)}"


def _fresh(chats: Sequence[Chat], number: int) -> list[Chat]:
    """The same work in prompts that the engine does not know."""
    return [_marked(chat, number) for chat in chats]


def _marked(chat: Chat, number: int) -> Chat:
    return Chat(
        arrives_s=chat.arrives_s, system=f"{number} {os.getpid()} {chat.system}", turns=chat.turns
    )


async def carried_out(engine: Engine, chats: Sequence[Chat]) -> list[Turn]:
    """All of them, each at its time."""
    began_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_talk(engine, number, chat, began_s))
            for number, chat in enumerate(chats)
        ]
    return [turn for task in tasks for turn in task.result()]


async def _talk(engine: Engine, number: int, chat: Chat, began_s: float) -> list[Turn]:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, began_s + chat.arrives_s - loop.time()))
    messages = [Message(role="system", content=chat.system)]
    turns: list[Turn] = []
    for said, writes in chat.turns:
        messages.append(Message(role="user", content=said))
        request = Request(
            messages=tuple(messages),
            max_tokens=writes,
            temperature=0.0,
            extra={"ignore_eos": True},
        )
        sent_s, first_s = loop.time(), None
        async with aclosing(engine.generate(request)) as pieces:  # pyright: ignore[reportArgumentType]
            async for piece in pieces:
                first_s = loop.time() if first_s is None else first_s
                if isinstance(piece, Reply):
                    reply = piece
        assert reply.usage is not None
        assert first_s is not None
        messages.append(Message(role="assistant", content=reply.text))
        turns.append(
            Turn(
                chat=number,
                sent_s=sent_s - began_s,
                first_s=first_s - began_s,
                end_s=loop.time() - began_s,
                prompt=reply.usage.prompt,
                cached=reply.usage.cached,
                written=reply.usage.completion,
            )
        )
    return turns


def simulated(profile: Profile, chats: Sequence[Chat]) -> list[Turn]:
    """The same on the simulated engine, in no time."""
    engine = SimEngine(profile, replies=lambda request, _: request.max_tokens or 1)
    return run_virtual(carried_out(engine, chats))


def outcome(turns: Sequence[Turn]) -> Outcome:
    """The two figures that are compared."""
    return Outcome(
        makespan_s=max(turn.end_s for turn in turns),
        first_token_s=statistics.mean(turn.first_s - turn.sent_s for turn in turns),
    )


def _keep(name: str, value: object) -> None:
    if KEPT:
        path = Path(KEPT) / f"{name.replace(' ', '-')}.json"
        path.write_text(json.dumps(value, indent=1), encoding="utf-8")
