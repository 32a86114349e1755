"""What agents see of each other: by declared policy, each piece once, and nothing else."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from accord import Agent, Ending, gather, step, tool
from accord.agent.reading import VISIBILITIES, Visibility
from accord.clock import VirtualClock, run_virtual
from accord.comm.blackboard import Blackboard
from accord.comm.mailbox import Mailbox, dead_letters, send
from accord.comm.memory import Memory
from accord.engine.base import Capabilities, Reply, Request, ToolCall, joined
from accord.engine.wire import body, encode
from accord.errors import ContextTooLongError, RejectedError, ToolError, UsageError
from accord.log.events import Looked
from accord.observe.tax import tax_of
from accord.runtime import Result, Runtime
from accord.testing.scripted import ScriptedEngine
from accord.tokens.count import estimate

board = Blackboard()


def play(flow: Callable[[], Awaitable[Any]], engine: ScriptedEngine) -> Result[Any]:
    """Run ``flow`` on virtual time."""

    async def work() -> Any:
        return await flow()

    async def main() -> Result[Any]:
        return await Runtime(engine=engine, log="memory", clock=VirtualClock()).arun(work)

    return run_virtual(main())


def by_agent(request: Request) -> str:
    return f"{request.agent} says {len(request.messages)}"


def text_of(request: Request) -> str:
    return "\n".join(message.content for message in request.messages)


def asked_of(engine: ScriptedEngine, agent: str) -> list[Request]:
    return [request for request in engine.requests if request.agent == agent]


def size_of(request: Request) -> int:
    return estimate(text_of(request)) + estimate(json.dumps([t.parameters for t in request.tools]))


def common(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


NOTE = "Vault {0} of the northern archive holds {0}7 coins and a letter from Anna. "


async def notes(count: int) -> None:
    for index in range(count):
        await Agent(f"scout{index}", writes={"notes": "append"})(f"go {index}")


def scouts(request: Request) -> str:
    number = re.search(r"\d+", request.agent)
    return NOTE.format(number.group()) * 12 if number and "scout" in request.agent else "ok"


@pytest.mark.parametrize(
    ("policy", "holds", "lacks"),
    [
        ("nothing", [], ["Vault", "notes"]),
        ("keys", ["#0", "#4", "notes"], ["coins"]),
        ("last", ["Vault 4"], ["Vault 0", "Vault 3"]),
        ("diff", ["Vault 0", "Vault 3", "Vault 4"], []),
        ("full", ["Vault 0", "Vault 3", "Vault 4"], []),
        ("summary", ["#0", "#3", "Vault 4"], ["letter from Anna. Vault 0"]),
    ],
)
def test_an_edge_shows_exactly_what_its_policy_says(
    policy: Visibility, holds: list[str], lacks: list[str]
) -> None:
    """TOK-9: and the log says how many tokens were kept back."""
    reader = Agent("reader", "Read.", reads={"notes": policy})

    async def flow() -> Any:
        await notes(5)
        await reader("What is where?")

    engine = ScriptedEngine(scouts)
    result = play(flow, engine)
    [request] = asked_of(engine, "reader")
    text = text_of(request)
    assert not [each for each in holds if each not in text]
    assert not [each for each in lacks if each in text]
    views = [
        view for e in result.log.envelopes if isinstance(e.event, Looked) for view in e.event.views
    ]
    if policy == "nothing":
        assert all(view.sent == 0 for view in views)
        return
    assert {view.writer for view in views} == {f"scout{index}" for index in range(5)}
    assert all(view.sent <= view.full for view in views) or policy == "keys"
    saved = sum(view.full - view.sent for view in views)
    assert saved == 0 if policy in ("full", "diff") else saved > 0


def test_what_was_not_declared_is_not_seen() -> None:
    """TOK-6: of another agent, its conclusion; never its tools."""

    @tool(pure=True)
    def dig(place: str) -> str:
        """Dig."""
        return f"SECRET of {place}"

    def script(request: Request) -> Any:
        if request.agent == "digger" and request.messages[-1].role == "user":
            places = enumerate("abcde")
            return [ToolCall(str(i), "dig", json.dumps({"place": p})) for i, p in places]
        return f"{request.agent} is done"

    digger = Agent("digger", tools=[dig], writes={"chat": "append"})
    reader = Agent("reader", reads="chat")

    async def flow() -> Any:
        board.write("private", "not for the reader")
        await digger("dig")
        await reader("and?")

    engine = ScriptedEngine(script)
    play(flow, engine)
    [request] = asked_of(engine, "reader")
    assert "digger is done" in text_of(request)
    assert "SECRET" not in text_of(request)
    assert "private" not in text_of(request)
    assert not any(m.role == "tool" or m.tool_calls for m in request.messages)


def test_each_piece_is_in_a_prompt_once_however_often_agents_hand_over() -> None:
    """TOK-4, TOK-7: two agents bounce; messages grow by one each time, none is doubled."""
    triage = Agent("triage", "Triage.", reads="chat", writes={"chat": "append"})
    refund = Agent("refund", "Refund.", reads="chat", writes={"chat": "append"})
    answers = iter(f"unique answer {index}" for index in range(20))

    async def flow() -> Any:
        board.append("chat", "the customer's only question")
        for _ in range(4):
            await triage()
            await refund()

    engine = ScriptedEngine(lambda _: next(answers))
    play(flow, engine)
    for index, request in enumerate(engine.requests):
        text = text_of(request)
        pieces = ["the customer's only question", *(f"unique answer {i}" for i in range(index))]
        assert [len(re.findall(rf"{piece}\b", text)) for piece in pieces] == [1] * len(pieces)


def test_shared_text_comes_first_and_history_only_grows() -> None:
    """TOK-14: tools in any order, turns apart in time: the prompt of before is a prefix."""

    @tool
    def alpha(x: int) -> int:
        """A."""
        return x

    @tool
    def beta(x: int) -> int:
        """B."""
        return x

    def make(order: list[Any]) -> Agent[str]:
        return Agent("clerk", "Keep the books.", tools=order, shares="brief", sees="diff")

    async def flow() -> Any:
        board.write("brief", "The brief that all share. " * 50)
        await make([alpha, beta])("first?")
        await make([beta, alpha])("second?")
        await make([alpha, beta])("third?")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    bodies = [encode(body(request, "m", stream=True)) for request in engine.requests]
    assert joined(engine.requests[0].messages)[0].content.startswith("brief:\nThe brief")
    for before, after in itertools.pairwise(bodies):
        assert common(before, after) >= 0.95 * len(before)


def test_a_clock_in_the_instructions_is_sent_last_and_warned_of() -> None:
    """TOK-14: the linter."""
    with pytest.warns(UserWarning, match="tell the time"):
        agents = [
            Agent("clerk", f"Keep the books.\nNow it is 2026-11-30 08:0{minute}:00.", sees="diff")
            for minute in range(3)
        ]

    async def flow() -> Any:
        for agent in agents:
            await agent("A question that is long enough to make up most of the prompt? " * 10)

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    bodies = [encode(body(request, "m", stream=True)) for request in engine.requests]
    for before, after in itertools.pairwise(bodies):
        assert common(before, after) >= 0.9 * len(before)
    assert "08:02:00" in engine.requests[-1].messages[-1].content
    assert "08:01:00" not in text_of(engine.requests[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Agent("clerk", "Answer within 24:00 hours, or by version 1.2.3.")


def test_no_metadata_reaches_a_prompt() -> None:
    """TOK-15: role and content alone, and no class, id or place of the framework's in them."""

    async def flow() -> Any:
        board.write("plan", {"parts": [1, 2]})
        await Agent("a", "Do.", reads="plan", writes="out")("x")
        await Agent("b", "Do.", reads="*")("y")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    for request in engine.requests:
        for message in body(request, "m", stream=False)["messages"]:
            assert set(message) == {"role", "content"}
        assert not re.search(r"\$type|accord|seq|scope|#\d", text_of(request))


