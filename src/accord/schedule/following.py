"""Who lets another go ahead that reads the same beginning, and for how long.

Nobody follows without bound: a leader that takes several times as long as reads have taken so far
(it hangs, or never says that it has begun to answer) leads no more.
"""

from __future__ import annotations

from accord.engine.base import Capabilities
from accord.engine.prefix import BYTES_A_TOKEN, PrefixTree
from accord.schedule.admission import learn
from accord.schedule.concurrency import DEFAULT_CONCURRENCY
from accord.schedule.line import Waiting
from accord.schedule.place import Place
from accord.schedule.prefix import (
    DECODE_COST,
    HEAD_BYTES,
    WORTH_TOKENS,
    shared_tokens,
    waits_for_leader,
    waits_for_slot,
)
from accord.schedule.slots import Slots
from accord.schedule.ticket import Ticket

NEW_TOKENS = 32
"""Fewer that the engine does not have are not worth reading ahead."""
BLOCK_TOKENS = 16
MIRROR_BLOCKS = 1 << 16
"""What an engine is taken to hold where it does not say: about a million tokens."""
READ_S = 0.02
"""What it takes to read a token, until that is known: a small machine without a GPU."""
PATIENCE = 4
"""A leader may take so many times as long as is expected,"""
LEAST_S = 5.0
"""and at least so long: a busy engine is no steady one."""


class Following:
    """The requests in front of one engine that begin alike. ``on`` is False where nobody waits."""

    def __init__(self, capabilities: Capabilities, *, on: bool) -> None:
        self.on = on and capabilities.prefix_cache
        count = capabilities.concurrency or DEFAULT_CONCURRENCY
        self._slots = Slots(count) if capabilities.slots else None
        kv_tokens = capabilities.kv_tokens
        blocks = MIRROR_BLOCKS if kv_tokens is None else max(1, kv_tokens // BLOCK_TOKENS)
        self._mirror = PrefixTree(blocks)
        """What the engine is taken to hold."""
        self._ahead: dict[bytes, list[Place]] = {}
        """Requests that others may follow, by how their prompts begin."""
        self._lengths: dict[str, float] = {}
        """How long the replies of each agent are, on a running average."""
        self._read_s: dict[str, float] = {}
        """What it takes to read a token, likewise, under the one name ``""``."""

    def __len__(self) -> int:
        return sum(len(each) for each in self._ahead.values())

    def leader_of(self, waiting: Waiting, now_s: float) -> Place | None:
        """Whom it lets go ahead, for now."""
        behind, prompt = waiting.behind, waiting.ticket.prompt
        if behind is not None and behind[0].stage == behind[1] and now_s < behind[0].leads_until_s:
            return behind[0]
        waiting.behind = None
        for place in self._ahead.get(prompt[:HEAD_BYTES], ()):
            if now_s < place.leads_until_s and self._lets_go_ahead(prompt, place):
                waiting.behind = place, place.stage
                return place
        return None

    def pays_ahead(self, prompt: bytes) -> bool:
        """Whether it helps that the engine reads ``prompt`` now, before it is asked for in earnest.

        What slots at work hold would be read twice: it is there once they are done.
        """
        held, busy = self._mirror.match(prompt), 0
        if self._slots is not None:
            held, busy = self._slots.held(prompt)
        return len(prompt) - held >= NEW_TOKENS * BYTES_A_TOKEN and held >= busy

    def sent(self, place: Place) -> None:
        """It goes to the engine: others may follow."""
        prompt = place.ticket.prompt
        if self._slots is not None:
            self._slots.sent(prompt)
        if self.on:
            place.reads = len(prompt) // BYTES_A_TOKEN - self._held(prompt)
            place.leads_until_s = place.sent_s + self._patience_s(place.reads)
            if len(prompt) >= HEAD_BYTES:
                self._ahead.setdefault(prompt[:HEAD_BYTES], []).append(place)

    def read(self, place: Place, now_s: float) -> None:
        """The engine has read a prompt: what others have in common with it is there."""
        if not self.on:
            return
        if place.completion is None:  # else it did not stream, and had written as well
            learn(self._read_s, "", (now_s - place.sent_s) / max(place.reads, WORTH_TOKENS))
        self._mirror.insert(place.ticket.prompt)
        if self._slots is not None:
            work = DECODE_COST * self._expected(place.ticket)
            place.leads_until_s = now_s + self._patience_s(work)
        else:
            self.gone(place)

    def ended(self, place: Place) -> None:
        """Its slot, where the engine has such, is free."""
        if self._slots is not None:
            self._slots.ended(place.ticket.prompt)
        self.gone(place)

    def gone(self, place: Place) -> None:
        """It leads no more."""
        head = place.ticket.prompt[:HEAD_BYTES]
        ahead = self._ahead.get(head)
        if ahead is not None and place in ahead:
            ahead.remove(place)
            if not ahead:
                del self._ahead[head]

    def replied(self, place: Place) -> None:
        """A reply came, of which the length is known."""
        if place.completion is not None:
            learn(self._lengths, place.ticket.agent, place.completion)

    def _lets_go_ahead(self, prompt: bytes, place: Place) -> bool:
        shared = shared_tokens(prompt, place.ticket.prompt)
        if place.stage == "writing":
            return waits_for_slot(shared, self._expected(place.ticket))
        return waits_for_leader(shared, self._held(prompt))

    def _held(self, prompt: bytes) -> int:
        # A slot at work shares nothing of what it holds.
        return 0 if self._slots is not None else self._mirror.match(prompt) // BYTES_A_TOKEN

    def _expected(self, ticket: Ticket) -> int:
        """About how long its reply will be."""
        return round(self._lengths.get(ticket.agent, ticket.decode))

    def _patience_s(self, tokens: int) -> float:
        """How long others wait at most for what takes as long as reading so many."""
        return max(LEAST_S, PATIENCE * self._read_s.get("", READ_S) * tokens)
