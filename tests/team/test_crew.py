"""Crews: tasks and their contexts, managers over managers, required tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from accord import Agent, Runtime, tool
from accord.agent.options import AgentOptions
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Capabilities, Reply, Request, ToolCall
from accord.errors import DelegationError, UsageError
from accord.log.events import Written
from accord.runtime import Result
from accord.team.chat import GroupChat
from accord.team.crew import Crew, CrewResult, member
from accord.team.hierarchy import ManagerOptions, clipped, tree_of
from accord.team.task import Task
from accord.team.termination import MaxMessages
from accord.testing.scripted import ScriptedEngine
from accord.tokens.count import estimate

ANN, BOB = member("Researcher", "Find facts.", "You know libraries."), member("Writer", "Write.")


def work(
    crew: Crew, inputs: Any = None, engine: ScriptedEngine | None = None
) -> Result[CrewResult]:
    async def main() -> Result[CrewResult]:
        made = engine or ScriptedEngine(echo)
        async with Runtime(engine=made, log="memory", clock=VirtualClock()) as runtime:
            return await runtime.arun(crew, inputs or {})

    return run_virtual(main())


def echo(request: Request) -> Any:
    return f"<{request.agent} on {request.messages[-1].content.splitlines()[0]}>"


def text_of(request: Request) -> str:
    return "\n".join(message.content for message in request.messages)


# ------------------------------------------------------------------------------------------ tasks


def test_tasks_are_done_in_order_with_what_came_before_as_context() -> None:
    engine = ScriptedEngine(echo)
    find = Task("Find {topic}.", "Five facts.", agent=ANN, name="find")
    tell = Task("Tell of {topic}.", agent="writer")
    result = work(Crew([ANN, BOB], [find, tell]), {"topic": "gates"}, engine)
    assert result.output.output == "<Writer on Tell of gates.>"
    assert result.output["find"] == "<Researcher on Find gates.>"
    assert [task.agent for task in result.output.tasks] == ["Researcher", "Writer"]
    first, second = map(text_of, engine.requests)
    assert "You are Researcher.\nYour goal: Find facts.\nYou know libraries." in first
    assert "Expected output: Five facts." in first
    assert second.count("<Researcher on Find gates.>") == 1


def test_a_context_is_what_is_shown() -> None:
    engine = ScriptedEngine(echo)
    one, two = Task("One.", agent=ANN), Task("Two.", agent=ANN)
    last = Task("Three.", agent=BOB, context=[one])
    alone = Task("Four.", agent=BOB, context=[])
    work(Crew([ANN, BOB], [one, two, last, alone]), engine=engine)
    third, fourth = map(text_of, engine.requests[2:])
    assert "on One." in third
    assert "on Two." not in third
    assert "on One." not in fourth


@dataclass
class Report:
    title: str


def test_the_type_of_an_answer_is_the_tasks() -> None:
    task = Task("Report.", agent=BOB, output=Report)
    result = work(Crew([BOB], [task]), engine=ScriptedEngine({"title": "x"}))
    assert result.output.output == Report("x")


def test_parallel_tasks_start_as_soon_as_their_context_is_done() -> None:
    """Dataflow, not levels: c needs only a, and does not wait for b."""
    took = {"a": 1.0, "b": 5.0, "c": 1.0, "d": 1.0}

    def seconds(request: Request) -> float:
        return took[request.messages[0].content]

    people = [Agent(name) for name in "wxyz"]
    a, b = Task("a", agent=people[0]), Task("b", agent=people[1])
    c = Task("c", agent=people[2], context=[a])
    d = Task("d", agent=people[3], context=[c])

    def script(request: Request) -> str:
        return f"{request.agent} did {request.messages[0].content}"

    engine = ScriptedEngine(script, decode_s=seconds)
    result = work(Crew(people, [d, c, b, a], process="parallel"), engine=engine)
    assert result.tax.time.makespan == 5.0
    assert result.tax.closes
    assert [task.output for task in result.output.tasks] == [
        "z did d",
        "y did c",
        "x did b",
        "w did a",
    ]
    shown = text_of(next(r for r in engine.requests if r.agent == "z"))
    assert "out/task-2 (y):\ny did c" in shown
    assert "x did" not in shown
    took["b"] = 0.5
    engine = ScriptedEngine(script, decode_s=seconds)
    path = work(Crew(people, [d, c, b, a], process="parallel"), engine=engine).tax.critical_path
    assert [part.name for part in path if part.kind == "request"] == ["w", "y", "z"]


def test_placeholders_are_filled_in_tasks_and_members() -> None:
    engine = ScriptedEngine(echo)
    ann = member("Expert", "Know {topic}.")
    work(
        Crew([ann], [Task('{topic}: {{topic}} {"a": 1} {n}')]), {"topic": "x", "n": [1, 2]}, engine
    )
    assert engine.requests[0].messages[-1].content == 'x: {topic} {"a": 1} [1,2]'
    assert "Know x." in text_of(engine.requests[0])


@pytest.mark.parametrize(
    "text",
    ["Explain {x}.", "{ 1, 2 }", "{{x}} and {{ y", "}{", "{}", '{"a": {"b": [1]}}', "{task}"],
)
@pytest.mark.parametrize("tasks", [[], [Task("{task}")]])
def test_a_text_goes_as_it_stands_whatever_braces_it_has(text: str, tasks: list[Task]) -> None:
    engine = ScriptedEngine(echo)
    work(Crew([ANN], tasks), text, engine)
    assert engine.requests[0].messages[-1].content == text


def test_a_missing_input_is_named_before_anything_runs() -> None:
    engine = ScriptedEngine(echo)
    with pytest.raises(UsageError, match=r"placeholder \{topic\}, and the inputs are \['t'\]"):
        work(Crew([ANN], [Task("a"), Task("{topic}")]), {"t": 1}, engine)
    assert not engine.requests


# ----------------------------------------------------------------------------------- hierarchical


def manages(answer: Callable[[list[str]], Any]) -> Callable[[Request], Any]:
    """Managers plan by ``answer`` of the members that they are shown, and join by a line."""

    def script(request: Request) -> Any:
        text = text_of(request)
        if "Members:" in text:
            lines = text.partition("Members:\n")[2].partition("\nGive each")[0].splitlines()
            return answer([line.partition(":")[0] for line in lines])
        if "Put what" in text:
            return f"joined by {request.agent}"
        return f"{request.agent} did {request.messages[-1].content}"

    return script


def everybody(names: list[str]) -> Any:
    return {"turns": [f"{name}: part {index}" for index, name in enumerate(names)]}


@pytest.mark.parametrize(
    ("n", "depth"), [(1, 1), (4, 1), (5, 2), (16, 2), (17, 3), (64, 3), (256, 4)]
)
def test_no_manager_has_more_than_its_span_and_depth_is_the_least(n: int, depth: int) -> None:
    tree = tree_of([Agent(f"w{i}") for i in range(n)], 4, "m")
    assert tree.depth == depth
    assert tree.widest <= 4


def test_managers_delegate_over_levels_and_it_is_on_record() -> None:
    engine = ScriptedEngine(manages(everybody))
    workers = [Agent(f"worker-{i}", f"Does {i}.") for i in range(16)]
    result = work(Crew(workers, [Task("Do it all.")], process="hierarchical"), engine=engine)
    assert result.output.output == "joined by crew manager"
    given = result.output.delegations
    assert Counter(each.manager for each in given) == dict.fromkeys(
        ["crew manager", *(f"crew manager.{i}" for i in range(1, 5))], 4
    )
    assert {each.to for each in given if each.to.startswith("worker")} == {w.name for w in workers}
    written = [e.event for e in result.log.envelopes if isinstance(e.event, Written)]
    logged = [result.log.values.decode(w.value) for w in written if w.key.endswith("/delegations")]
    assert sorted(map(str, logged)) == sorted(map(str, given))
    assert result.tax.tokens.coordination > 0
    assert result.output.fallbacks == 0


def test_a_worker_knows_the_task_and_not_what_others_did() -> None:
    engine = ScriptedEngine(manages(everybody))
    work(Crew([ANN, BOB], [Task("Do it all.")], process="hierarchical"), engine=engine)
    for request in engine.requests:
        if request.agent == "Writer":
            assert "Do it all." in text_of(request)
            assert "Researcher did" not in text_of(request)


def test_a_manager_sees_conclusions_within_a_bound() -> None:
    def script(request: Request) -> Any:
        found = manages(everybody)(request)
        return found if request.agent == "crew manager" else f"{found} word" * 5000

    engine = ScriptedEngine(script)
    work(Crew([ANN, BOB], [Task("x " * 9000)], process="hierarchical"), engine=engine)
    managers = [r for r in engine.requests if r.agent == "crew manager"]
    assert len(managers) == 2
    assert all(estimate(text_of(request)) < 2500 for request in managers)


def test_clipping_keeps_both_ends() -> None:
    text = "begin " + "middle " * 500 + "end"
    short = clipped(text, 30)
    assert short.startswith("begin")
    assert short.endswith("end")
    assert estimate(short) <= 33


def test_one_who_is_named_twice_is_asked_once() -> None:
    """TOK-12: the parts are put together."""
    engine = ScriptedEngine(manages(lambda _: {"turns": ["writer: a", "Writer: b", "writer: a"]}))
    result = work(Crew([ANN, BOB], [Task("t")], process="hierarchical"), engine=engine)
    assert result.output.output == "Writer did a\nb"
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    "reply",
    [
        "{}",
        '{"coworker": null}',
        '{"task": {"description": "x"}}',
        '"{\\"coworker\\": null}"',
        "I do it myself: here is the report.",
        '{"turns": [], "done": true}',
        '{"coworker": "Zoe", "task": "x"}',
    ],
)
def test_a_manager_that_does_not_delegate_is_told_so_and_then_a_rule_does(reply: str) -> None:
    """MGR-4, MGR-5: at most two corrections, no crash, and the members do the work."""
    engine = ScriptedEngine(manages(lambda _: reply))
    result = work(Crew([ANN, BOB], [Task("Do it.")], process="hierarchical"), engine=engine)
    plans = [r for r in engine.requests if "Members:" in text_of(r)]
    assert len(plans) == 3
    assert all(text_of(plan).count("no use") == 1 for plan in plans[1:])
    assert result.output.corrections == 2
    assert result.output.fallbacks == 1
    assert {each.to for each in result.output.delegations} == {"Researcher", "Writer"}
    assert all(each.by == "fallback" and each.why for each in result.output.delegations)


def test_managers_of_no_use_are_asked_once_in_as_many_tasks_as_they_have_members() -> None:
    """MGR-4: and each plan is counted."""
    engine = ScriptedEngine(manages(lambda _: "Hello!"))
    tasks = [Task(f"Do {index}.") for index in range(6)]
    result = work(Crew([ANN, BOB], tasks, process="hierarchical"), engine=engine)
    plans = [r for r in engine.requests if "Members:" in text_of(r)]
    assert len(plans) == 3 + 3 + 1
    assert (result.output.fallbacks, result.output.unasked) == (6, 3)
    assert result.output.corrections == 4
    whys = [each.why for each in result.output.delegations if each.to == "Writer"]
    assert [index for index, why in enumerate(whys) if "not asked" in why] == [2, 3, 5]


def test_fallbacks_of_all_managers_are_added_up() -> None:
    engine = ScriptedEngine(manages(lambda _: "Hello!"))
    workers = [Agent(f"w{i}") for i in range(4)]
    crew = Crew(workers, [Task("a"), Task("b")], process="hierarchical", span=2)
    assert work(crew, engine=engine).output.fallbacks == 6


def test_a_correction_is_taken() -> None:
    """MGR-4."""

    def answer(request: Request) -> Any:
        if "Members:" in text_of(request) and "no use" not in text_of(request):
            return '{"coworker": "nobody I know"}'
        return manages(lambda _: '{"coworker": "writer", "task": {"description": "x"}}')(request)

    result = work(
        Crew([ANN, BOB], [Task("t")], process="hierarchical"), engine=ScriptedEngine(answer)
    )
    assert result.output.output == "Writer did x"
    assert result.output.corrections == 1
    assert result.output.fallbacks == 0


def test_a_crew_and_a_chat_may_be_members() -> None:
    engine = ScriptedEngine(manages(everybody))
    pair = Crew([ANN, BOB], process="hierarchical", name="pair")
    talk = GroupChat([Agent("ann"), Agent("bob")], until=MaxMessages(2), name="talk")
    crew = Crew([pair, talk, Agent("solo")], [Task("All.")], process="hierarchical")
    result = work(crew, engine=engine)
    assert [each.to for each in result.output.delegations] == ["pair", "talk", "solo"]
    joined = text_of(engine.requests[-1])
    assert "pair:\njoined by pair manager" in joined
    assert "solo:\nsolo did part 2" in joined
    assert any("part 1" in text_of(r) for r in engine.requests if r.agent == "ann")


# ---------------------------------------------------------------------------------- required tools


@tool(pure=True)
def weigh(what: str) -> str:
    """Weigh something."""
    return f"{what} weighs 5"


@tool(pure=True)
def price(what: str) -> str:
    """Price something."""
    return f"{what} costs 7"


def with_tools(*, eager: bool, listens: bool = True, only: str = "") -> Callable[[Request], Any]:
    """Workers that use their tool if eager, or if told to; a manager that names ``only``."""

    def plan(names: list[str]) -> Any:
        return everybody([name for name in names if only in name])

    def script(request: Request) -> Any:
        asked = request.messages[-1]
        told = "Use the tool" in asked.content and listens
        if request.tools and asked.role == "user" and (eager or told):
            call = ToolCall("1", request.tools[0].name, json.dumps({"what": "it"}))
            return Reply(text="", tool_calls=(call,), finish_reason="tool_calls")
        return manages(plan)(request)

    return script


WORKERS = [Agent("weigher", tools=[weigh]), Agent("pricer", tools=[price])]


@pytest.mark.parametrize(
    "script",
    [with_tools(eager=True), with_tools(eager=False), with_tools(eager=True, only="pricer")],
)
def test_each_required_tool_is_used_by_its_owner(script: Callable[[Request], Any]) -> None:
    """MGR-5: whatever the manager forgot, and it has no tools itself."""
    engine = ScriptedEngine(script)
    task = Task("Weigh and price it.", requires=[weigh, "price"])
    result = work(Crew(WORKERS, [task], process="hierarchical"), engine=engine)
    used = {
        (request.agent, call.name)
        for request in engine.requests
        for message in request.messages
        for call in message.tool_calls
    }
    assert used == {("weigher", "weigh"), ("pricer", "price")}
    assert not [r for r in engine.requests if r.agent == "crew manager" and r.tools]
    assert result.output.output == "joined by crew manager"


def test_a_required_tool_that_nobody_uses_is_an_error() -> None:
    """MGR-5."""
    engine = ScriptedEngine(with_tools(eager=False, listens=False))
    crew = Crew(WORKERS, [Task("Weigh it.", requires=[weigh])], process="hierarchical")
    with pytest.raises(DelegationError, match="weigher did not use them") as caught:
        work(crew, engine=engine)
    assert caught.value.tools == ("weigh",)


def test_a_tool_may_be_required_of_whoever_has_a_task() -> None:
    engine = ScriptedEngine(with_tools(eager=False))
    task = Task("Weigh it.", agent=WORKERS[0], requires=[weigh])
    result = work(Crew(WORKERS, [task]), engine=engine)
    assert [each.by for each in result.output.delegations] == ["requirement"]
    assert result.output.output == "weigher did it weighs 5"


# --------------------------------------------------------------------------------------- bad input


def cyclic() -> list[Task]:
    one = Task("One.", name="one")
    two = Task("Two.", name="two", context=[one])
    object.__setattr__(one, "context", [two])
    return [one, two]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Crew([]), "at least one agent"),
        (lambda: Crew([ANN, ANN]), "tell 'Researcher'"),
        (lambda: Crew([ANN], process="magic"), "sequential, parallel, hierarchical"),  # type: ignore[arg-type]
        (lambda: Crew([ANN], span=1), "at least 2 subordinates"),
        (lambda: Crew([ANN, BOB], [Task("x")]), "task-1 has no agent; give it one of Researcher"),
        (lambda: Crew([ANN, BOB], [Task("x", agent="Zoe")]), "no 'Zoe'; there are: Researcher"),
        (lambda: Crew([ANN], [Task("x", agent=BOB)]), "for Writer, who is not in the crew"),
        (lambda: Crew([ANN], [Task("  ")]), "task-1 has no description"),
        (lambda: Crew([ANN], [Task("x", name="a"), Task("y", name="a")]), "called"),
        (lambda: Crew([ANN], cyclic()), "one, two wait for each other"),
        (lambda: Crew([ANN], [Task("x", context=[Task("other")])]), "'other', which is none of"),
        (lambda: Crew([ANN], [Task("x", requires=["dig"])]), "'dig', which nobody"),
        (lambda: Crew([ANN], name="Researcher"), "its own name"),
        (lambda: Crew([ANN], sees="all"), "summary"),  # type: ignore[arg-type]
        (lambda: ManagerOptions(agent=AgentOptions(tools=[weigh])), "no tools of its own"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_a_crew_without_tasks_says_so() -> None:
    with pytest.raises(UsageError, match="has no tasks"):
        work(Crew([ANN]))
    with pytest.raises(UsageError, match="has no tasks"):
        work(Crew([ANN]), " ")


def test_a_crew_wider_than_the_engine_still_works() -> None:
    engine = ScriptedEngine(manages(everybody), capabilities=Capabilities(concurrency=1))
    workers = [Agent(f"w{i}") for i in range(9)]
    result = work(Crew(workers, [Task("t")], process="hierarchical", span=3), engine=engine)
    assert len(result.output.delegations) == 12


@pytest.mark.parametrize("given", [[1, 2], 5, {1: "x"}])
def test_inputs_are_a_text_or_named(given: Any) -> None:
    with pytest.raises(UsageError, match=r"crew 'crew' was given .*; give it a text, or a dict"):
        work(Crew([Agent("ann", "You are ann.")], [Task("x")]), given)


def test_a_manager_that_calls_a_tool_that_is_not_there_gives_way_to_a_rule() -> None:
    """MGR-4."""

    def answer(request: Request) -> Any:
        planner = request.agent == "crew manager" and "each member" in text_of(request)
        return [ToolCall(id="c", name="zap", arguments="{}")] if planner else "done"

    crew = Crew([Agent("ann", "x"), Agent("bob", "y")], [Task("t")], process="hierarchical")
    result = work(crew, engine=ScriptedEngine(answer)).output
    assert result.fallbacks == 1
    assert [each.to for each in result.delegations] == ["ann", "bob"]