def test_forty_steps_cost_a_third_and_the_first_fact_is_still_there() -> None:
    """TOK-1: old results give way to lines with handles; the task stays."""
    asked = 0

    @tool(pure=True)
    def page(number: int) -> str:
        """A page."""
        return f"Page {number}: " + " ".join(f"word{number}x{i}" for i in range(120))

    def script(request: Request) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 40:
            return [ToolCall(f"c{asked}", "page", json.dumps({"number": asked}))]
        return "done"

    agent = Agent("a", "Read all pages.", tools=[page], sees="summary", tool_rounds=40)

    async def flow() -> Any:
        return await agent("The password is swordfish. Read 40 pages, then say it.")

    engine = ScriptedEngine(script, capabilities=Capabilities(prefix_cache=True))
    play(flow, engine)
    result = page.function(1)
    naive = sum(round(estimate(str(result)) * step) + 20 for step in range(41))
    sent = sum(size_of(request) for request in engine.requests)
    assert len(engine.requests) == 41
    assert sent <= 0.35 * naive
    assert "swordfish" in text_of(engine.requests[-1])
    answered = [m.tool_call_id for m in engine.requests[-1].messages if m.role == "tool"]
    assert answered == ["c40"], "the last round stands in full"


def test_a_huge_result_is_capped_and_what_was_left_out_can_be_fetched() -> None:
    """TOK-2: the prompt stays small, the needle is retrievable, the system text is there once."""
    whole = "x" * 150_000 + " the needle is 4711 " + "y" * 49_980

    @tool(pure=True)
    def dump() -> str:
        """Everything."""
        return whole

    def script(request: Request) -> Any:
        tools = [m for m in request.messages if m.role == "tool"]
        if not tools:
            return [ToolCall("1", "dump", "{}")]
        if len(tools) == 1:
            handle = re.search(r"recall (#\S+)", tools[0].content)
            assert handle is not None
            assert "recall" in [spec.name for spec in request.tools]
            arguments = {"handle": handle.group(1), "find": "NEEDLE"}
            return [ToolCall("2", "recall", json.dumps(arguments))]
        return tools[1].content

    async def flow() -> Any:
        return await Agent("a", "Find it.", tools=[dump])("where?")

    engine = ScriptedEngine(script)
    assert "the needle is 4711" in play(flow, engine).output
    for request in engine.requests:
        assert estimate(text_of(request)) < 20_000
        assert text_of(request).count("Find it.") == 1


