"""The prefix tree, against a plain dictionary of blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accord.engine.base import Message, Reply, Request
from accord.engine.prefix import PrefixTree, rendered

SIZE = 4
prompts = st.lists(st.sampled_from([b"aaaa", b"bbbb", b"cccc"]), max_size=8).map(b"".join)
tails = st.binary(max_size=SIZE - 1)


@given(st.lists(st.tuples(prompts, tails), max_size=30), prompts)
def test_it_matches_the_longest_beginning_that_was_inserted(
    inserted: list[tuple[bytes, bytes]], asked: bytes
) -> None:
    tree = PrefixTree(block_bytes=SIZE)
    held: set[bytes] = set()
    for prompt, tail in inserted:
        tree.insert(prompt + tail)
        held |= {prompt[:end] for end in range(SIZE, len(prompt) + 1, SIZE)}
        tree.check_integrity()
    ends = [end for end in range(SIZE, len(asked) + 1, SIZE) if asked[:end] in held]
    assert tree.match(asked) == max(ends, default=0)
    assert tree.blocks == len(held)


@given(st.lists(st.tuples(prompts, st.booleans()), max_size=60), st.integers(1, 12))
def test_it_keeps_within_its_capacity_and_keeps_what_is_held(
    work: list[tuple[bytes, bool]], capacity: int
) -> None:
    tree = PrefixTree(capacity, block_bytes=SIZE)
    holds = []
    for prompt, keep in work:
        node = tree.insert(prompt)
        if keep and node.parent is not None:
            tree.hold(node)
            holds.append((node, prompt[: tree.match(prompt)]))
        elif holds:
            tree.let_go(holds.pop(0)[0])
        tree.check_integrity()
        for _, kept in holds:
            assert tree.match(kept) == len(kept)
    for node, _ in holds:
        tree.let_go(node)
    assert tree.held == 0
    assert tree.make_room(capacity) == capacity
    assert tree.blocks == 0
    tree.check_integrity()


def test_what_was_used_least_goes_first_and_ends_go_before_beginnings() -> None:
    tree = PrefixTree(4, block_bytes=SIZE)
    tree.insert(b"aaaabbbb")
    tree.insert(b"ccccdddd")
    tree.insert(b"aaaabbbb")
    tree.insert(b"eeee")
    assert tree.match(b"ccccdddd") == SIZE
    assert tree.match(b"aaaabbbb") == 2 * SIZE
    assert tree.evicted == 1


def test_the_prompt_of_the_next_turn_begins_with_that_of_this_one_and_its_reply() -> None:
    first = (Message("system", "Be brief."), Message("user", "Hello 世界\ud800"))
    reply = Reply(text="Hi.")
    more = (*first, Message("assistant", reply.text), Message("user", "Again."))
    this, following = rendered(Request(messages=first)), rendered(Request(messages=more))
    assert following.startswith(this + b"Hi.")
