"""Logs of other systems are read whole, and no policy of visibility loses anything of them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import Agent
from accord.clock import VirtualClock, run_virtual
from accord.comm.blackboard import Blackboard
from accord.engine.base import Capabilities, Prices, Request, Usage
from accord.errors import UsageError
from accord.observe import records
from accord.observe.messages import MessageLog, read_messages
from accord.observe.sent import sent_of
from accord.observe.whatif import (
    EVERYONE,
    POLICIES,
    Conversation,
    Look,
    Utterance,
    Visibility,
    folded,
    history,
    looks,
)
from accord.runtime import Runtime
from accord.testing.scripted import ScriptedEngine
from accord.tokens.count import estimate
from accord.tokens.extract import excerpt
from accord.tokens.summary import HEAD

NAMES = ("ann", "bob", "the critic")
LOSSLESS: tuple[Visibility, ...] = ("full", "keys", "diff", "summary")
WORDS = "The price of Alpha rose by 12.5 percent. Nobody asked why? «Ask Bob», said the critic."


def long_text(size: int) -> str:
    words = WORDS.split() * (size // len(WORDS.split()) + 1)
    return " ".join(words[:size])


texts = st.one_of(st.text(max_size=30), st.integers(0, 1200).map(long_text))
utterances = st.lists(
    st.builds(
        Utterance,
        writer=st.sampled_from(NAMES),
        text=texts,
        reads=st.sampled_from([True, True, True, False]),
        instructs=st.sampled_from([None, None, None, None, "", "ann"]),
    ),
    max_size=30,
)
engines = st.fixed_dictionaries(
    {"cached_price": st.sampled_from([0.05, 0.1, 0.5, 1.0]), "summary_tokens": st.integers(1, 900)}
)


@given(utterances, engines, st.sampled_from(LOSSLESS))
def test_each_look_folded_with_its_handles_is_the_whole_history(
    said: list[Utterance], engine: dict[str, Any], policy: Visibility
) -> None:
    for look in looks(said, policy, **engine):
        assert folded(look, said) == history(look, said)


@given(utterances, engines)
def test_a_summary_and_what_is_shown_are_all_items_each_once(
    said: list[Utterance], engine: dict[str, Any]
) -> None:
    for look in looks(said, "summary", **engine):
        numbers = [item.number for piece in look.pieces for item in piece.items]
        assert sorted(numbers) == [number for number, _ in history(look, said)]
        for piece in look.pieces:
            if not piece.whole and piece.text != HEAD:
                first, last = piece.items[0].handle, piece.items[-1].handle
                handles = first if first == last else f"{first}-{last}"
                assert piece.text.split()[0].rstrip(":") == handles
                assert piece.tokens <= 0.05 * sum(item.tokens for item in piece.items)


@given(utterances, st.sampled_from(["full", "diff"]))
def test_what_was_new_in_each_look_adds_up_to_the_history(
    said: list[Utterance], policy: Visibility
) -> None:
    shown: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for look in looks(said, policy, replies_kept=False):
        news = look.pieces[look.cached :]
        shown[look.reader] += [(piece.items[0].number, piece.text) for piece in news]
        assert sorted(shown[look.reader]) == history(look, said)


@given(utterances, engines, st.sampled_from(POLICIES))
def test_cached_is_only_what_stood_at_the_head_of_the_last_prompt(
    said: list[Utterance], engine: dict[str, Any], policy: Visibility
) -> None:
    last: dict[str, Look] = {}
    for look in looks(said, policy, **engine, replies_kept=False):
        before = last[look.reader].pieces if look.reader in last else ()
        assert look.pieces[: look.cached] == before[: look.cached]
        tokens = [piece.tokens for piece in look.pieces]
        assert look.sent.total() == sum(tokens)
        assert look.new.total() == sum(tokens[look.cached :])
        last[look.reader] = look


@given(utterances, st.sampled_from([None, Prices(prompt=2.0, cached=0.2, completion=8.0)]))
def test_edges_add_up_to_agents_and_agents_to_the_whole(
    said: list[Utterance], prices: Prices | None
) -> None:
    sent = sent_of([Conversation(said), Conversation(said[:5])], prices)
    assert sent.unit == ("tokens" if prices is None else "dollars")
    assert sent.written == sum(estimate(each.text) for each in [*said, *said[:5]])
    assert sum(agent.turns for agent in sent.agents.values()) == sum(
        each.reads for each in [*said, *said[:5]]
    )
    for policy, whole in sent.policies.items():
        for name, agent in sent.agents.items():
            edges = [edge.policies[policy] for edge in sent.edges if edge.reader == name]
            assert agent.policies[policy].sent == sum(edge.sent for edge in edges)
            assert agent.policies[policy].new == sum(edge.new for edge in edges)
        parts = [agent.policies[policy] for agent in sent.agents.values()]
        assert whole.sent == sum(part.sent for part in parts)
        assert whole.priced == pytest.approx(sum(part.priced for part in parts))


@given(texts, st.integers(0, 200))
def test_an_excerpt_is_cut_from_the_most_telling_sentence(text: str, tokens: int) -> None:
    assert excerpt(excerpt(text, 10_000), tokens) == excerpt(text, tokens)


def test_what_each_policy_sends() -> None:
    a, b, c = "one two three", "four five", "six"
    said = [Utterance("ann", a), Utterance("bob", b), Utterance("ann", c), Utterance("bob", "")]
    found = {policy: list(looks(said, policy, replies_kept=False)) for policy in POLICIES}
    shown = {
        policy: [[piece.text for piece in look.pieces] for look in each]
        for policy, each in found.items()
    }
    assert shown["full"] == shown["diff"] == [[], [a], [a, b], [a, b, c]]
    assert shown["last"] == [[], [a], [b], [c]]
    assert shown["keys"][3][1:] == ["#0 ann 3", "#1 bob 2", "#2 ann 1"]
    assert [dict(look.sent) for look in found["full"]][3] == {"ann": 4, "bob": 2}
    assert [dict(look.new) for look in found["full"]][3] == {"bob": 2, "ann": 1}


BRIEF, ROLE = "All of you: settle the price of Alpha.", "You are Ann, who doubts."
LONG_TALK = [
    Utterance("board", BRIEF, reads=False, instructs=EVERYONE),
    Utterance("system", ROLE, reads=False, instructs="ann"),
    *(
        Utterance(name, f"Entry {number}. {long_text(300 + number * 37 % 130)}", bool(name))
        for number, name in enumerate(["", *["ann", "bob", "ann", "ann", "bob", "critic"] * 4])
    ),
]
"""Each entry is large enough for a line of its own, and no giant, with its title or without."""


def sent_at_run_time(said: list[Utterance], policy: Visibility) -> list[Request]:
    """What agents are sent that read one list, and append to it what they say."""
    replies = iter(each.text for each in said if each.reads)
    capabilities = Capabilities(prefix_cache=True)
    engine = ScriptedEngine(lambda _: next(replies), capabilities=capabilities)
    board = Blackboard()
    role = {each.instructs: each.text for each in said}

    def agent(name: str) -> Agent[str]:
        return Agent(
            name,
            role.get(name, ""),
            shares="brief",
            reads="chat",
            sees=policy,
            writes={"chat": "append"},
        )

    async def flow() -> None:  # each utterance takes one place, so that handles are its number
        for number, each in enumerate(said):
            if each.reads:
                await agent(each.writer)()
            elif each.instructs is None:
                board.append("chat", each.text)
            else:
                key = "brief" if each.instructs == EVERYONE else f"role {number}"
                board.write(key, each.text)

    async def main() -> None:
        await Runtime(engine=engine, log="memory", clock=VirtualClock()).arun(flow)

    run_virtual(main())
    return engine.requests


def shown_in(request: Request, said: list[Utterance]) -> list[str]:
    """Numbers of what is shown in full, and handles of lines, in the order of the prompt."""
    prompt = "\n".join(message.content for message in request.messages)
    found = {prompt.find(each.text): str(number) for number, each in enumerate(said)}
    found |= {line.start(): line[0] for line in re.finditer(r"(?m)^#[\d#-]+", prompt)}
    return [found[at] for at in sorted(found) if at >= 0]


@pytest.mark.parametrize("policy", ["diff", "summary"])
def test_agents_are_sent_at_run_time_what_the_model_says(policy: Visibility) -> None:
    """The same is shown in full and by lines, in the same order: going on, or made afresh."""
    real = [shown_in(request, LONG_TALK) for request in sent_at_run_time(LONG_TALK, policy)]
    model = [
        [
            str(piece.items[0].number) if piece.whole else piece.text.split()[0].rstrip(":")
            for piece in look.pieces
            if piece.text != HEAD
        ]
        for look in looks(LONG_TALK, policy)
    ]
    assert real == model
    lines = {tuple(each for each in prompt if "#" in each) for prompt in real}
    assert len(lines) > 5 if policy == "summary" else lines == {()}


def test_instructions_stand_first_in_every_prompt_of_their_agent() -> None:
    said = [
        Utterance("user", "Hello.", reads=False),
        Utterance("system", "You are Ann.", reads=False, instructs="ann"),
        Utterance("ann", "Hi."),
        Utterance("bob", "Ho."),
        Utterance("ann", ""),
    ]
    for policy in POLICIES:
        ann, bob, again = looks(said, policy)
        assert ann.pieces[0].text == again.pieces[0].text == "You are Ann."
        assert "You are Ann." not in [piece.text for piece in bob.pieces]
        assert again.cached >= 1


def test_a_giant_is_summarised_at_once_and_stays_within_reach() -> None:
    said = [
        Utterance("bob", "Small.", reads=False),
        Utterance("bob", long_text(3000)),
        Utterance("ann", ""),
    ]
    *_, look = looks(said, "summary")
    assert look.sent.total() < 0.1 * estimate(said[1].text)
    assert folded(look, said) == history(look, said)


def read(folder: Path, *values: Any, text: str | None = None) -> MessageLog:
    path = folder / "log"
    lines = "\n".join(json.dumps(value) for value in values)
    path.write_text(lines if text is None else text, encoding="utf-8")
    return read_messages(path)


def said(log: MessageLog) -> list[tuple[str, str, bool]]:
    [conversation] = log.conversations
    return [(each.writer, each.text, each.reads) for each in conversation.said]


def test_who_and_when_names_stand_in_role_or_name(tmp_path: Path) -> None:
    history = [
        {"content": "Which one?", "role": "human"},
        {"content": "Plan", "role": "Orchestrator (thought)"},
        {"content": "Look it up.", "role": "Orchestrator (-> WebSurfer)"},
        {"content": None, "role": "WebSurfer"},
        {"content": "x", "role": "user", "name": "Computer_terminal"},
    ]
    text = json.dumps({"history": history, "question": "?"}, indent=4)
    log = read(tmp_path, text=f"\n{text}\n")
    assert log.formats == ["Who&When"]
    assert said(log) == [
        ("human", "Which one?", False),
        ("Orchestrator", "Plan", True),
        ("Orchestrator", "Look it up.", True),
        ("WebSurfer", "", True),
        ("Computer_terminal", "x", True),
    ]


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": [{"type": "text", "text": "Hi."}, {"type": "image_url"}]}
ANSWER = {"role": "assistant", "content": "Ho."}
MORE = {"role": "user", "content": "Hi."}


def test_requests_go_on_with_the_conversation_that_they_begin_with(tmp_path: Path) -> None:
    """Whether the reply stands with its request or in the next one."""
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    response = {"choices": [{"message": ANSWER}], "usage": usage, "model": "gpt-4o"}
    whole = read(tmp_path, {"messages": [SYSTEM, USER, ANSWER, MORE, ANSWER]})
    for first in (
        {"messages": [SYSTEM, USER], "response": response},
        {"messages": [SYSTEM, USER], "response": "Ho."},
        {"request": {"body": {"messages": [SYSTEM, USER]}}, "response": ANSWER},
        {"messages": [SYSTEM, USER]},
    ):
        log = read(
            tmp_path,
            first,
            {"messages": [MORE], "response": "Another."},
            {"messages": [SYSTEM, USER, ANSWER, MORE], "response": response},
        )
        assert log.formats == ["OpenAI chat"]
        one, other = log.conversations
        assert one.said == whole.conversations[0].said
        assert one.model == "gpt-4o"
        assert len(other.said) == 2
        assert log.not_counted["image_url"] >= 1
        assert log.usage is not None
    assert log.usage == Usage(prompt=10, completion=2)


def test_a_request_without_a_reply_was_still_sent(tmp_path: Path) -> None:
    log = read(
        tmp_path, {"messages": [SYSTEM, MORE]}, {"messages": [SYSTEM, MORE], "response": "x"}
    )
    assert said(log) == [
        ("system", "Be brief.", False),
        ("user", "Hi.", False),
        ("assistant", "", True),
        ("assistant", "x", True),
    ]


def test_calls_of_tools_are_part_of_what_is_sent(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    asks = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "found", "tool_call_id": "1"}
    log = read(tmp_path, {"messages": [MORE, asks, result, ANSWER]})
    assert [text for _, text, _ in said(log)] == ["Hi.", 'look({"at": 1})', "found", "Ho."]


def test_records_of_runs_in_the_order_of_their_times(tmp_path: Path) -> None:
    records = [
        {"run": "r", "agent": "bob", "time": "2026-01-01T10:00:02Z", "content": "two"},
        {"run": "q", "agent": "bob", "time": 7, "content": "other"},
        {"run": "r", "agent": "ann", "time": "2026-01-01T10:00:01Z", "content": "one"},
    ]
    log = read(tmp_path, *records)
    array = read(tmp_path, records)
    assert array.conversations == log.conversations
    assert len(log.conversations) == 2
    assert [each.text for each in log.conversations[0].said] == ["one", "two"]
    del records[0]["time"]
    as_they_stand = read(tmp_path, *records).conversations[0]
    assert [each.text for each in as_they_stand.said] == ["two", "one"]


def test_what_an_agent_was_sent_is_written_once_in_a_run(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        {"run": 1, "agent": "ann", "messages": [SYSTEM, MORE], "content": "From Ann."},
        {
            "run": 1,
            "agent": "bob",
            "messages": [
                SYSTEM,
                MORE,
                {"role": "user", "name": "ann", "content": "From Ann."},
                MORE,
            ],
        },
    )
    assert said(log) == [
        ("system", "Be brief.", False),
        ("user", "Hi.", False),
        ("ann", "From Ann.", True),
        ("system", "Be brief.", False),
        ("user", "Hi.", False),
        ("bob", "", True),
    ]


def test_a_list_of_messages_is_a_conversation(tmp_path: Path) -> None:
    log = read(tmp_path, [MORE, {"role": "user", "name": "ann", "content": "Ho."}])
    assert said(log) == [("user", "Hi.", False), ("ann", "Ho.", True)]


def test_what_is_no_message_is_counted_with_its_reason(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        {"event": "start", "at": 1},
        {"messages": [MORE], "response": {"error": "too many"}},
        17,
        {"messages": []},
        {"history": []},
    )
    assert log.skipped == [
        ("line 1", "an object with event, at"),
        ("line 2", "a request whose response has no text"),
        ("line 3", "a number"),
        ("line 4", "a request without messages"),
        ("line 5", "an object with an empty history"),
    ]
    assert len(log.conversations) == 1


GOOD = '{"messages": [{"role": "user", "content": "x"}]}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        (" \n\n", "the file is empty"),
        ("hello\n", r"line 1: not JSON .*column 1: 'hello'\). Known are"),
        ("[]", "the array is empty"),
        ("null", "holds no messages: it is nothing. Known are"),
        ("[1, 2]", "item 1 is a number"),
        ('{"a": 1, "b": 2}', "it is an object with a, b. Known are"),
        ('{"a": 1}\n{"b": 2}', "line 1 is an object with a"),
        (f"{GOOD}\n" * 16 + '{"messages": [}\n' + GOOD, "line 17: not JSON .*column 15"),
        (f'{{"messages": [\n{GOOD}\n{GOOD}', "line 1: not JSON"),
        ('{\n"history": [\n{"content": "x"\n"role": "y"}]}', "line 4: not JSON .*column 1"),
        ("[" * 100_000, "line 1: JSON that cannot be read: nested too deep"),
        ('{"history": ["x"]}', r"history\[0\]: a text stands where a message"),
        ('{"history": [{"content": "x"}]}', r"history\[0\]: who wrote it is nothing"),
        ('{"history": [{"content": "x", "role": " "}]}', "who wrote it is an empty text"),
        (f'{GOOD}\n{{"messages": [{{"role": 1}}]}}', r"line 2, messages\[0\]: role is a number"),
        ('{"messages": [{"role": "user", "content": {}}]}', "content is an object; a text, a list"),
        ('{"agent": 1, "content": "x"}', "who wrote it is a number"),
        ('{"agent": "a", "content": [1]}', "a number stands where"),
    ],
)
def test_what_is_broken_is_named_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        read(tmp_path, text=text)
    assert str(tmp_path / "log") in str(caught.value)


def test_a_line_that_is_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", len(GOOD))
    assert read(tmp_path, text=f"{GOOD}").conversations
    with pytest.raises(UsageError, match="line 2: more than 0 MiB in one line"):
        read(tmp_path, text=f" \n{GOOD} ")


@pytest.mark.parametrize("data", [b"\xff\xfe{\x00}", b'{"a": "\xed\xa0\x80"}'])
def test_what_is_no_utf_8_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(GOOD.encode() + b"\n" + data)
    with pytest.raises(UsageError, match=r"line 2: not UTF-8 text \(byte 0x"):
        read_messages(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_messages(tmp_path)


def test_a_mark_at_the_beginning_and_a_cut_emoji_do_no_harm(tmp_path: Path) -> None:
    text = '\ufeff{"history": [{"role": "a\\ud83d", "content": "cut \\ud83d"}]}\r\n'
    assert said(read(tmp_path, text=text)) == [("a\ud83d", "cut \ud83d", True)]
    [conversation] = read(tmp_path, text=text).conversations
    assert sent_of([conversation]).written > 1


def test_an_engine_that_keeps_its_replies_reads_only_what_others_wrote() -> None:
    said = [Utterance("ann" if number % 2 else "bob", "word") for number in range(6)]
    looks_of_ann = [look for look in looks(said, "diff") if look.reader == "ann"]
    assert [dict(look.new) for look in looks_of_ann[1:]] == [{"bob": 1}, {"bob": 1}]
    again = [look for look in looks(said, "diff", replies_kept=False) if look.reader == "ann"]
    assert [dict(look.new) for look in again[1:]] == [{"ann": 1, "bob": 1}] * 2