@pytest.mark.parametrize(
    "arguments",
    ['{"handle": "#99"}', '{"handle": "nonsense"}', "{}", "not json", '{"handle": 3}', "[" * 5000],
)
def test_a_handle_that_leads_nowhere_is_told_to_the_model(arguments: str) -> None:
    def script(request: Request) -> Any:
        if request.agent != "reader":
            return NOTE.format(1) * 12
        if request.messages[-1].role == "user":
            return [ToolCall("1", "recall", arguments)]
        return request.messages[-1].content

    async def flow() -> Any:
        await notes(2)
        return await Agent("reader", reads="notes", sees="summary")("and?")

    assert play(flow, ScriptedEngine(script)).output.startswith("error:")


def test_a_handle_opens_nothing_that_was_not_declared() -> None:
    def script(request: Request) -> Any:
        if request.agent == "reader" and request.messages[-1].role == "user":
            handles = ["#0", "#1", "#0-#9"]
            calls = enumerate(handles)
            return [ToolCall(str(i), "recall", json.dumps({"handle": h})) for i, h in calls]
        if request.agent == "reader":
            return "|".join(m.content for m in request.messages if m.role == "tool")
        return NOTE.format(7) * 12

    async def flow() -> Any:
        board.write("private", "SECRET")
        await Agent("other", writes="private2")("SECRET task")
        await notes(3)
        return await Agent("reader", reads="notes", sees="summary")("and?")

    assert "SECRET" not in play(flow, ScriptedEngine(script)).output


def test_the_window_counts_tools_schema_and_the_reply() -> None:
    """TOK-10: history gives way to a summary before the engine would refuse."""

    @tool
    def wide(x: str) -> str:
        """Something."""
        return x

    wide.spec.parameters["properties"]["x"]["description"] = "long words " * 1400
    capabilities = Capabilities(window=8000, prefix_cache=True)
    agent = Agent("a", "Talk.", tools=[wide], sees="diff", max_tokens=1000)
    filler = "The history of this conversation is long, and says number {0} of all. " * 40

    async def flow() -> Any:
        for index in range(16):
            await agent(filler.format(index))

    engine = ScriptedEngine("I see.", capabilities=capabilities)
    play(flow, engine)
    history = sum(estimate(filler.format(index)) for index in range(16))
    assert history > 9000
    assert max(size_of(request) for request in engine.requests) <= 8000 - 1000
    assert "What came before" in text_of(engine.requests[-1])


def test_what_can_never_fit_is_said_before_it_is_sent() -> None:
    engine = ScriptedEngine("ok", capabilities=Capabilities(window=1000))

    async def flow() -> Any:
        return await Agent("a", "Do.", max_tokens=400)("word " * 2000)

    with pytest.raises(ContextTooLongError, match=r"window of 1000 tokens; 400 are kept"):
        play(flow, engine)
    assert engine.requests == []


