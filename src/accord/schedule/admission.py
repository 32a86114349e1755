"""Which runs may use an engine's KV cache now: whole runs, as long as their contexts fit.

Where more contexts take turns than the cache holds, each is evicted before it is used again, and
all are read anew on each call. So a run that does not fit waits at the boundary of a call, with
nothing lost but its turn.

What runs have in common, the engine holds once, and it is counted once: with the oldest of those
runs that use it now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf

from accord.engine.prefix import common_bytes
from accord.schedule.prefix import HEAD_BYTES
from accord.schedule.ticket import Ticket

SHARE = 0.9
"""Of the cache: engines keep what was used last, which is often of runs that have ended."""
PASSING = 0.1
IDLE_S = 30.0
"""A run that has asked nothing for so long (a slow tool, a sleep) makes way for others."""


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A run with what it holds of the cache, in tokens that it shares with no other."""

    run: str
    tokens: int
    priority: int = 0
    began_s: float = 0.0


def admitted(runs: Iterable[Resident], kv_tokens: int, inside: Collection[str] = ()) -> set[str]:
    """The most urgent, and of those the first to begin, as many as fit; the first one always.

    Behind one that does not fit, others go past it only into ``PASSING`` of the cache, those first
    who were ``inside`` before: else small runs would wait for large ones, or large ones for ever.
    The order lasts, so who is in stays in, unless a more urgent one comes, or one before it grows.
    """
    ordered = sorted(runs, key=lambda run: (-run.priority, run.began_s, run.run))
    found: set[str] = set()
    left = int(kv_tokens * SHARE)
    while ordered and (not found or ordered[0].tokens <= left):
        left -= ordered[0].tokens
        found.add(ordered.pop(0).run)
    left = min(left, int(kv_tokens * PASSING))
    for each in sorted(ordered, key=lambda run: run.run not in inside):
        if each.tokens <= left:
            left -= each.tokens
            found.add(each.run)
    return found


@dataclass(eq=False, kw_only=True)
class Text:
    """A prompt that the engine holds, or will; sizes are tokens."""

    tenure: Tenure
    number: int
    prompt: bytes = b""
    tokens: int = 0
    shared: int = 0
    """With which it begins like another that came before, its ``lender``: counted there."""
    lender: Text | None = None
    is_held: bool = True

    @property
    def counts(self) -> bool:
        """It may be in the cache."""
        return self.is_held and self.tenure.is_resident

    @property
    def order(self) -> tuple[int, int]:
        """Of two that begin alike, the lesser one lends."""
        return self.tenure.number, self.number

    @property
    def own(self) -> int:
        """What it shares with none before it."""
        return self.tokens - self.shared


@dataclass(eq=False, kw_only=True)
class Context:
    """What one agent of a run holds: the newest prompt, or all that is under way at once."""

    newest: Text | None = None
    open: dict[int, Text] = field(default_factory=dict[int, Text])
    """By the numbers of their tickets."""

    @property
    def tokens(self) -> int:
        """Its own."""
        newest = 0 if self.newest is None else self.newest.own
        return max(newest, sum(text.own for text in self.open.values()))

    @property
    def texts(self) -> list[Text]:
        """All of them."""
        found = list(self.open.values())
        if self.newest is not None and self.newest not in found:
            found.append(self.newest)
        return found

    def grown(self, size: float) -> float:
        """Its own, once the newest prompt is as long as ``size``."""
        return max(self.tokens, size - (0 if self.newest is None else self.newest.shared))


@dataclass(eq=False, kw_only=True)
class Tenure:
    """A run in the eyes of one engine."""

    number: int
    began_s: float
    last_s: float
    contexts: dict[str, Context] = field(default_factory=dict[str, Context])
    asking: int = 0
    """Requests that wait or are at the engine."""
    attained_s: float = 0.0
    priority: int = 0
    """Of what it asked last."""
    is_resident: bool = True
    """It holds, or will, what it has asked: it has not made way."""
    held: int | None = None
    """Tokens that it holds; None when that is to be counted anew."""

    def idle_until_s(self, now_s: float) -> float | None:
        """When it will have made way if it goes on asking nothing; None if it has, or asks."""
        until = self.last_s + IDLE_S
        return until if not self.asking and until > now_s else None


