"""Asks a real engine and times it: what :mod:`accord.engine.sim.fit` makes a profile of.

Everything goes through the engine's one method, so any engine will do that reports usage. Prompts
are words drawn from a seed, and begin like no other, so that only what is meant to be is cached.
Times are those of whoever asks: the way to the engine and back is in them.

The rounds measure everything once each: a machine that is slow for half a minute is slow for all.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from math import gcd
from random import Random
from typing import TYPE_CHECKING, Literal

import msgspec

from accord.engine.base import Message, Reply, Request, Usage
from accord.engine.prefix import rendered
from accord.errors import EngineProtocolError, RejectedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from accord.engine.base import Capabilities, Engine

Cache = Literal["blocks", "slots", "none"]

MOST_SEQUENCES = 8
"""Asked at once, where the engine does not say how many it works on."""
MOST_SENT = 32
"""Asked at once, whatever it says."""
SHARES = (1.0, 0.25, 0.06)
"""Of the longest prompt: the lengths that a profile is fitted to."""
HELD_OUT_SHARES = (0.5, 0.12)
SEQUENCES = (1, 2, 4, 8, 16, 32)
HELD_OUT_SEQUENCES = (3, 6, 12, 24)
LONGEST_TOKENS = 4096
SHORTEST_TOKENS = 256
TAIL_WORDS = 24
"""What differs in a prompt whose rest is cached."""
READING_WRITES = 12
"""Tokens of the reply to a prompt of which the reading is measured."""
WRITING_WRITES = 40
MOST_WRITTEN = 100_000
READING_SHARE = 0.6
"""Of the time that there is, for long prompts."""
_ROUND_SHARES = 1.15 * sum((*SHARES, *HELD_OUT_SHARES))
"""What a round reads, in longest prompts, with the tails of those that are cached."""

_TEXT = (
    "the plan of a small town by the harbour where people sell fish in the early morning and boats "
    "come back with salt on their ropes while the market fills with bread apples wool and letters "
    "that somebody wrote about rain money horses and the long road over the hills to another coast"
)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt until the first token of its reply: the only request at that time."""

    tokens: int
    """Read anew."""
    before: int
    """Found in the cache."""
    seconds: float
    held_out: bool = False


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """One step that writes a token for each of ``sequences``."""

    sequences: int
    context: int
    """Tokens, of all together, in the middle of it."""
    seconds: float
    held_out: bool = False


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about an engine. Sizes are tokens, None is unknown."""

    engine: str
    model: str
    readings: tuple[Reading, ...]
    writings: tuple[Writing, ...]
    prompts: tuple[tuple[int, int], ...]
    """Bytes, as rendered, and tokens of each."""
    concurrency: int
    cache: Cache
    block_tokens: int | None = None
    window: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One request. Times are seconds from when its group was sent."""

    size: int
    prompt: int
    cached: int
    written: int
    first_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        """The mean time of a token after the first."""
        return (self.end_s - self.first_s) / (self.written - 1)


def _counted(usage: Usage, size: int, engine: str) -> int:
    """The tokens of a prompt of ``size`` bytes, if what the engine says of it can be."""
    counts = usage.prompt, usage.cached, usage.completion
    read = 0 < usage.prompt <= 4 * size + 4096 and 0 <= usage.cached < usage.prompt
    if read and 0 <= usage.completion <= MOST_WRITTEN:
        return usage.prompt
    raise EngineProtocolError(
        f"{engine} says that a prompt of {size:,} bytes has {counts[0]:,} tokens, {counts[1]:,} of "
        f"them cached, and its reply {counts[2]:,}: there is no fitting a profile to such counts"
    )