def test_an_agent_that_goes_round_in_circles_is_told_and_stopped() -> None:
    @tool
    def again(x: int) -> str:
        """Again."""
        return f"{x}"

    engine = ScriptedEngine(lambda _: [ToolCall("1", "again", '{"x": 1}')])
    with pytest.raises(ToolError, match="goes round in circles"):
        play(lambda: Agent("a", tools=[again], tool_rounds=50)("go"), engine)
    assert len(engine.requests) == 4
    assert "2 times now" in engine.requests[2].messages[-1].content


def test_effects_are_made_as_often_as_asked_and_pure_tools_once() -> None:
    """MGR-8, TOK-12."""
    rows: list[int] = []
    looks: list[int] = []

    @tool
    def append_row(x: int) -> str:
        """Append."""
        rows.append(x)
        return "appended"

    @tool(pure=True)
    def look(x: int) -> str:
        """Look."""
        looks.append(x)
        return "seen"

    spawned = Agent("child", "Do the task.")
    answers: list[Any] = [
        [
            ToolCall("1", "append_row", '{"x": 1}'),
            ToolCall("2", "append_row", '{"x": 1}'),
            ToolCall("3", "look", '{"x": 1}'),
            ToolCall("4", "look", '{"x": 1}'),
            ToolCall("5", "child", '{"task": "dig"}'),
            ToolCall("6", "child", '{"task": "dig"}'),
        ],
        "child's answer",
        [ToolCall("7", "look", '{"x": 1}')],
        "done",
    ]
    lead = Agent("lead", tools=[append_row, look, spawned.as_tool()])
    engine = ScriptedEngine(answers)
    play(lambda: lead("go"), engine)
    assert rows == [1, 1]
    assert looks == [1]
    assert len(asked_of(engine, "child")) == 1
    replies = {m.tool_call_id: m.content for m in engine.requests[2].messages if m.role == "tool"}
    assert set(replies) == {"1", "2", "3", "4", "5", "6"}
    assert replies["5"] == replies["6"] == "child's answer"


