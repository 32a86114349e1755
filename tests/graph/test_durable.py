"""Graphs that stop and go on: crash, questions, forks, time travel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import add
from random import Random
from typing import Annotated, Any, TypedDict

import pytest

from accord import Agent, Mailbox, Retry, Runtime, ask, gather, step, tool
from accord.clock import VirtualClock, run_virtual
from accord.comm.interrupt import interrupt
from accord.engine.base import Request, ToolCall
from accord.errors import RunLockedError, RunSuspendedError, UsageError
from accord.graph import END, START, Command, Graph, Send, StateGraph
from accord.log.codec import decode_envelope
from accord.log.events import CallStarted
from accord.log.fold import index_calls
from accord.log.store.memory import MemoryStore
from accord.observe.tax import tax_of
from accord.testing.scripted import ScriptedEngine
from tests.graph.programs import cut

effects: list[str] = []
made: list[str] = []
pauses = Random(0)


class State(TypedDict, total=False):
    x: int
    notes: Annotated[list[str], add]
    total: Annotated[int, add]
    text: str
    topic: str


@step
async def effect(what: str) -> str:
    effects.append(what)
    await asyncio.sleep(pauses.uniform(0.001, 0.1))
    return what


def noting(name: str, **update: Any) -> Callable[[Any], Any]:
    async def body(state: Any) -> dict[str, Any]:
        made.append(name)
        await effect(f"{name}/{len(state.get('notes', []))}")
        return {"notes": [name], **update}

    return body


async def work(item: int) -> dict[str, Any]:
    await effect(f"work {item}")
    return {"notes": [f"w{item}"], "total": item}


def _graph(names: str) -> StateGraph:
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, noting(name))
    return graph


def diamond() -> Graph:
    graph = _graph("abcd")
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge(["b", "c"], "d")
    return graph.compile()


def looping() -> Graph:
    graph = _graph("abc")
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "c")
    graph.add_conditional_edges(
        "c", lambda s: "a" if s["notes"].count("c") < 3 else END, ["a", END]
    )
    return graph.compile()


def mapping() -> Graph:
    graph = _graph("ab")
    graph.add_node("work", work)
    graph.add_edge(START, "a").add_edge("work", "b")
    graph.add_conditional_edges("a", lambda _: [Send("work", i) for i in range(4)], ["work"])
    return graph.compile()


def racing() -> Graph:
    """Which two of three are the first depends on time; once they were, it does not."""
    graph = _graph("abce")
    graph.add_node("two", noting("two"), until=2)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(START, "c")
    graph.add_edge(["a", "b", "c"], "two").add_edge("two", "e")
    return graph.compile()


def commanding() -> Graph:
    async def choose(state: Any) -> Command[Any]:
        await effect("choose")
        return Command(update={"x": 1}, goto=["a", Send("work", 7)])

    graph = _graph("ab")
    graph.add_node("work", work).add_node("choose", choose, goes_to=["a", "work"])
    graph.add_edge(START, "choose").add_edge(["a", "work"], "b")
    return graph.compile()


def nested() -> Graph:
    graph = _graph("ad")
    graph.add_node("inner", diamond())
    graph.add_edge(START, "a").add_edge("a", "inner").add_edge("inner", "d")
    return graph.compile(name="outer")


@step
async def unreliable(what: str) -> str:
    effects.append(what)
    if effects.count(what) == 1:
        raise ValueError("the first time")
    return what


def retrying() -> Graph:
    async def flaky(state: Any) -> dict[str, Any]:
        await effect("try")
        return {"notes": [await unreliable("flaky")]}

    graph = _graph("a")
    graph.add_node("flaky", flaky, retry=Retry(attempts=3, base_s=0.01))
    graph.add_edge(START, "a").add_edge("a", "flaky")
    return graph.compile()


PROGRAMS = {each.__name__: each for each in (diamond, looping, mapping, commanding, nested)}


async def run_once(store: MemoryStore, app: Graph) -> Any:
    async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
        return await runtime.arun(app, {"x": 0}, run_id="r")


@pytest.mark.parametrize("name", PROGRAMS)
def test_cut_anywhere_and_resumed_it_ends_the_same(name: str):
    """SYN-6, CKP-9, CKP-20: what joins had collected is in the log; nothing is done twice."""
    app = PROGRAMS[name]()
    effects.clear()
    store = MemoryStore()
    first = run_virtual(run_once(store, app))
    told = sorted(effects)
    records = store.read("r")
    for count in range(1, len(records)):
        effects.clear()
        before = {
            e.event.name + str(e.scope)
            for e in map(decode_envelope, records[:count])
            if isinstance(e.event, CallStarted) and e.event.kind == "step"
        }

        async def again(count: int = count) -> Any:
            half = cut(records, store._blobs, count)
            async with Runtime(
                engine=ScriptedEngine(), log=half, clock=VirtualClock(), repeat_unknown=True
            ) as runtime:
                return await runtime.aresume("r", app)

        result = run_virtual(again())
        assert result.output == first.output, count
        assert tax_of(result.log).closes
        keys = {p: c.started.key for p, c in index_calls(result.log.envelopes).by_scope.items()}
        assert keys == {
            p: c.started.key for p, c in index_calls(first.log.envelopes).by_scope.items()
        }
        assert len(effects) <= len(told) - len(before) + 4  # those under way are made again
    assert records


def test_a_race_that_was_decided_stays_decided():
    app = racing()
    store = MemoryStore()
    first = run_virtual(run_once(store, app))
    records = store.read("r")
    decided = next(
        e.seq
        for e in map(decode_envelope, records)
        if isinstance(e.event, CallStarted) and e.event.name == "two"
    )

    async def again(count: int, seed: int) -> Any:
        pauses.seed(seed)
        async with Runtime(
            engine=ScriptedEngine(),
            log=cut(records, store._blobs, count),
            clock=VirtualClock(),
            repeat_unknown=True,
        ) as runtime:
            return await runtime.aresume("r", app)

    for count in range(decided + 1, len(records)):
        for seed in range(3):
            assert run_virtual(again(count, seed)).output == first.output


def test_a_retry_is_counted_over_crashes():
    effects.clear()
    app = retrying()
    store = MemoryStore()
    first = run_virtual(run_once(store, app))
    records = store.read("r")
    for count in range(1, len(records)):
        effects.clear()

        async def again(count: int = count) -> Any:
            half = cut(records, store._blobs, count)
            async with Runtime(
                engine=ScriptedEngine(), log=half, clock=VirtualClock(), repeat_unknown=True
            ) as runtime:
                return await runtime.aresume("r", app)

        assert run_virtual(again()).output == first.output


def test_the_same_checkpoint_may_be_resumed_twice():
    """SYN-6 (ii)"""
    app = looping()
    store = MemoryStore()
    run_virtual(run_once(store, app))
    records = store.read("r")
    half = len(records) // 2

    async def again() -> Any:
        async with Runtime(
            engine=ScriptedEngine(),
            log=cut(records, store._blobs, half),
            clock=VirtualClock(),
            repeat_unknown=True,
        ) as runtime:
            return (await runtime.aresume("r", app)).output

    assert run_virtual(again()) == run_virtual(again())


def test_a_second_resumer_is_refused():
    """SYN-16"""

    async def main() -> None:
        async with (
            Runtime(engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock()) as runtime,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(runtime.arun(diamond(), {}, run_id="r"))
            await asyncio.sleep(0.001)
            with pytest.raises(RunLockedError, match="is being written by"):
                await runtime.aresume("r", diamond())

    run_virtual(main())


# --------------------------------------------------------------------------- questions to people


@tool
async def send_mail(to: str) -> str:
    """Send a mail."""
    answer = await interrupt(f"send to {to}?")
    effects.append(f"mail to {to}: {answer}")
    return str(answer)


def asking() -> Graph:
    async def ask(state: Any) -> dict[str, Any]:
        await effect("before")
        first, second = await gather(interrupt("A?", name="a"), interrupt({"b": 1}, name="b"))
        await effect("after")
        return {"notes": [first, second]}

    graph = _graph("ab")
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask").add_edge(START, "a").add_edge(["ask", "a"], "b")
    return graph.compile()


def test_questions_are_answered_by_id_in_any_order():
    """SYN-22, CKP-16: each answer goes where it was asked; what came before is not repeated."""
    effects.clear()
    made.clear()

    async def main() -> Any:
        store = MemoryStore()
        app = asking()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            with pytest.raises(RunSuspendedError, match="waits for answers") as caught:
                await runtime.arun(app, {}, run_id="r")
            one, two = caught.value.questions
            assert (one.question, two.question) == ("A?", {"b": 1})
            assert made == ["a"]  # what does not depend on it went on
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.aresume("r", app, answers={two.id: "B"})
            assert [each.id for each in caught.value.questions] == [one.id]
            with pytest.raises(UsageError, match="has been answered already"):
                await runtime.aresume("r", app, answers={two.id: "C"})
            with pytest.raises(UsageError, match=r"'9/9' is no question of it; it waits for \["):
                await runtime.aresume("r", app, answers={"9/9": "C"})
            with pytest.raises(RunSuspendedError):
                await runtime.aresume("r", app)  # never answered: it goes on waiting
            return await runtime.aresume("r", app, answers={one.id: "A"})

    result = run_virtual(main())
    assert result.output["notes"] == ["A", "B", "a", "b"] or result.output["notes"] == [
        "a",
        "A",
        "B",
        "b",
    ]
    assert effects.count("before") == 1
    assert effects.count("after") == 1
    assert made == ["a", "b"]
    assert result.tax.closes


def test_tools_with_effects_may_ask_first():
    effects.clear()

    def script(request: Request) -> Any:
        if any(message.role == "tool" for message in request.messages):
            return "done"
        return [
            ToolCall(id=f"c{i}", name="send_mail", arguments=f'{{"to": "{w}"}}')
            for i, w in enumerate(("ann", "bob"))
        ]

    mailer = Agent("mailer", "Send mails.", tools=[send_mail])

    async def flow(text: str) -> str:
        return await mailer(text)

    async def main() -> Any:
        async with Runtime(
            engine=ScriptedEngine(script), log=MemoryStore(), clock=VirtualClock()
        ) as runtime:
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.arun(flow, "go", run_id="r")
            one, two = caught.value.questions
            with pytest.raises(RunSuspendedError):
                await runtime.aresume("r", flow, answers={two.id: "no"})
            return await runtime.aresume("r", flow, answers={one.id: "yes"})

    assert run_virtual(main()).output == "done"
    assert sorted(effects) == ["mail to ann: yes", "mail to bob: no"]


def test_interrupts_before_and_after_nodes():
    graph = _graph("ab")
    graph.add_edge(START, "a").add_edge("a", "b")
    app = graph.compile(interrupt_before=["b"], interrupt_after=["a"])

    async def main() -> Any:
        async with Runtime(
            engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock()
        ) as runtime:
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.arun(app, {"x": 1}, run_id="r")
            [question] = caught.value.questions
            assert question.question == {"after": "a", "update": {"notes": ["a"]}}
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.aresume("r", app, answers={question.id: {"x": 5}})
            [question] = caught.value.questions
            assert question.question["before"] == "b"
            assert question.question["state"]["x"] == 5
            return await runtime.aresume("r", app, answers={question.id: None})

    output = run_virtual(main()).output
    assert (output["x"], output["notes"]) == (5, ["a", "b"])


def test_questions_cut_anywhere_are_asked_again():
    effects.clear()
    app = asking()

    async def until_asked(store: MemoryStore) -> Any:
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            with pytest.raises(RunSuspendedError) as caught:
                await runtime.arun(app, {}, run_id="r")
            ids = [each.id for each in caught.value.questions]
            result = await runtime.aresume("r", app, answers=dict(zip(ids, "AB", strict=True)))
            return ids, result.output

    store = MemoryStore()
    ids, output = run_virtual(until_asked(store))
    records = store.read("r")
    asked = next(i for i, r in enumerate(records) if b"RunInterrupted" in r)

    async def again(count: int) -> Any:
        half = cut(records, store._blobs, count)
        for _, name, body in store.posted("r") if count > asked else ():
            half.post("r", name, body)  # answers are kept whether they were taken or not
        async with Runtime(
            engine=ScriptedEngine(), log=half, clock=VirtualClock(), repeat_unknown=True
        ) as runtime:
            try:
                return (await runtime.aresume("r", app)).output
            except RunSuspendedError as error:
                answers = {q.id: "AB"[ids.index(q.id)] for q in error.questions}
                return (await runtime.aresume("r", app, answers=answers)).output

    for count in range(1, len(records)):
        assert run_virtual(again(count)) == output, count


# -------------------------------------------------------------------------- forks and time travel


def team() -> Graph:
    """Six agents; what each is asked depends on what it reads alone."""

    def reads(*keys: str) -> dict[str, Any]:
        return {"reads": keys, "writes": "text"}

    async def plan(state: Any) -> dict[str, Any]:
        return {"text": await Agent("planner", "Plan.")(state["topic"])}

    async def note(state: Any) -> dict[str, Any]:
        return {"notes": [await Agent("noter", "Note.")(state["topic"])]}

    async def write(state: Any) -> dict[str, Any]:
        return {"x": len(await Agent("writer", "Write.")(state["text"]))}

    graph = StateGraph(State)
    graph.add_node("plan", plan).add_node("note", note).add_node("write", write)
    graph.add_node("check", Agent("checker", "Check."), reads="topic", writes="topic")
    graph.add_edge(START, "plan").add_edge(START, "note").add_edge("plan", "write")
    graph.add_edge(["write", "note"], "check")
    return graph.compile()


def test_a_fork_runs_again_only_what_depends_on_the_change():
    app = team()
    engine = ScriptedEngine(lambda request: f"{request.agent}: {request.messages[-1].content}")

    async def main() -> Any:
        store = MemoryStore()
        options: Any = {"engine": engine, "log": store, "clock": VirtualClock()}
        async with Runtime(**options) as runtime:
            first = await runtime.arun(app, {"topic": "t"}, run_id="r")
        asked = [request.agent for request in engine.requests]
        engine.requests.clear()
        forked = await app.afork("r", "plan", {"text": "other"}, new_run_id="f", **options)
        again = [request.agent for request in engine.requests]
        engine.requests.clear()
        same = await app.afork("r", "note", {"notes": ["other"]}, **options)
        last = [request.agent for request in engine.requests]
        async with Runtime(**options) as runtime:
            assert (await runtime.aresume("r", app)).output == first.output
        return asked, again, last, first, forked, same

    asked, again, last, first, forked, same = run_virtual(main())
    assert sorted(asked) == ["checker", "noter", "planner", "writer"]
    assert again == ["writer"]
    assert last == []
    assert forked.output == {**first.output, "text": "other", "x": len("writer: other")}
    assert same.output == {**first.output, "notes": ["other"]}
    assert forked.run_id == "f"
    assert forked.log.envelopes[0].event.forked_from == "r"
    assert forked.tax.closes


@pytest.mark.parametrize("name", PROGRAMS)
def test_forked_at_any_node_it_is_as_if_it_had_gone_that_way(name: str):
    app = PROGRAMS[name]()

    async def main() -> None:
        store = MemoryStore()
        options: Any = {"engine": ScriptedEngine(), "log": store, "clock": VirtualClock()}
        async with Runtime(**options) as runtime:
            result = await runtime.arun(app, {"x": 0}, run_id="r")
        history = app.get_state_history(result.log)
        assert len(history) >= 3
        for snapshot in history:
            effects.clear()
            forked = await app.afork("r", snapshot.place, {"text": "changed"}, **options)
            assert forked.output == {**result.output, "text": "changed"}
            assert forked.tax.closes
            dependent = [s for s in history if s.position > snapshot.position]
            assert len(effects) <= len(dependent) + 8
            again = await app.afork(forked.run_id, snapshot.place, {"text": "again"}, **options)
            assert again.output == {**result.output, "text": "again"}

    run_virtual(main())


def test_a_fork_of_the_input_runs_all_again():
    app = team()
    engine = ScriptedEngine(lambda request: f"{request.agent}: {request.messages[-1].content}")

    async def main() -> Any:
        options: Any = {"engine": engine, "log": MemoryStore(), "clock": VirtualClock()}
        async with Runtime(**options) as runtime:
            await runtime.arun(app, {"topic": "t"}, run_id="r")
        engine.requests.clear()
        return await app.afork("r", START, {"topic": "u"}, **options)

    result = run_virtual(main())
    assert len(engine.requests) == 4
    assert result.output["text"] == "planner: u"


def test_flows_fork_too():
    writer = Agent("writer", "Write.")
    engine = ScriptedEngine(lambda request: request.messages[-1].content.upper())

    async def flow(text: str) -> list[str]:
        first, second = await gather(writer(text), writer(f"{text} too"))
        return [first, second, await writer(first)]

    async def main() -> Any:
        async with Runtime(engine=engine, log=MemoryStore(), clock=VirtualClock()) as runtime:
            await runtime.arun(flow, "a", run_id="r")
            engine.requests.clear()
            return await runtime.afork("r", {"0/0/0": "b"}, flow)

    assert run_virtual(main()).output == ["b", "A TOO", "B"]
    assert len(engine.requests) == 1


def test_what_cannot_be_forked_is_said():
    async def main() -> None:
        options: Any = {"engine": ScriptedEngine(), "log": MemoryStore(), "clock": VirtualClock()}
        app = diamond()
        async with Runtime(**options) as runtime:
            await runtime.arun(app, {}, run_id="r")
            with pytest.raises(UsageError, match="'9' has no call"):
                await runtime.afork("r", {"9": 1}, app)
        with pytest.raises(UsageError, match="no finished node 'z' to fork at; it has"):
            await app.afork("r", "z", {}, **options)
        with pytest.raises(Exception, match="names 'y', which State has not"):
            await app.afork("r", "a", {"y": 1}, **options)
        assert [info.run for info in options["log"].runs()] == ["r"]

    run_virtual(main())


def test_time_travel_tells_the_state_after_each_node():
    app = diamond()
    store = MemoryStore()
    result = run_virtual(run_once(store, app))
    history = app.get_state_history(result.log)
    assert history[0].node == "d"
    assert history[0].values == result.output
    assert history[-1].values["notes"] == ["a"]
    middle = app.get_state(result.log, history[-1].position)
    assert middle is not None
    assert middle.label == "a"


def test_many_items_appended_take_little_store():
    """CKP-1"""

    class Log(TypedDict):
        messages: Annotated[list[str], add]

    async def add_one(state: Any) -> dict[str, Any]:
        return {"messages": [f"{len(state['messages']):01000d}"]}

    graph = StateGraph(Log)
    graph.add_node("add", add_one)
    graph.add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda s: "add" if len(s["messages"]) < 500 else END, ["add", END]
    )
    app = graph.compile()

    async def main() -> Any:
        store = MemoryStore()
        async with Runtime(engine=ScriptedEngine(), log=store, clock=VirtualClock()) as runtime:
            result = await runtime.arun(app, {"messages": []}, run_id="r")
        stored = sum(map(len, store.read("r"))) + sum(map(len, store._blobs.values()))
        return stored, app.get_state_history(result.log)

    stored, history = run_virtual(main())
    assert stored < 3_000_000
    assert len(history[-7].values["messages"]) == 7


def test_a_fork_asks_and_answers_anew():
    """Addresses of replies, places of mailboxes and cursors are the fork's own."""

    @step(pure=True)
    async def price(what: str) -> int:
        return len(what)

    async def flow(what: str) -> list[Any]:
        amount = await price(what)

        async def seller() -> None:
            box: Mailbox[int] = Mailbox("seller")
            asked = await box.receive()
            await box.reply(asked, asked.body * 2)

        async def buyer() -> Any:
            return await ask("seller", amount)

        _, answer = await gather(seller(), buyer())
        return [amount, answer]

    async def main() -> Any:
        async with Runtime(
            engine=ScriptedEngine(), log=MemoryStore(), clock=VirtualClock()
        ) as runtime:
            first = await runtime.arun(flow, "abc", run_id="r")
            forked = await runtime.afork("r", {"0": 10}, flow)
            return first.output, forked.output

    assert run_virtual(main()) == ([3, 6], [10, 20])