async def measure(
    engine: Engine,
    *,
    seconds: float = 120.0,
    rounds: int = 2,
    concurrency: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """What ``engine`` takes for long and short prompts, alone and together, in about ``seconds``.

    ``concurrency`` bounds how many requests are sent at once. Raises EngineError if the engine does
    not answer or reports no usage, UsageError if its window is too small for a measurement.
    """
    capabilities = await engine.start()
    # A server that was measured before still holds those prompts: time makes these others.
    random = Random(f"{seed} {asyncio.get_running_loop().time()}")
    bench = _Bench(engine=engine, capabilities=capabilities, random=random)
    await bench.alone(bench.prompt(32), writes=4)  # whatever the first request sets up
    longest = await bench.longest(seconds * READING_SHARE / rounds)
    cache = await bench.cache_kind(progress)
    most = concurrency or min(capabilities.concurrency or MOST_SEQUENCES, MOST_SENT)
    asked = most
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}: prompts of up to {longest:,} tokens")
        await bench.read(longest, cached=cache != "none")
        most = await bench.write(most, progress)
    return Measured(
        engine=engine.name,
        model=capabilities.model,
        readings=tuple(bench.readings),
        writings=tuple(bench.writings),
        prompts=tuple(bench.prompts),
        concurrency=(capabilities.concurrency if most == asked else None) or most,
        cache=cache,
        block_tokens=gcd(*bench.found) if cache == "blocks" else None,
        window=capabilities.window,
        kv_tokens=capabilities.kv_tokens,
    )


def text_of(words: int, random: Random) -> str:
    """A text of so many words."""
    known = _TEXT.split()
    return " ".join(random.choice(known) for _ in range(words))