class Admission:
    """The runs that ask one engine, and which of them may."""

    def __init__(self, kv_tokens: int | None = None) -> None:
        self._kv_tokens = kv_tokens
        """None admits all."""
        self._tenures: dict[str, Tenure] = {}
        self._texts: dict[bytes, list[Text]] = {}
        """By how they begin."""
        self._inside: set[str] = set()
        """The runs that were admitted at the last decision."""
        self._sizes: dict[str, float] = {}
        """How long the contexts of each agent were at the end of a run, on a running average."""
        self._count = 0

    @property
    def bounds(self) -> bool:
        """There is a cache to fit in, and prompts are of interest."""
        return self._kv_tokens is not None

    def began_s(self, run: str, now_s: float) -> float:
        """When ``run`` first asked."""
        return self._tenure(run, now_s).began_s

    def attained_s(self, run: str) -> float:
        """The time that ``run`` has had at the engine."""
        tenure = self._tenures.get(run)
        return 0.0 if tenure is None else tenure.attained_s

    def worked(self, run: str, seconds: float) -> None:
        """``run`` has had so much more."""
        if (tenure := self._tenures.get(run)) is not None:
            tenure.attained_s += seconds

    def ask(self, ticket: Ticket) -> None:
        """A request came."""
        tenure = self._tenure(ticket.run, ticket.arrived_s)
        tenure.asking += 1
        tenure.last_s, tenure.priority = ticket.arrived_s, ticket.priority
        tenure.is_resident, tenure.held = True, None
        context = tenure.contexts.setdefault(ticket.agent, Context())
        before, goes_on = context.newest, False
        if before is not None and before not in context.open.values():
            goes_on = _goes_on(before.prompt, ticket.prompt)
            if not goes_on:
                self._drop(before)
        text = before if before is not None and goes_on else self._text(tenure, ticket.prompt)
        context.newest = context.open[ticket.number] = text
        text.prompt, text.tokens = ticket.prompt, ticket.prefill
        self._borrow(text)

    def answered(self, ticket: Ticket, now_s: float) -> None:
        """It was answered, or given up."""
        tenure = self._tenures.get(ticket.run)
        context = None if tenure is None else tenure.contexts.get(ticket.agent)
        if tenure is None or context is None or ticket.number not in context.open:
            return
        text = context.open.pop(ticket.number)
        tenure.asking -= 1
        tenure.last_s, tenure.held = now_s, None
        if text is not context.newest:
            self._drop(text)

    def ended(self, run: str) -> bool:
        """``run`` asks no more, if it ever did: what it holds is free for others."""
        tenure = self._tenures.pop(run, None)
        if tenure is None:
            return False
        for agent, context in tenure.contexts.items():
            learn(self._sizes, agent, 0 if context.newest is None else context.newest.tokens)
            for text in context.texts:
                self._drop(text)
        self._count_anew()
        return True

    def runs(self, waiting: Iterable[Ticket], now_s: float) -> tuple[set[str] | None, float]:
        """Those that fit the engine's cache, None for all; and when one may make way."""
        if self._kv_tokens is None or len(self._tenures) < 2:
            return None, inf
        urgency: dict[str, int] = {}
        for each in waiting:
            urgency[each.run] = max(each.priority, urgency.get(each.run, each.priority))
        again_s = inf
        for tenure in self._tenures.values():
            until_s = tenure.idle_until_s(now_s)
            if not tenure.asking and until_s is None and tenure.is_resident:
                tenure.is_resident = False
                self._count_anew()
            again_s = again_s if until_s is None else min(again_s, until_s)
        residents = [
            Resident(
                run=run,
                tokens=self._held(tenure),
                priority=urgency.get(run, tenure.priority),
                began_s=tenure.began_s,
            )
            for run, tenure in self._tenures.items()
            if tenure.is_resident
        ]
        self._inside = admitted(residents, self._kv_tokens, self._inside)
        return self._inside, again_s

    def _tenure(self, run: str, now_s: float) -> Tenure:
        tenure = self._tenures.get(run)
        if tenure is None:
            self._count += 1
            tenure = Tenure(number=self._count, began_s=now_s, last_s=now_s)
            self._tenures[run] = tenure
        return tenure

    def _held(self, tenure: Tenure) -> int:
        """What it holds, or will: the contexts of agents grow as large as in earlier runs."""
        if tenure.held is None:
            for context in tenure.contexts.values():
                for text in context.texts:
                    if text.lender is not None and not text.lender.counts:
                        self._borrow(text)
            tenure.held = round(
                sum(
                    context.grown(self._sizes.get(agent, 0.0))
                    for agent, context in tenure.contexts.items()
                )
            )
        return tenure.held

    def _text(self, tenure: Tenure, prompt: bytes) -> Text:
        self._count += 1
        text = Text(tenure=tenure, number=self._count, prompt=prompt)
        if len(prompt) >= HEAD_BYTES:
            self._texts.setdefault(prompt[:HEAD_BYTES], []).append(text)
        return text

    def _drop(self, text: Text) -> None:
        """The text is no longer held; who borrowed of it finds another."""
        text.is_held = False
        head = text.prompt[:HEAD_BYTES]
        if (alike := self._texts.get(head)) is not None:
            alike.remove(text)
            if not alike:
                del self._texts[head]
            self._count_anew()

    def _borrow(self, text: Text) -> None:
        """Find the text before it that it begins like for longest."""
        text.shared, text.lender = 0, None
        prompt, best = text.prompt, HEAD_BYTES - 1
        for each in self._texts.get(prompt[:HEAD_BYTES], ()):
            if best == len(prompt):
                break
            if (
                each.counts
                and each.order < text.order
                and each.prompt.startswith(prompt[: best + 1])
            ):
                text.lender, best = each, common_bytes(prompt, each.prompt)
        if text.lender is not None:
            text.shared = text.tokens * best // len(prompt)

    def _count_anew(self) -> None:
        for tenure in self._tenures.values():
            tenure.held = None


def _goes_on(before: bytes, prompt: bytes) -> bool:
    """A prompt is a later one of the same conversation, and stands with those that begin alike."""
    return prompt.startswith(before) and prompt[:HEAD_BYTES] == before[:HEAD_BYTES]


def learn(averages: dict[str, float], what: str, value: float) -> None:
    """Move a running average by a quarter of the way."""
    before = averages.get(what, value)
    averages[what] = before + (value - before) / 4
