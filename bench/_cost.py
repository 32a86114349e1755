"""A model server's cost, simulated: prefill of what no earlier prompt began with, and decode.

First token = 20 ms + 0.1 ms per uncached prompt token, then 8 ms per output token. Uncached is
what stands beyond the longest prefix that a prompt has in common with an earlier one. Tokens are
estimated.
"""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from accord import Runtime
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, Timings, Usage
from accord.runtime import Result
from accord.testing.scripted import ScriptedEngine
from accord.tokens.count import estimate
from bench._counting import WORDS, pieces_of

FIRST_S, PREFILL_S, DECODE_S = 0.020, 0.0001, 0.008
PLACES = 1000


@dataclass
class Costs:
    """Answers as ``script`` says, and takes as long as it would."""

    script: Callable[[Request], str]
    _known: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    _replies: dict[int, Reply] = field(default_factory=dict[int, Reply])

    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(
            self._reply,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            capabilities=Capabilities(model="simulated", concurrency=PLACES),
        )

    def _reply(self, request: Request) -> Reply:
        pieces = pieces_of(request)
        sizes = [estimate(piece) for piece in pieces]
        cached = sum(sizes[: self._prefix(pieces)])
        text = self.script(request)
        usage = Usage(prompt=sum(sizes), completion=estimate(text), cached=cached)
        prefill_s = FIRST_S + PREFILL_S * (usage.prompt - usage.cached)
        timings = Timings(prefill_s=prefill_s, decode_s=DECODE_S * usage.completion)
        reply = Reply(text=text, usage=usage, timings=timings)
        self._replies[id(request)] = reply
        return reply

    def _prefix(self, pieces: list[str]) -> int:
        """How many of the first pieces an earlier prompt began with; these are remembered."""
        heads = [tuple(pieces[: length + 1]) for length in range(len(pieces))]
        known = next((i for i, head in enumerate(heads) if head not in self._known), len(heads))
        self._known.update(heads)
        return known

    def _prefill_s(self, request: Request) -> float:
        return cast("Timings", self._replies[id(request)].timings).prefill_s or 0.0

    def _decode_s(self, request: Request) -> float:
        return cast("Timings", self._replies[id(request)].timings).decode_s or 0.0


def play(
    flow: Callable[..., Coroutine[Any, Any, Any]], given: Any, script: Callable[[Request], str]
) -> tuple[Result[Any], list[Request]]:
    """Run ``flow`` on virtual time; its result, and what was asked."""
    engine = Costs(script).engine()

    async def main() -> Result[Any]:
        async with Runtime(engine=engine, log="memory", clock=VirtualClock()) as runtime:
            return await runtime.arun(flow, given)

    return run_virtual(main()), engine.requests


def seconds_of(result: Result[Any], names: Callable[[str], bool]) -> float:
    """How long agents whose name fits were at work on the critical path."""
    segments = [s for s in result.tax.critical_path if s.kind == "request" and names(s.name)]
    return sum(s.end_ns - s.start_ns for s in segments) / 1e9


def words(seed: str, count: int) -> list[str]:
    return random.Random(seed).sample(WORDS, count)


def prose(seed: str, tokens: int) -> str:
    """Sentences without repetition, of about as many tokens by estimate."""
    draw = random.Random(seed)
    sentences: list[str] = []
    size = 0
    while size < tokens:
        chosen = [draw.choice(WORDS) for _ in range(draw.randint(6, 14))]
        sentences.append(f"{' '.join(chosen).capitalize()} {draw.randint(2, 99)}.")
        size += estimate(sentences[-1])
    return " ".join(sentences)