@dataclass(kw_only=True)
class _Bench:
    engine: Engine
    capabilities: Capabilities
    random: Random
    readings: list[Reading] = field(default_factory=list[Reading])
    writings: list[Writing] = field(default_factory=list[Writing])
    prompts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    found: list[int] = field(default_factory=list[int])
    """Tokens found in the cache, where some were meant to be."""
    words_a_token: float = 0.8
    forced: bool = True
    """Whether the engine takes the field that makes it write on to the end."""

    def prompt(self, words: int, head: str = "") -> str:
        """A text of ``words`` words, after ``head``."""
        drawn = text_of(words, self.random)
        return f"{head} {drawn}" if head else f"{self.random.getrandbits(32):08x} {drawn}"

    async def longest(self, seconds: float) -> int:
        """Tokens of the longest prompt, so that a round of reading takes about ``seconds``."""
        window = min(
            self.capabilities.window or 2 * LONGEST_TOKENS,
            self.capabilities.kv_tokens or 2 * LONGEST_TOKENS,
        )
        if window < 2 * SHORTEST_TOKENS:
            raise UsageError(
                f"{self.engine.name} has a window of {window:,} tokens, and a measurement needs "
                f"{2 * SHORTEST_TOKENS:,}: start it with a larger one"
            )
        tries = [await self.alone(self.prompt(96), writes=4) for _ in range(2)]
        rate = min(each.first_s / max(1, each.prompt - each.cached) for each in tries)
        self.words_a_token = min(1.0, 96 / tries[0].prompt)
        affordable = int(seconds / (rate * _ROUND_SHARES)) if rate > 0 else LONGEST_TOKENS
        return max(SHORTEST_TOKENS, min(affordable, LONGEST_TOKENS, window // 2))

    async def cache_kind(self, progress: Callable[[str], None]) -> Cache:
        """Two at once that share what a third has left: both find it, one does, or none."""
        progress("what its cache shares")
        # Blocks may be large: 128 tokens in vLLM on a CPU.
        head = self.prompt(int(SHORTEST_TOKENS * self.words_a_token))
        await self.alone(head, writes=2)
        pair = await self.together([self.prompt(4, head) for _ in range(2)], writes=2)
        found = [each.cached for each in pair if each.cached * 3 > each.prompt]
        self.found += found
        if not found:
            return "none"
        alone = self.capabilities.concurrency == 1
        return "slots" if len(found) == 1 or (alone and gcd(*found) == 1) else "blocks"

    async def read(self, longest: int, *, cached: bool) -> None:
        """Each length once, and again with all but its tail in the cache."""
        for share in (*SHARES, *HELD_OUT_SHARES):
            held_out = share in HELD_OUT_SHARES
            text = self.prompt(int(longest * share * self.words_a_token))
            self._keep(await self.alone(text, writes=READING_WRITES), held_out=held_out)
            if cached:
                again = await self.alone(self.prompt(TAIL_WORDS, text), writes=READING_WRITES)
                self._keep(again, held_out=held_out)
                self.found += [again.cached] if again.cached else []

    async def write(self, most: int, progress: Callable[[str], None]) -> int:
        """Ever more at once; gives how many the engine works on, ``most`` or fewer."""
        counts = sorted(n for n in (*SEQUENCES, *HELD_OUT_SEQUENCES, most) if n <= most)
        for count in dict.fromkeys(counts):
            progress(f"{count} at once")
            group = await self.together(
                [self.prompt(12) for _ in range(count)], writes=WRITING_WRITES
            )
            first_end = min(each.end_s for each in group)
            at_once = sum(each.first_s < first_end for each in group)
            if at_once < count:
                progress(f"it works on {at_once} at once")
                return max(1, at_once)
            self._keep_writing(group, held_out=count in HELD_OUT_SEQUENCES and count != most)
        return most

    async def alone(self, text: str, *, writes: int) -> Answered:
        """One request."""
        [answered] = await self.together([text], writes=writes)
        return answered

    async def together(self, texts: Sequence[str], *, writes: int) -> list[Answered]:
        """Requests that are sent at once."""
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(text, writes, began_s)) for text in texts]
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        answered = [task.result() for task in tasks]
        self.prompts += [(each.size, each.prompt) for each in answered]
        return answered

    async def _ask(self, text: str, writes: int, began_s: float) -> Answered:
        request = Request(
            messages=(
                Message(role="system", content=text),
                Message(role="user", content="Go on with it."),
            ),
            agent="calibrate",
            max_tokens=writes,
            temperature=0.0,
            # Of vLLM, SGLang and llama.cpp; others ignore it, or refuse it.
            extra={"ignore_eos": True} if self.forced else {},
        )
        try:
            return await self._timed(request, began_s)
        except RejectedError:
            if not self.forced:
                raise
            self.forced = False
            return await self._ask(text, writes, began_s)

    async def _timed(self, request: Request, began_s: float) -> Answered:
        clock, first_s, reply = asyncio.get_running_loop().time, None, None
        pieces = self.engine.generate(request)
        async with aclosing(pieces):  # pyright: ignore[reportArgumentType]
            async for piece in pieces:
                first_s = clock() - began_s if first_s is None else first_s
                if isinstance(piece, Reply):
                    reply = piece
        end_s = clock() - began_s
        usage = reply.usage if reply is not None else None
        if usage is None or usage.estimated or not usage.prompt:
            raise EngineProtocolError(
                f"{self.engine.name} does not say how many tokens a prompt had, so there is "
                "nothing to fit a profile to; switch its usage on (stream_options.include_usage)"
            )
        return Answered(
            size=len(rendered(request)),
            prompt=_counted(usage, len(rendered(request)), self.engine.name),
            cached=usage.cached,
            written=usage.completion,
            first_s=first_s if first_s is not None else end_s,
            end_s=end_s,
        )

    def _keep(self, one: Answered, *, held_out: bool) -> None:
        tokens = one.prompt - one.cached
        self.readings.append(
            Reading(tokens=tokens, before=one.cached, seconds=one.first_s, held_out=held_out)
        )
        self._keep_writing([one], held_out=held_out)

    def _keep_writing(self, group: list[Answered], *, held_out: bool) -> None:
        if min(each.written for each in group) < READING_WRITES // 2:
            return  # the model had nothing more to say
        context = sum(each.prompt + each.written // 2 for each in group)
        # Who began first was held up while the others' prompts were read.
        step_s = min(each.step_s for each in group)
        if step_s > 0:
            kept = Writing(sequences=len(group), context=context, seconds=step_s, held_out=held_out)
            self.writings.append(kept)
