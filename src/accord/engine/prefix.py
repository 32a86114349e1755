"""What a prefix cache holds: a radix tree over prompts, in blocks; it forgets what was used least.

Prompts are bytes, as :func:`rendered` writes them; only whole blocks are held, as in vLLM
(arXiv:2309.06180) and SGLang (arXiv:2312.07104). An edge is as long as it can be, so the cost of a
prompt is that of comparing its bytes, not of counting its blocks.

The tree does not know time: what is used last goes last. What somebody holds (:meth:`hold`) stays.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from accord.engine.base import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accord.engine.base import Request

REPLY = b"\n<assistant>\n"
"""Where a prompt ends."""
BYTES_A_TOKEN = 4
"""What English text and code have, about."""


def rendered(request: Request) -> bytes:
    """The prompt of ``request`` as one text, tools first, up to where the reply begins.

    The prompt of a later turn of the same conversation begins with it and with its reply.
    """
    parts: list[bytes] = []
    if request.tools:
        parts.append(msgspec.json.encode(request.tools))
    for message in joined(request.messages):
        parts.append(b"\n<%b>\n%b" % (message.role.encode(), _bytes(message.content)))
        if message.tool_calls:
            parts.append(msgspec.json.encode(message.tool_calls))
    return b"".join([*parts, REPLY])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # the first `low` bytes are equal, not all `high`
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


class Node:
    """An edge of the tree with what comes behind it."""

    __slots__ = ("children", "holders", "key", "parent", "serial", "used")

    def __init__(self, key: bytes, parent: Node | None, serial: int) -> None:
        self.key = key
        self.serial = serial
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        """By their first block."""
        self.holders = 0
        """Of this node, or of one below it."""
        self.used = 0

    def up(self) -> Iterator[Node]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Holds at most ``capacity`` blocks (None: any number) of ``block_bytes`` each."""

    def __init__(
        self, capacity: int | None = None, *, block_bytes: int = 16 * BYTES_A_TOKEN
    ) -> None:
        assert block_bytes >= 1, "a block holds something"
        assert capacity is None or capacity >= 0, "a capacity is a number of blocks"
        self.capacity = capacity
        self.block_bytes = block_bytes
        self.blocks = 0
        """Of prompts."""
        self.reserved = 0
        """Of what is no prompt yet: taken from the capacity all the same."""
        self.held = 0
        """Those of ``blocks`` that somebody holds."""
        self.evicted = 0
        """Blocks forgotten so far."""
        self._root = Node(b"", None, 0)
        self._uses = self._serial = 0
        self._leaves: list[tuple[int, int, Node]] = []
        """What could go next: a heap by last use. Entries may be out of date."""

    def match(self, prompt: bytes) -> int:
        """How many bytes at the beginning of ``prompt`` are held; whole blocks."""
        _, length, within = self._walk(prompt)
        return length + within

    def insert(self, prompt: bytes) -> Node:
        """Hold the whole blocks of ``prompt``, as far as there is room; it is the last used now.

        Gives the node at its end.
        """
        node, length, within = self._walk(prompt)
        if within:
            node = self._split(node, prompt[length : length + self.block_bytes], within)
            length += within
        self._touch(node)
        missing = (len(prompt) - length) // self.block_bytes
        if missing:
            self._hold(node, 1)  # or making room could take what this stands on
            missing = min(missing, self.make_room(missing))
            self._hold(node, -1)
        if missing:
            end = length + missing * self.block_bytes
            leaf = self._node(prompt[length:end], node)
            node.children[leaf.key[: self.block_bytes]] = leaf
            self.blocks += missing
            node = leaf
            self._touch(node)
        if not node.holders:
            self._may_go(node)
        return node

    def hold(self, node: Node) -> None:
        """Keep ``node`` and all above it until it is let go as often."""
        self._hold(node, 1)

    def let_go(self, node: Node) -> None:
        """Undo one :meth:`hold`."""
        self._hold(node, -1)
        if not node.holders:
            self._may_go(node)

    def room(self) -> int:
        """Blocks that could be had: free, or held by nobody."""
        if self.capacity is None:
            return 1 << 62
        return self.capacity - self.reserved - self.held

    def loose(self, prompt: bytes) -> int:
        """Blocks at the beginning of ``prompt`` that are there and that nobody holds."""
        node, length, within = self._walk(prompt)
        count = 0
        if within and not node.children[prompt[length : length + self.block_bytes]].holders:
            count = within
        count += sum(len(each.key) for each in node.up() if not each.holders)
        return count // self.block_bytes

    def make_room(self, blocks: int) -> int:
        """Forget what was used least until ``blocks`` are free; gives how many are, at most."""
        if self.capacity is None:
            return blocks
        while (free := self.capacity - self.blocks - self.reserved) < blocks:
            leaf = self._oldest()
            if leaf is None:
                break
            self._shorten(leaf, blocks - free)
        return max(0, min(blocks, free))

    def check_integrity(self) -> None:
        """Count everything anew; raises AssertionError where the books are wrong."""
        blocks = held = 0
        listed = {serial for _, serial, _ in self._leaves}
        stack = [self._root]
        while stack:
            node = stack.pop()
            assert sum(child.holders for child in node.children.values()) <= node.holders or (
                node is self._root
            ), "a node is held less than those below it"
            if node is not self._root:
                size, rest = divmod(len(node.key), self.block_bytes)
                assert size, "an empty edge"
                assert not rest, "an edge of a broken block"
                blocks += size
                held += size if node.holders else 0
                assert node.holders >= 0, "let go more often than held"
                if not node.children and not node.holders:
                    assert node.serial in listed, "what could go is not on the list"
            for first, child in node.children.items():
                assert child.parent is node, "a child with another parent"
                assert child.key.startswith(first), "a child under another's block"
                assert len(first) == self.block_bytes, "a child under half a block"
                stack.append(child)
        assert blocks == self.blocks, f"{self.blocks} blocks on the books, {blocks} in the tree"
        assert held == self.held, f"{self.held} held on the books, {held} in the tree"
        assert self.reserved >= 0, "less than nothing reserved"
        if self.capacity is not None:
            assert blocks + self.reserved <= self.capacity, "more blocks than there are"

    def _node(self, key: bytes, parent: Node) -> Node:
        self._serial += 1
        return Node(key, parent, self._serial)

    def _walk(self, prompt: bytes) -> tuple[Node, int, int]:
        """The last node that ``prompt`` goes through, its end, and how far it goes on in a child.

        Where it goes on in a child, the node given is the child's parent.
        """
        node, length, size = self._root, 0, self.block_bytes
        while True:
            child = node.children.get(prompt[length : length + size])
            if child is None:
                return node, length, 0
            if not prompt.startswith(child.key, length):
                common = common_bytes(child.key, prompt[length : length + len(child.key)])
                return node, length, common // size * size
            node = child
            length += len(child.key)

    def _split(self, parent: Node, first: bytes, length: int) -> Node:
        """Cut an edge in two. The lower part stays who it is: others may hold it."""
        lower = parent.children[first]
        upper = self._node(lower.key[:length], parent)
        upper.holders, upper.used = lower.holders, lower.used
        lower.key, lower.parent = lower.key[length:], upper
        upper.children[lower.key[: self.block_bytes]] = lower
        parent.children[first] = upper
        return upper

    def _touch(self, node: Node) -> None:
        self._uses += 1
        for each in node.up():
            each.used = self._uses

    def _hold(self, node: Node, by: int) -> None:
        for each in node.up():
            before, each.holders = each.holders, each.holders + by
            if not before or not each.holders:
                self.held += by * (len(each.key) // self.block_bytes)

    def _may_go(self, node: Node) -> None:
        if node.parent is None or node.children or node.holders:
            return
        heappush(self._leaves, (node.used, node.serial, node))
        if len(self._leaves) > 64 + 4 * self.blocks:
            self._leaves = list({entry[1]: entry for entry in self._leaves}.values())
            heapify(self._leaves)

    def _oldest(self) -> Node | None:
        """The leaf that was used least lately, of those that nobody holds."""
        while self._leaves:
            used, _, node = heappop(self._leaves)
            if node.parent is None or node.children or node.holders:
                continue
            if used != node.used:
                heappush(self._leaves, (node.used, node.serial, node))
                continue
            return node
        return None

    def _shorten(self, leaf: Node, blocks: int) -> None:
        """Take ``blocks`` off the end of ``leaf``, at most all of it."""
        parent = leaf.parent
        assert parent is not None
        size = len(leaf.key) // self.block_bytes
        gone = min(blocks, size)
        self.blocks -= gone
        self.evicted += gone
        if gone < size:
            leaf.key = leaf.key[: (size - gone) * self.block_bytes]
            self._may_go(leaf)
            return
        del parent.children[leaf.key[: self.block_bytes]]
        leaf.parent = None
        self._may_go(parent)