def test_a_manager_delegates_and_the_owner_of_a_tool_runs_it() -> None:
    """MGR-5: delegation is observable, and the manager's tokens stand apart (USG-10)."""
    ran: list[str] = []

    def make(name: str) -> Agent[str]:
        @tool(name=f"{name}_tool")
        def own() -> str:
            """Only its owner has it."""
            ran.append(name)
            return f"{name} has done it"

        return Agent(name, f"You have {name}_tool.", tools=[own])

    workers = [make("digger"), make("painter")]
    manager = Agent("manager", tools=[w.as_tool() for w in workers], coordination=True)

    def script(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return "done"
        if request.agent == "manager":
            calls = [("1", "digger"), ("2", "painter")]
            return [ToolCall(id_, name, '{"task": "do it"}') for id_, name in calls]
        return [ToolCall("1", f"{request.agent}_tool", "{}")]

    engine = ScriptedEngine(script)
    tax = tax_of(play(lambda: manager("all"), engine).log)
    assert sorted(ran) == ["digger", "painter"]
    assert 0 < tax.tokens.coordination < tax.tokens.total


def test_a_guard_stops_what_has_effects_and_its_waste_is_seen() -> None:
    """MGR-7: the guard takes 300 ms, the model 50: no card is charged; reading is allowed."""
    charged: list[int] = []
    read: list[str] = []

    @tool
    async def charge_card(amount: int) -> str:
        """Charge."""
        charged.append(amount)
        return "charged"

    @tool(pure=True)
    def balance() -> str:
        """Look."""
        read.append("balance")
        return "12"

    async def guard(task: str) -> None:
        import asyncio

        await asyncio.sleep(0.3)
        if "forbidden" in task:
            raise PermissionError(task)

    agent = Agent("a", tools=[charge_card, balance], guard=guard)

    def script(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return "done"
        return [ToolCall("1", "balance", "{}"), ToolCall("2", "charge_card", '{"amount": 5}')]

    async def flow() -> Any:
        with pytest.raises(PermissionError):
            await agent("forbidden")
        assert (charged, read) == ([], ["balance"])
        return await agent("allowed")

    result = play(flow, ScriptedEngine(script, prefill_s=0.02, decode_s=0.03))
    assert result.output == "done"
    assert charged == [5]
    assert tax_of(result.log).tokens.wasted > 0


def test_messages_reach_an_agent_once_and_its_answer_goes_where_it_says() -> None:
    async def flow() -> Any:
        inbox: Mailbox[str] = Mailbox("boss")
        clerk = Agent("clerk", "Answer.", reads="@clerk", writes="@boss")
        await inbox.send("clerk", "open the shop")
        await clerk()
        await inbox.send("clerk", "close the shop")
        await clerk()
        return [(await inbox.receive()).sender for _ in range(2)]

    engine = ScriptedEngine(by_agent)
    result = play(flow, engine)
    assert result.output == ["clerk", "clerk"]
    assert dead_letters(result.log) == []
    first, second = engine.requests
    assert "message from boss:\nopen the shop" in text_of(first)
    assert text_of(second).count("open the shop") == 1
    assert "close the shop" in second.messages[-1].content


def test_branches_do_not_hear_each_other_s_history() -> None:
    agent = Agent("a", "Talk.", sees="diff")

    async def flow() -> Any:
        await agent("before")
        await gather(agent(f"branch {index}") for index in range(3))
        await agent("after")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    before, *branches, after = engine.requests
    assert "before" in text_of(before)
    for request in branches:
        assert "before" in text_of(request)
        assert len(re.findall(r"branch \d", text_of(request))) == 1
    assert "branch 2" in text_of(after)


def test_the_same_value_is_told_once_and_a_change_as_a_change() -> None:
    reader = Agent("reader", reads="plan")
    plan = {"title": "Report", "parts": [{"name": f"part {i}", "words": 100} for i in range(20)]}

    async def flow() -> Any:
        board.write("plan", plan)
        await reader("first")
        board.write("plan", plan)
        await reader("second")
        parts = [{**part, "words": 50} if i == 3 else part for i, part in enumerate(plan["parts"])]
        board.write("plan", {**plan, "parts": parts})
        await reader("third")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    first, second, third = engine.requests
    assert second.messages[: len(first.messages)] == first.messages
    assert [m.content for m in second.messages[-1:]] == ["second"]
    assert third.messages[-2].content == "plan.parts[3].words = 50"


def test_messages_that_many_send_are_all_delivered() -> None:
    async def flow() -> Any:
        await gather(send("reader", f"hello {index}") for index in range(30))
        return await Agent("reader", reads="@reader")("and?")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    assert len(re.findall(r"hello \d+", text_of(engine.requests[0]))) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reads": {"a": "everything"}}, "sees one of nothing, keys"),
        ({"sees": "everything", "reads": "a"}, "sees one of"),
        ({"writes": {"a": "replase"}}, "writes one key with one of"),
        ({"writes": "a*"}, "writes one key with one of"),
        ({"expected_calls": 0}, "expected_calls must be at least 1"),
        ({"reeds": "a"}, "there is no option 'reeds'"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_is_made(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Agent("a", **options)


def test_policies_are_those_of_the_documentation() -> None:
    assert VISIBILITIES == ("nothing", "keys", "last", "diff", "summary", "full")


def test_a_resumed_run_counts_what_the_log_answered_as_saved() -> None:
    """USG-12: what needs no engine costs nothing."""
    engine = ScriptedEngine(["one", Reply(text="two"), "three"])
    agent = Agent("a", "Do.")

    async def flow() -> Any:
        await agent("first")
        await agent("second")
        raise KeyboardInterrupt

    async def main() -> Any:
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        with pytest.raises(KeyboardInterrupt):
            await runtime.arun(flow, run_id="r")

        async def mended() -> Any:
            await agent("first")
            return await agent("second")

        before = len(engine.requests)
        result = await runtime.aresume("r", mended)
        assert len(engine.requests) == before
        return result

    result = run_virtual(main())
    assert result.usage.prompt == sum(
        size for r in engine.requests for size in [sum(estimate(m.content) for m in r.messages)]
    )


def test_a_key_under_two_patterns_is_shown_once_by_the_narrower() -> None:
    async def flow() -> Any:
        board.write("plan", "the only plan")
        board.write("other", "the other thing")
        await Agent("a", reads={"*": "keys", "plan": "full"})("x")

    engine = ScriptedEngine(by_agent)
    play(flow, engine)
    assert text_of(engine.requests[0]).count("the only plan") == 1
    assert "the other thing" not in text_of(engine.requests[0])


def test_an_agent_may_write_the_summaries_and_its_failure_is_no_one_else_s() -> None:
    def script(request: Request) -> Any:
        match request.agent:
            case "short":
                return "Vaults were counted."
            case "refusing":
                return RejectedError("no")
            case _:
                return scouts(request)

    summariser = Agent("short", "Sum up.")
    reader = Agent("reader", reads="notes", sees="summary", summariser=summariser, expected_calls=9)

    async def flow() -> Any:
        await notes(6)
        await reader("and?")
        refusing = Agent("refusing", "Sum up.")
        await Agent("other", reads="notes", sees="summary", summariser=refusing)("and?")

    engine = ScriptedEngine(script)
    play(flow, engine)
    [request] = asked_of(engine, "reader")
    summary = request.messages[0].content
    assert "#0-#3: Vaults were counted." in summary
    assert estimate(summary) < 0.1 * 5 * estimate(NOTE.format(1) * 12)
    [other] = asked_of(engine, "other")
    assert "#0-#1: " in other.messages[0].content


def test_what_was_asked_before_is_within_reach_after_a_summary() -> None:
    def script(request: Request) -> Any:
        if request.messages[-1].content == "what did I say first?":
            return [ToolCall("1", "recall", '{"handle": "#0"}')]
        if request.messages[-1].role == "tool":
            return request.messages[-1].content
        return "I note that. " * 60

    agent = Agent("a", reads="chat", sees="summary", writes={"chat": "append"}, expected_calls=1000)

    async def flow() -> Any:
        await agent("The first thing is a secret about Anna's 12 vaults. " + "Mind it well. " * 60)
        for index in range(6):
            await agent(f"And number {index}. " + "Mind it well, too. " * 60)
        return await agent("what did I say first?")

    engine = ScriptedEngine(script, capabilities=Capabilities(prefix_cache=True))
    assert "Anna's 12 vaults" in play(flow, engine).output
    assert "What came before" in text_of(engine.requests[-1])


def test_whatever_a_tool_does_its_call_is_answered() -> None:
    """Bytes, lone surrogates, a failure, no end: each call has one answer, in words."""

    @tool
    def binary() -> bytes:
        """Bytes."""
        return b"\x00\xff\xfe"

    @tool
    def utf8() -> bytes:
        """Text as bytes."""
        return "日本".encode()

    @tool
    def lone() -> str:
        """A lone surrogate."""
        return "a\ud800b"

    @tool
    def failing() -> str:
        """A failure."""
        raise ValueError("不可")

    @tool(timeout_s=5)
    async def hanging() -> str:
        """No end."""
        import asyncio

        await asyncio.sleep(10_000)
        return ""

    tools = [binary, utf8, lone, failing, hanging]
    calls = [ToolCall(each.name, each.name, "{}") for each in tools]
    engine = ScriptedEngine([calls, "done"])
    play(lambda: Agent("a", tools=tools)("go"), engine)
    answers = {m.tool_call_id: m.content for m in engine.requests[1].messages if m.role == "tool"}
    assert answers["binary"] == "[3 bytes that are no text]"
    assert answers["utf8"] == "日本"
    assert answers["lone"] == "a\ud800b"
    assert answers["failing"] == "error: ValueError: 不可"
    assert answers["hanging"].startswith("error: CallTimeoutError: tool hanging took longer")
    assert encode(body(engine.requests[1], "m", stream=False))


def test_an_agent_gets_from_a_memory_what_goes_with_what_it_is_asked() -> None:
    memory = Memory("facts")
    clerk = Agent("clerk", "Answer.", memory=memory, memory_items=2, sees="diff")

    async def flow() -> Any:
        for number, place in enumerate(["harbour", "market", "castle", "bridge"]):
            memory.add(f"The {place} opens at {number + 6} o'clock.", key=place)
        await clerk("When does the castle open?")
        await clerk("And the bridge?")

    engine = ScriptedEngine(by_agent)
    result = play(flow, engine)
    first, second = engine.requests
    assert "The castle opens at 8" in first.messages[-1].content
    assert first.messages[-1].origin == "memory"
    assert "market" not in text_of(first)
    assert "The bridge opens at 9" in second.messages[-1].content
    assert "The castle opens" not in text_of(second), "what passes is not kept"
    assert tax_of(result.log).tokens.by_origin["memory"] > 0


@pytest.mark.parametrize(
    ("reply", "ends"),
    [
        ("APPROVED", True),
        ("Well done. APPROVED!", True),
        ("Fine.\n\n**APPROVED**", True),
        ("Verdict: APPROVED.", True),
        ("NOT APPROVED", False),
        ("UNAPPROVED", False),
        ("APPROVED, but mend it.", False),
        ("", False),
    ],
)
def test_a_conversation_ends_on_its_word_as_a_sentence_of_its_own(reply: str, ends: bool) -> None:
    ending = Ending("APPROVED", by="reviewer")
    assert ending.reached("reviewer", reply) is ends
    assert not ending.reached("writer", reply)
    assert "APPROVED" in Agent("reviewer", ending=ending).role[0].content
    assert Agent("writer", ending=ending).role == []


def test_three_mistakes_in_one_reply_are_one_correction() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    wrong = ['{"a": "x"}', '{"a": 1, "b": 2, "z": 4}', '{"a": 1}']
    calls = [ToolCall(str(i), "add", text) for i, text in enumerate(wrong)]
    engine = ScriptedEngine([calls, "fine"])
    assert play(lambda: Agent("a", tools=[add])("go"), engine).output == "fine"
    answers = [m.content for m in engine.requests[1].messages if m.role == "tool"]
    assert all(answer.startswith("error: invalid arguments") for answer in answers)
    assert "unknown field `z`" in answers[1]


def test_pure_calls_are_equal_by_their_arguments() -> None:
    seen: list[int] = []

    @tool(pure=True)
    def add(a: int, b: int = 2) -> int:
        """Add."""
        seen.append(a)
        return a + b

    texts = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a": 1}']
    calls = [ToolCall(str(i), "add", text) for i, text in enumerate(texts)]
    play(lambda: Agent("a", tools=[add])("go"), ScriptedEngine([calls, "done"]))
    assert seen == [1]


def test_a_guard_may_be_a_step() -> None:
    @step(pure=True)
    async def guard(task: str) -> None:
        raise PermissionError(task)

    with pytest.raises(PermissionError):
        play(lambda: Agent("a", guard=guard)("go"), ScriptedEngine())


def test_tools_that_a_model_cannot_be_told_of_are_not_offered() -> None:
    @tool
    def look() -> str:
        """Look."""
        return ""

    engine = ScriptedEngine("ok", capabilities=Capabilities(model="tiny", tools=False))
    with pytest.warns(UserWarning, match="'tiny' cannot be told of them"):
        play(lambda: Agent("a", tools=[look])("go"), engine)
    assert engine.requests[0].tools == ()


def test_the_agent_s_own_words_stay_its_own_after_a_summary() -> None:
    agent = Agent("a", reads="notes", sees="summary", expected_calls=1000)

    async def flow() -> Any:
        await notes(3)
        await agent("first question")
        await notes(3)
        await agent("second question")

    engine = ScriptedEngine(
        lambda r: "MY REPLY" if r.agent == "a" else scouts(r),
        capabilities=Capabilities(prefix_cache=True),
    )
    play(flow, engine)
    second = asked_of(engine, "a")[1]
    assert [m.role for m in second.messages if "MY REPLY" in m.content] == ["assistant"]


def test_a_shared_text_is_sent_each_time_and_new_once() -> None:
    """The edges of the tax report say what the prompts held, with a history and without."""

    async def flow() -> Any:
        board.write("brief", "word " * 100)
        for sees in ("nothing", "diff"):
            agent = Agent(f"agent {sees}", "Do.", shares="brief", sees=sees)
            for question in range(2):
                await agent(f"question {question}")

    tax = tax_of(play(flow, ScriptedEngine()).log)
    for edge in tax.edges:
        assert edge.full == edge.sent == 2 * edge.new
    assert tax.tokens.saved == 0
    assert sum(edge.sent for edge in tax.edges) == pytest.approx(
        tax.tokens.by_origin["board"], 0.05
    )


def test_what_is_shown_in_full_again_is_a_repeat() -> None:
    reader = Agent("reader", reads={"notes": "full"})

    async def flow() -> Any:
        board.append("notes", "The first note is about the harbour. " * 10)
        await reader("and?")
        board.append("notes", "The second note is about the bridge. " * 10)
        await reader("and?")

    tax = tax_of(play(flow, ScriptedEngine()).log)
    [edge] = tax.edges
    assert edge.sent == edge.full
    assert edge.new < 0.7 * edge.sent
    assert tax.agents["reader"].repeats > 0.25 * tax.agents["reader"].prompt
