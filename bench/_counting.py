"""Counting what a team sends, by the local model's tokenizer: texts, prompts and prefixes."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from accord.engine.base import Request, joined
from accord.engine.local import LocalEngine

Tokenizer = Callable[[str], Awaitable[int]]

ROLE_TOKENS = 5
"""What the chat template puts around a message: two marks, the role, two line breaks."""

WORDS = [
    "the",
    "report",
    "market",
    "price",
    "team",
    "vendor",
    "user",
    "audit",
    "cost",
    "trial",
    "plan",
    "risk",
    "storage",
    "access",
    "share",
    "vault",
    "sync",
    "export",
    "cloud",
    "offline",
    "browser",
    "mobile",
    "policy",
    "review",
    "support",
    "licence",
    "update",
    "growth",
    "region",
    "quarter",
    "survey",
    "sample",
    "result",
    "claim",
    "source",
    "figure",
    "chart",
    "table",
    "value",
]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Tokens of one or more prompts; ``cached`` of them stood at the head of an earlier prompt."""

    prompt: int
    cached: int

    @property
    def priced(self) -> float:
        """With cached input at a tenth."""
        return self.prompt - 0.9 * self.cached


def with_tokenizer(work: Callable[[Tokenizer], Awaitable[object]]) -> object:
    """Run ``work`` with the local model's tokenizer."""

    async def main() -> object:
        engine = LocalEngine()
        try:
            count = (await engine.start()).tokenizer
            assert count is not None
            return await work(count)
        finally:
            await engine.close()
            engine.unload()

    return asyncio.run(main())


async def text_of(tokens: int, seed: str, count: Tokenizer) -> str:
    """Prose without repetition, of as many tokens."""
    draw = random.Random(seed)
    sentences: list[str] = []
    while await count(" ".join(sentences)) < tokens:
        for _ in range(max(1, tokens // 40)):
            words = [draw.choice(WORDS) for _ in range(draw.randint(6, 14))]
            sentences.append(f"{' '.join(words).capitalize()} {draw.randint(2, 99)}.")
    words = " ".join(sentences).split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if await count(" ".join(words[:middle])) <= tokens:
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])


@dataclass
class Meter:
    """Counts prompts in the order in which they were sent, and what a prefix cache would hold."""

    count: Tokenizer
    _seen: list[list[str]] = field(default_factory=list[list[str]])

    async def sent(self, requests: Sequence[Request]) -> Sent:
        prompt = cached = 0
        for request in requests:
            pieces = pieces_of(request)
            sizes = [await self.count(piece) for piece in pieces]
            prompt += sum(sizes)
            cached += sum(sizes[: self._known(pieces)])
            self._seen.append(pieces)
        return Sent(prompt=prompt, cached=cached)

    def _known(self, pieces: list[str]) -> int:
        """How many of the first pieces some earlier prompt began with."""

        def common(other: list[str]) -> int:
            pairs = zip(pieces, other, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        return max(map(common, self._seen), default=0)


def pieces_of(request: Request) -> list[str]:
    """A prompt in lines: tools first, as templates have them, then messages."""
    pieces = [json.dumps([spec.name, spec.description, spec.parameters]) for spec in request.tools]
    for message in joined(request.messages):
        pieces += [
            f"<{message.role}>{'.' * ROLE_TOKENS}"[:ROLE_TOKENS],
            *message.content.split("\n"),
        ]
        pieces += [f"{call.name}{call.arguments}" for call in message.tool_calls]
    return pieces
