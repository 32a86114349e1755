"""The KV cache of one replica: who holds which blocks.

Blocks of a prefix are shared by all that begin alike, from the moment that they are computed. A
sequence's last blocks, still growing, are its own; when it ends they stay as cache until others
need the room, the least used first (vLLM: arXiv:2309.06180). A cache of *slots*, as llama.cpp has
it, shares nothing at work: who gets a slot finds there what its last user left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from accord.engine.prefix import PrefixTree, common_bytes

if TYPE_CHECKING:
    from accord.engine.prefix import Node
    from accord.engine.sim.profile import Profile


class Holding:
    """What one sequence holds."""

    __slots__ = ("node", "own", "shared", "slot", "tokens")

    def __init__(self) -> None:
        self.node: Node | None = None
        """The end of the prefix that it shares."""
        self.shared = 0
        """Blocks of that prefix."""
        self.own = 0
        """Blocks besides."""
        self.tokens = 0
        """Of its context that these blocks have to hold."""
        self.slot: Slot | None = None


class KV(Protocol):
    """What a replica asks of its cache. Texts are bytes, sizes tokens."""

    def begin(self, prompt: bytes, size: int, most: int) -> tuple[Holding, int] | None:
        """Room for the first ``most`` tokens of a sequence to compute, and how many are there.

        None if there is no room; then nothing has changed.
        """
        ...

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Room for a context of ``tokens``; False if there is none, and nothing has changed."""
        ...

    def publish(self, holding: Holding, text: bytes, tokens: int) -> None:
        """The first ``tokens`` of ``text`` are computed, for everybody."""
        ...

    def end(self, holding: Holding, text: bytes, tokens: int) -> None:
        """The sequence is over; what is computed of it stays as cache."""
        ...

    def growth(self, contexts: list[tuple[int, int]], most: int) -> int:
        """How many steps, up to ``most``, contexts of (tokens, tokens a step) have room for."""
        ...

    def match(self, prompt: bytes) -> int:
        """Tokens of ``prompt`` that it holds."""
        ...

    def check_integrity(self) -> None:
        """Count everything anew; raises AssertionError where the books are wrong."""
        ...


