"""Group chat: who speaks next, when it is over, and what each is shown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from accord import Agent, Ending, Runtime, tool
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Reply, Request, ToolCall
from accord.errors import (
    BudgetExceededError,
    EngineUnavailableError,
    RejectedError,
    ToolLostError,
    UnknownOutcomeError,
    UsageError,
)
from accord.log.events import Written
from accord.runtime import Result
from accord.team.chat import ChatResult, GroupChat
from accord.team.manager import Manager
from accord.team.speakers import Bids, RoundRobin, Rule, Swarm
from accord.team.termination import (
    Handoff,
    MaxMessages,
    SourceMatch,
    TextMention,
    Timeout,
    TokenUsage,
)
from accord.team.transcript import ChatMessage, Choice
from accord.testing.scripted import ScriptedEngine

ABC = [Agent(name, f"You are {name}.") for name in ("ann", "bob", "cid")]
FIVE = MaxMessages(5)


def hold(
    chat: GroupChat, engine: ScriptedEngine | None = None, task: str = "the task"
) -> Result[ChatResult]:
    async def main() -> Result[ChatResult]:
        made = engine or ScriptedEngine(speak())
        async with Runtime(engine=made, log="memory", clock=VirtualClock()) as runtime:
            return await runtime.arun(chat, task)

    return run_virtual(main())


def speak(manager: Callable[[Request], Any] | Any = None) -> Callable[[Request], Any]:
    """Members say something new each time; a manager answers as told."""
    said: Counter[str] = Counter()

    def answer(request: Request) -> Any:
        if request.agent == "manager":
            return manager(request) if callable(manager) else manager
        said[request.agent] += 1
        return f"Remark {said[request.agent]} of {request.agent}."

    return answer


def speakers(result: Result[ChatResult]) -> str:
    return " ".join(message.speaker for message in result.output.messages)


def choices(result: Result[Any]) -> list[Choice]:
    values = result.log.values
    written = [e.event for e in result.log.envelopes if isinstance(e.event, Written)]
    return [values.decode(w.value) for w in written if w.key.endswith("/choices")]


# ------------------------------------------------------------------------------------- who speaks


def test_round_robin_gives_the_word_in_turn() -> None:
    result = hold(GroupChat(ABC, until=FIVE))
    assert speakers(result) == "ann bob cid ann bob"
    assert result.output.output == "Remark 2 of bob."
    assert result.output.turns == {"ann": 2, "bob": 2, "cid": 1}
    assert result.output.stopped == "MaxMessages(most=5)"


def test_transitions_say_who_may_follow_whom() -> None:
    chat = GroupChat(ABC, speakers={"ann": ["bob", "cid"], "bob": "ann", "Cid": "ann"}, until=FIVE)
    assert speakers(hold(chat)) == "ann bob ann cid ann"


def test_where_nobody_may_follow_the_chat_is_over() -> None:
    result = hold(GroupChat(ABC, speakers={"ann": "bob", "bob": []}, until=FIVE))
    assert speakers(result) == "ann bob"
    assert result.output.stopped == "nobody may speak"
    assert result.output.unmet == ("MaxMessages(most=5)",)


def test_a_rule_is_a_function_of_the_messages() -> None:
    def rule(messages: Sequence[ChatMessage]) -> list[str] | None:
        return None if len(messages) >= 4 else ["cid", "Ann:"]

    assert speakers(hold(GroupChat(ABC, speakers=rule))) == "cid ann cid ann"

    async def later(messages: Sequence[ChatMessage]) -> str:
        await asyncio.sleep(1)
        return "ann" if not messages else "bob"

    assert speakers(hold(GroupChat(ABC, speakers=later, until=MaxMessages(3)))) == "ann bob bob"


def test_a_rule_that_names_nobody_of_the_chat_is_an_error_that_lists_it() -> None:
    with pytest.raises(UsageError, match="'dora'; there are: ann, bob, cid"):
        hold(GroupChat(ABC, speakers=lambda _: "dora"))


def test_the_highest_bid_speaks_and_of_equals_who_was_silent_longest() -> None:
    def bid(name: str, messages: Sequence[ChatMessage]) -> float:
        return 1.0 if len(messages) < 2 else float(name == "cid") + 0.5

    result = hold(GroupChat(ABC, speakers=Bids(bid=bid), until=FIVE))
    assert speakers(result) == "ann bob cid ann cid"
    assert choices(result)[-1].why == "bids: bob 0.5, cid 1.5"


def test_bids_are_asked_at_once_and_are_coordination() -> None:
    """USG-10: and who fails to bid has bid nothing."""

    def script(request: Request) -> Any:
        match request.agent:
            case "bob bids":
                return {"bid": 7}
            case "ann bids":
                return EngineUnavailableError("gone")
            case "cid bids":
                return "many"
            case _:
                return "said"

    members = [Agent(agent.name, agent.instructions, retry=None) for agent in ABC]
    engine = ScriptedEngine(script, decode_s=1.0)
    result = hold(GroupChat(members, speakers="bids", until=MaxMessages(1)), engine)
    assert speakers(result) == "bob"
    assert result.tax.tokens.coordination > 0
    first = result.output.messages[0]
    assert first.usage.prompt == result.usage.prompt


def test_a_swarm_goes_where_the_last_speaker_says() -> None:
    said = iter(["HANDOFF: Cid", "I do it.\n**Handoff: bob**", "Still at it.", "HANDOFF: user"])
    engine = ScriptedEngine(lambda _: next(said))
    result = hold(GroupChat(ABC, speakers="swarm", until=Handoff("user")), engine)
    assert speakers(result) == "ann cid bob bob"
    assert result.output.stopped == "Handoff(to='user')"
    assert "HANDOFF: name', of: bob, cid" in str(engine.requests[0].messages)


@dataclass
class Ticket:
    text: str
    handoff: str = ""


def test_a_swarm_reads_a_typed_reply() -> None:
    said = iter([{"text": "a", "handoff": "bob"}, {"text": "b", "handoff": "user"}])
    members = [Agent(name, output=Ticket) for name in ("ann", "bob")]
    result = hold(
        GroupChat(members, speakers=Swarm(), until=Handoff()), ScriptedEngine(lambda _: next(said))
    )
    assert result.output.messages[-1].content == Ticket("b", "user")


# ---------------------------------------------------------------------------------------- manager


def test_a_manager_plans_several_turns_in_one_call() -> None:
    engine = ScriptedEngine(speak({"turns": ["bob: begin", "CID: go on", "'ann' - end"]}))
    result = hold(GroupChat(ABC, speakers="manager", until=MaxMessages(6)), engine)
    assert speakers(result) == "bob cid ann bob cid ann"
    assert [m.instruction for m in result.output.messages[:3]] == ["begin", "go on", "end"]
    assert [r.agent for r in engine.requests].count("manager") == 2
    assert result.output.choices == 2


def test_a_manager_is_coordination_and_counted() -> None:
    """USG-10."""
    result = hold(
        GroupChat(ABC, speakers="manager", until=FIVE),
        ScriptedEngine(speak({"turns": ["bob: begin", "cid: go on"]})),
    )
    manager = result.tax.agents["manager"]
    assert result.tax.tokens.coordination == manager.prompt + manager.completion > 0
    assert result.tax.tokens.coordination < result.tax.tokens.total
    assert result.output.usage.prompt == result.usage.prompt
    assert result.tax.closes


def test_a_manager_may_say_that_it_is_done() -> None:
    engine = ScriptedEngine(speak({"turns": ["bob: begin", "cid: end"], "done": True}))
    result = hold(GroupChat(ABC, speakers="manager"), engine)
    assert speakers(result) == "bob cid"
    assert result.output.stopped == "the manager is done"


@pytest.mark.parametrize("answer", ["ann", {"turns": ["ann"]}, '{"speaker": "ann"}'])
def test_a_manager_that_always_names_the_same_is_no_livelock(answer: Any) -> None:
    """MGR-1: somebody else is next, the chat ends, and the loop is on record."""
    result = hold(
        GroupChat(ABC, speakers="manager", until=MaxMessages(9)), ScriptedEngine(speak(answer))
    )
    order = speakers(result).split()
    assert len(order) == 9
    assert all(one != other for one, other in pairwise(order))
    assert set(order) == {"ann", "bob", "cid"}
    assert result.output.fallbacks > 0
    assert result.output.loops > 0
    loops = [choice for choice in choices(result) if choice.loop]
    assert loops
    assert all(choice.loop > 3 for choice in loops)
    assert sum(choice.loop > 0 for choice in choices(result)) == result.output.loops


def test_a_rule_that_always_names_the_same_with_repeats_off_is_no_livelock() -> None:
    """MGR-1."""
    chat = GroupChat(ABC, speakers=lambda _: "ann", repeats=False, until=MaxMessages(9))
    result = hold(chat)
    assert speakers(result) == "ann bob ann cid ann bob ann cid ann"
    assert result.output.loops > 0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{}",
        '{"coworker": null}',
        '{"task": {"description": "x"}}',
        "Zoe",
        "ann or bob",
        "[[1]]",
    ],
)
def test_a_manager_of_no_use_is_told_once_and_then_a_rule_goes_on(answer: str) -> None:
    """MGR-1, MGR-4."""
    engine = ScriptedEngine(speak(answer))
    result = hold(GroupChat(ABC, speakers="manager", until=MaxMessages(3)), engine)
    assert speakers(result) == "ann bob cid"
    assert result.output.fallbacks == 3
    assert result.output.corrections == 2
    assert result.output.unasked == 1
    asked = [r for r in engine.requests if r.agent == "manager"]
    assert len(asked) == 4
    assert "no use" in asked[1].messages[-1].content
    assert "ann" in asked[1].messages[-1].content


@pytest.mark.parametrize("turns", [2, 5, 6, 30])
@pytest.mark.parametrize("answer", ["Hello!", {"turns": ["zoe"]}, RejectedError("no")])
def test_a_manager_that_is_never_of_use_is_asked_once_a_round(answer: Any, turns: int) -> None:
    """MGR-1, MGR-4: twice with a correction, then one try after each round of the members."""
    engine = ScriptedEngine(speak(answer))
    result = hold(GroupChat(ABC, speakers="manager", until=MaxMessages(turns)), engine)
    tries = 2 + max(0, turns - 2) // (len(ABC) + 1)
    corrections = 0 if isinstance(answer, Exception) else 2
    assert [r.agent for r in engine.requests].count("manager") == tries + corrections
    assert result.output.fallbacks == turns
    assert result.output.unasked == turns - tries
    assert result.output.turns == Counter(["ann", "bob", "cid"][i % 3] for i in range(turns))
    left_alone = [choice for choice in choices(result) if choice.unasked]
    assert all("not asked" in choice.why for choice in left_alone)


def test_a_manager_that_is_of_use_after_its_rest_is_asked_as_before() -> None:
    answers = iter(["?"] * 4 + ["cid"] + ["?"] * 2 + ["bob"])
    engine = ScriptedEngine(speak(lambda _: next(answers)))
    result = hold(GroupChat(ABC, speakers=Manager(turns=1), until=MaxMessages(8)), engine)
    by = [choice.by if not choice.unasked else "unasked" for choice in choices(result)]
    assert by == [*["fallback"] * 2, *["unasked"] * 3, "manager", "fallback", "manager"]


def test_a_manager_whose_engine_fails_is_stood_in_for() -> None:
    """MGR-1."""
    engine = ScriptedEngine(speak(EngineUnavailableError("gone")))
    result = hold(GroupChat(ABC, speakers="manager", until=MaxMessages(3)), engine)
    assert speakers(result) == "ann bob cid"
    assert "gone" in choices(result)[0].why


def test_what_a_manager_is_shown_does_not_grow_with_the_chat() -> None:
    def long(request: Request) -> Any:
        if request.agent == "manager":
            return {"turns": ["bob: go", "cid: go", "ann: go"]}
        return f"{request.agent} says a lot of things. " * 100

    engine = ScriptedEngine(long)
    hold(GroupChat(ABC, speakers=Manager(turns=3), until=MaxMessages(30)), engine, "task " * 3000)
    sizes = [
        sum(len(m.content) for m in r.messages) for r in engine.requests if r.agent == "manager"
    ]
    assert len(sizes) == 10
    assert sizes[-1] < sizes[1] * 1.6


def test_turns_of_a_plan_that_may_not_follow_each_other_are_left_out() -> None:
    engine = ScriptedEngine(speak({"turns": ["bob", "bob", "cid", "ann", "cid"]}))
    chat = GroupChat(ABC, speakers=Manager(), transitions={"cid": "bob"}, until=MaxMessages(3))
    result = hold(chat, engine)
    assert speakers(result) == "bob cid bob"
    assert "ann may not speak after cid, but bob" in choices(result)[0].why


# ------------------------------------------------------------------------------------ when it ends


def test_conditions_combine() -> None:
    both = MaxMessages(2) & SourceMatch("cid")
    assert speakers(hold(GroupChat(ABC, until=both))) == "ann bob cid"
    either = MaxMessages(2) | SourceMatch("cid")
    result = hold(GroupChat(ABC, until=either))
    assert speakers(result) == "ann bob"
    assert result.output.met == ("MaxMessages(most=2)",)
    assert result.output.unmet == ("SourceMatch(by=('cid',))",)


def test_a_condition_once_met_stays_met() -> None:
    both = SourceMatch("ann") & SourceMatch("cid")
    assert speakers(hold(GroupChat(ABC, until=both))) == "ann bob cid"


def test_a_word_ends_it_only_by_whom_and_as_the_last_sentence() -> None:
    said = iter(["APPROVED", "NOT APPROVED", "x", "APPROVED", "Fine. **APPROVED**"])
    engine = ScriptedEngine(lambda _: next(said))
    result = hold(GroupChat(ABC, until=TextMention("APPROVED", by="bob") | MaxMessages(9)), engine)
    assert len(result.output.messages) == 5
    told = [r.agent for r in engine.requests if "end your reply with APPROVED" in str(r.messages)]
    assert set(told) == {"bob"}


def test_an_ending_or_a_function_may_stand_for_a_condition() -> None:
    engine = ScriptedEngine(lambda _: "DONE")
    assert speakers(hold(GroupChat(ABC, until=Ending()), engine)) == "ann"
    assert speakers(hold(GroupChat(ABC, until=lambda m: len(m) == 2))) == "ann bob"
    mixed = MaxMessages(9) | (lambda m: len(m) == 4)
    assert len(hold(GroupChat(ABC, until=mixed)).output.messages) == 4


def test_time_is_the_runs() -> None:
    engine = ScriptedEngine(speak(), decode_s=10.0)
    result = hold(GroupChat(ABC, until=Timeout(25)), engine)
    assert [m.after_s for m in result.output.messages] == [10.0, 20.0, 30.0]


def test_tokens_are_counted_with_coordination() -> None:
    result = hold(
        GroupChat(ABC, speakers="manager", until=TokenUsage(total=500)),
        ScriptedEngine(speak({"turns": ["bob", "cid"]})),
    )
    used = [m.usage.prompt + m.usage.completion for m in result.output.messages]
    assert used[-1] >= 500 > used[-2]
    assert used[-1] == result.tax.tokens.total


@pytest.mark.parametrize("until", [None, TextMention("NEVER"), Handoff("user"), lambda _: False])
def test_a_chat_without_a_bound_gets_one(until: Any) -> None:
    result = hold(GroupChat(ABC, until=until))
    assert len(result.output.messages) == 12
    assert "MaxMessages(most=12)" in result.output.met


def test_time_that_never_passes_is_no_endless_chat() -> None:
    chat = GroupChat([ABC[0]], until=Timeout(5), sees="last")
    assert len(hold(chat).output.messages) == 1000


def test_one_condition_serves_many_chats() -> None:
    until = MaxMessages(3) & SourceMatch("bob")
    one, other = GroupChat(ABC, until=until), GroupChat(ABC[:2], until=until)
    assert speakers(hold(one)) == "ann bob cid"
    assert speakers(hold(other)) == "ann bob ann"
    assert speakers(hold(one)) == "ann bob cid"


# ------------------------------------------------------------------------------ what each is shown


def test_others_see_the_conclusion_and_not_the_tools() -> None:
    """TOK-6."""

    @tool(pure=True)
    def dig(place: str) -> str:
        """Dig."""
        return f"SECRET of {place}"

    def script(request: Request) -> Any:
        if request.agent == "digger" and request.messages[-1].role != "tool":
            calls = tuple(ToolCall(str(i), "dig", f'{{"place": "{i}"}}') for i in range(5))
            return Reply(text="", tool_calls=calls, finish_reason="tool_calls")
        return f"{request.agent} is done"

    engine = ScriptedEngine(script)
    digger = Agent("digger", tools=[dig])
    hold(GroupChat([digger, ABC[0]], until=MaxMessages(2)), engine)
    [request] = [r for r in engine.requests if r.agent == "ann"]
    assert "digger is done" in str(request.messages)
    assert "SECRET" not in str(request)
    assert not [m for m in request.messages if m.role == "tool" or m.tool_calls]


@pytest.mark.parametrize("sees", ["summary", "diff", "full"])
def test_no_message_is_in_a_prompt_twice(sees: Any) -> None:
    """TOK-4, TOK-7: two agents hand over to each other again and again."""
    count = iter(range(100))

    def script(request: Request) -> str:
        other = "bob" if request.agent == "ann" else "ann"
        return f"Message number {next(count)} of all.\nHANDOFF: {other}"

    engine = ScriptedEngine(script)
    chat = GroupChat(ABC[:2], speakers="swarm", sees=sees, until=MaxMessages(8))
    hold(chat, engine, "A task of its own kind.")
    for index, request in enumerate(engine.requests):
        text = "\n".join(message.content for message in request.messages)
        for number in range(index):
            assert text.count(f"Message number {number} of all.") <= 1
        assert text.count("A task of its own kind.") == 1
    last = "\n".join(message.content for message in engine.requests[-1].messages)
    assert sum(f"Message number {n} of all." in last for n in range(7)) == 7 or sees == "summary"


def test_full_history_grows_by_one_message_a_turn() -> None:
    """TOK-7: 1 + 6, and not 2 to the power of 6."""
    engine = ScriptedEngine(speak())
    hold(GroupChat(ABC[:2], sees="full", until=MaxMessages(7)), engine)
    counts = [str(request.messages).count("Remark") for request in engine.requests]
    assert counts == [0, 1, 2, 3, 4, 5, 6]


def test_members_keep_their_own_options_and_reads() -> None:
    from accord import Blackboard

    ann = Agent("ann", "You are ann.", reads={"rules": "full"}, writes={"log": "append"}, model="m")

    async def flow() -> Any:
        Blackboard().write("rules", "be brief")
        await GroupChat([ann, ABC[1]], until=MaxMessages(2))("task")
        return Blackboard().read("log")

    engine = ScriptedEngine(speak())

    async def main() -> Any:
        async with Runtime(engine=engine, log="memory", clock=VirtualClock()) as runtime:
            return (await runtime.arun(flow)).output

    assert run_virtual(main()) == ["Remark 1 of ann."]
    assert "be brief" in str(engine.requests[0].messages)
    assert engine.requests[0].model == "m"


def test_a_chat_may_be_a_member_of_another() -> None:
    inner = GroupChat(ABC[:2], until=MaxMessages(2), name="pair", description="Two of us.")
    engine = ScriptedEngine(speak())
    result = hold(GroupChat([inner, ABC[2]], until=MaxMessages(2)), engine)
    assert speakers(result) == "pair cid"
    assert result.output.messages[0].content == "Remark 1 of bob."
    assert "pair:\nRemark 1 of bob." in str(engine.requests[-1].messages[-1].content)


# ---------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GroupChat([]), "at least one agent"),
        (lambda: GroupChat([ABC[0], ABC[0]]), "tell 'ann'"),
        (lambda: GroupChat([print]), "no agent"),  # type: ignore[list-item]
        (lambda: GroupChat("ann"), "not with 'ann'"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, speakers="best"), "round_robin"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, speakers=7), "not 7"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, speakers=RoundRobin), "such as Manager"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, speakers={"ann": "zoe"}), "'zoe'; there are: ann, bob, cid"),
        (lambda: GroupChat(ABC, until=SourceMatch("zoe")), "waits for 'zoe'"),
        (lambda: GroupChat(ABC, until=TextMention("X", by="zoe")), "waits for 'zoe'"),
        (lambda: GroupChat(ABC, until=5), "not on 5"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, sees="all"), "summary"),  # type: ignore[arg-type]
        (lambda: GroupChat(ABC, name="ann"), "its own name"),
        (lambda: GroupChat(ABC, name="*"), "printable"),
        (lambda: GroupChat(ABC, loop_limit=0), "at least 1"),
        (lambda: MaxMessages(0), "above 0"),
        (lambda: Timeout(-1), "above 0"),
        (TokenUsage, "needs a bound"),
        (lambda: Manager(turns=0), "at least one turn"),
        (lambda: Manager(options={"tools": []}), "give them to who does the work"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


@pytest.mark.parametrize("task", ["", "  ", 7, None])
def test_a_chat_needs_a_task(task: Any) -> None:
    with pytest.raises(UsageError, match="needs a task"):
        hold(GroupChat(ABC), task=task)


ZAP = [ToolCall(id="c", name="zap", arguments="{}")]


@pytest.mark.parametrize("speakers", ["manager", "bids"])
def test_a_tool_that_is_not_there_is_nonsense_like_any_other(speakers: Any) -> None:
    """MGR-4: the chat goes on by a rule."""

    def answer(request: Request) -> Any:
        return ZAP if request.agent == "manager" or request.agent.endswith("bids") else "hi"

    chat = GroupChat(ABC, speakers=speakers, until=MaxMessages(3))
    result = hold(chat, ScriptedEngine(answer)).output
    assert result.turns == {"ann": 1, "bob": 1, "cid": 1}
    assert result.fallbacks == (3 if speakers == "manager" else 0)


def test_a_manager_that_calls_a_tool_is_told_so() -> None:
    def manages(request: Request) -> Any:
        told = any("you have none" in message.content for message in request.messages)
        return '{"turns": ["cid: go"], "done": false}' if told else ZAP

    chat = GroupChat(ABC, speakers="manager", until=MaxMessages(1))
    result = hold(chat, ScriptedEngine(speak(manages))).output
    assert result.turns == {"cid": 1}
    assert (result.corrections, result.fallbacks) == (1, 0)


@pytest.mark.parametrize("kind", [BudgetExceededError, UnknownOutcomeError, ToolLostError])
def test_what_is_not_a_managers_mistake_is_raised(kind: type[Exception]) -> None:
    chat = GroupChat(ABC, speakers="manager", until=MaxMessages(3))
    with pytest.raises(kind, match="as it is"):
        hold(chat, ScriptedEngine(speak(lambda _: kind("as it is"))))


def gives(value: Any) -> Any:
    """A function that gives ``value``, whatever it is asked."""
    return lambda *_: value


@pytest.mark.parametrize(
    ("speakers", "says"),
    [
        (Rule(gives(5)), r"rule <lambda>.* gave 5; have it give a member's name"),
        (Rule(gives([5])), r"rule <lambda>.* gave \[5\]; have it give a member's name"),
        (Bids(bid=gives(float("nan"))), r"<lambda> gave nan for 'ann'.* a number"),
        (Bids(bid=gives(None)), r"<lambda> gave None for 'ann'.* a number"),
        (Bids(bid=gives("much")), r"<lambda> gave 'much' for 'ann'.* a number"),
    ],
)
def test_a_function_that_gives_what_is_of_no_use_is_named(speakers: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hold(GroupChat(ABC, speakers=speakers))