class PagedKV:
    """Blocks, shared by prefix if ``shares``."""

    def __init__(self, profile: Profile) -> None:
        self._size = profile.block_tokens
        self._shares = profile.cache == "blocks"
        self.tree = PrefixTree(
            profile.kv_tokens // profile.block_tokens, block_bytes=profile.block_bytes
        )
        self._holdings: set[Holding] = set()

    def match(self, prompt: bytes) -> int:
        return self.tree.match(prompt) // self.tree.block_bytes * self._size

    def begin(self, prompt: bytes, size: int, most: int) -> tuple[Holding, int] | None:
        holding = Holding()
        if self._shares:
            # Engines always read at least the last token: it gives the first of the reply.
            holding.shared = min(self.match(prompt), size - 1) // self._size
        hit = holding.shared * self._size
        tokens = min(size, hit + most)
        prefix = prompt[: holding.shared * self.tree.block_bytes]
        more = -(-tokens // self._size) - holding.shared
        if self.tree.room() - self.tree.loose(prefix) < more:
            return None
        if prefix:
            holding.node = self.tree.insert(prefix)
            self.tree.hold(holding.node)
        self._holdings.add(holding)
        self.grow(holding, tokens)
        return holding, hit

    def grow(self, holding: Holding, tokens: int) -> bool:
        more = -(-tokens // self._size) - holding.shared - holding.own
        if more > 0:
            if self.tree.room() < more:
                return False
            self.tree.make_room(more)
            self.tree.reserved += more
            holding.own += more
        holding.tokens = max(holding.tokens, tokens)
        return True

    def publish(self, holding: Holding, text: bytes, tokens: int) -> None:
        whole = min(tokens // self._size, len(text) // self.tree.block_bytes)
        more = min(whole - holding.shared, holding.own)
        if more <= 0 or not self._shares:
            return
        holding.own -= more
        self.tree.reserved -= more  # so there is room for them as shared ones
        holding.shared += more
        node = self.tree.insert(text[: holding.shared * self.tree.block_bytes])
        self.tree.hold(node)
        if holding.node is not None:
            self.tree.let_go(holding.node)
        holding.node = node

    def end(self, holding: Holding, text: bytes, tokens: int) -> None:
        self.publish(holding, text, tokens)
        self.tree.reserved -= holding.own
        if holding.node is not None:
            self.tree.let_go(holding.node)
        self._holdings.discard(holding)

    def growth(self, contexts: list[tuple[int, int]], most: int) -> int:
        room = self.tree.room()
        if self._more(contexts, most) <= room:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self._more(contexts, middle) <= room:
                low = middle
            else:
                high = middle
        return low

    def _more(self, contexts: list[tuple[int, int]], steps: int) -> int:
        size = self._size
        return sum(-(-(n + steps * by) // size) + -n // size for n, by in contexts)

    def check_integrity(self) -> None:
        self.tree.check_integrity()
        own = sum(each.own for each in self._holdings)
        assert own == self.tree.reserved, f"{self.tree.reserved} reserved, {own} with sequences"
        for each in self._holdings:
            needed = -(-each.tokens // self._size)
            assert each.own + each.shared >= needed, "a context without blocks"
            assert each.node is None or each.node.holders > 0, "a prefix that nobody holds"


class Slot:
    """A place for one sequence, and what the last one left there."""

    __slots__ = ("busy", "text", "tokens", "used")

    def __init__(self) -> None:
        self.text = b""
        self.tokens = 0
        self.busy = False
        self.used = 0


SIMILAR = 0.1
"""llama.cpp's ``slot-prompt-similarity``: less in common than this share of a prompt, and the slot
that was idle longest is taken instead."""
WORTH_KEEPING = 0.5
"""Less in common than this share of what a slot holds, and that is put aside first."""
WORTH_LOADING = 0.25
"""More in common than this share of what was put aside, and it may come back."""


class SlotKV:
    """llama.cpp's slots. One that is at work shows nothing to others.

    What leaves its slot is put aside in memory and comes back whole: there is one copy of
    everything (``server_prompt_cache`` in llama.cpp's ``tools/server``).
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._slots = [Slot() for _ in range(profile.concurrency)]
        self._aside: list[tuple[bytes, int]] = []
        """Texts and their tokens, the oldest first."""
        self._uses = 0

    def match(self, prompt: bytes) -> int:
        return max(self._tokens(common_bytes(slot.text, prompt)) for slot in self._slots)

    def begin(self, prompt: bytes, size: int, most: int) -> tuple[Holding, int] | None:
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        slot = max(free, key=lambda slot: common_bytes(slot.text, prompt))
        common = common_bytes(slot.text, prompt)
        if common <= SIMILAR * len(prompt):
            slot = min(reversed(free), key=lambda slot: slot.used)
            self._exchange(slot, prompt)
        elif common < WORTH_KEEPING * len(slot.text):
            self._exchange(slot, prompt)
        slot.busy = True
        holding = Holding()
        holding.slot = slot
        hit = min(self._tokens(common_bytes(slot.text, prompt)), size - 1)
        self.grow(holding, min(size, hit + most))
        return holding, hit

    def grow(self, holding: Holding, tokens: int) -> bool:
        assert holding.slot is not None
        holding.tokens = max(holding.tokens, tokens)
        return True

    def publish(self, holding: Holding, text: bytes, tokens: int) -> None:
        """Nobody sees it before the sequence ends."""

    def end(self, holding: Holding, text: bytes, tokens: int) -> None:
        slot = holding.slot
        assert slot is not None
        self._uses += 1
        slot.busy, slot.used, slot.tokens = False, self._uses, tokens
        slot.text = text[: int(tokens * self._profile.bytes_a_token)]

    def growth(self, contexts: list[tuple[int, int]], most: int) -> int:  # noqa: ARG002
        return most

    def check_integrity(self) -> None:
        for slot in self._slots:
            assert slot.tokens <= self._profile.window, "a slot holds more than its window"
            assert slot.tokens or not slot.text, "a text without tokens"
        kept = sum(tokens for _, tokens in self._aside)
        assert kept <= self._profile.aside_tokens, "more put aside than there is memory"

    def _exchange(self, slot: Slot, prompt: bytes) -> None:
        """Put aside what ``slot`` holds, and bring back what goes better with ``prompt``."""
        if slot.text and not any(text.startswith(slot.text) for text, _ in self._aside):
            self._aside = [each for each in self._aside if not slot.text.startswith(each[0])]
            self._aside.append((slot.text, slot.tokens))
        most = common_bytes(slot.text, prompt)
        share = most / len(slot.text) if slot.text else 0.0
        best = None
        for each in self._aside:
            common = common_bytes(each[0], prompt)
            used = common / len(each[0])
            if used >= WORTH_LOADING and used > share and common > most:
                best, share, most = each, used, common
        if best is not None:
            self._aside.remove(best)
        slot.text, slot.tokens = best or (b"", 0)
        while sum(tokens for _, tokens in self._aside) > self._profile.aside_tokens:
            self._aside.pop(0)

    def _tokens(self, size: int) -> int:
        return int(size / self._profile.bytes_a_token)


def cache_of(profile: Profile) -> KV:
    """The cache that ``profile`` describes."""
    return SlotKV(profile) if profile.cache == "slots" else PagedKV(profile)
