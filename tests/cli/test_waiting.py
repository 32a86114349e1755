"""Runs that wait for people and messages, and what one does about them from a shell."""

from __future__ import annotations

from tests.cli.command import Cli

ASKING = """
from typing import TypedDict
from accord import gather, step
from accord.comm.interrupt import interrupt
from accord.comm.mailbox import Mailbox
from accord.graph import START, StateGraph

class State(TypedDict, total=False):
    x: int
    text: str

@step
async def count(x: int) -> int:
    print(f"counted {x}")
    return x + 1

async def one(state: State) -> dict:
    return {"x": await count(state["x"])}

async def ask(state: State) -> dict:
    return {"text": await interrupt({"x": state["x"]}, name="approve")}

graph = StateGraph(State)
graph.add_node("one", one).add_node("ask", ask)
graph.add_edge(START, "one").add_edge("one", "ask")
app = graph.compile(name="asking")

async def two() -> list[str]:
    return await gather(interrupt("A?"), interrupt("B?"))

async def listen() -> str:
    box = Mailbox("approval")
    return (await box.receive()).body
"""

ENGINE = ("--engine", "http://127.0.0.1:9/v1")


def test_a_run_that_waits_says_for_what_and_goes_on_with_the_answer(cli: Cli):
    flow = cli.flow(ASKING)
    asked = cli("run", f"{flow}:app", "--text", '{"x": 1}', "--run", "r", *ENGINE, code=3)
    assert "run r waits for answers:\n  0/~ask/0: {'x': 2}" in asked.err
    assert "accord resume r --answer 0/~ask/0=VALUE" in asked.err
    assert cli.status("r") == "waiting"
    shown = cli("show", "r", code=0).out
    assert "interrupt approve" in shown
    assert "waits for answers" in shown
    again = cli("resume", "r", *ENGINE, code=3)
    assert "counted" not in again.err
    done = cli("resume", "r", "--answer", "0/~ask/0=yes", "--json", *ENGINE, code=0)
    assert done.json["output"] == {"x": 2, "text": "yes"}
    assert "waiting" in cli("tax", "r", code=0).out
    refused = cli("resume", "r", "--answer", "0/~ask/0=no", *ENGINE, code=2)
    assert "has been answered already" in refused.err


def test_answers_in_any_order_and_by_signal(cli: Cli):
    flow = cli.flow(ASKING)
    told = cli("run", f"{flow}:two", "--run", "r", "--json", *ENGINE, code=3).json
    assert told["status"] == "waiting"
    first, second = told["questions"]
    assert (first["question"], second["question"]) == ("A?", "B?")
    assert "kept for" in cli("signal", "r", second["id"], '"b"', code=0).err
    assert "answered already" in cli("signal", "r", second["id"], "c", code=2).err
    done = cli("resume", "r", "--answer", f"{first['id']}=a", "--json", *ENGINE, code=0)
    assert done.json["output"] == ["a", "b"]


def test_a_message_from_outside_reaches_a_run_that_waits(cli: Cli):
    flow = cli.flow(ASKING)
    running = cli.start("run", f"{flow}:listen", "--run", "r", *ENGINE)
    running.wait_for("run r")
    assert "takes it when it looks" in cli("signal", "r", "approval", '{"ok": true}').err
    done = running.end()
    assert (done.code, done.out) == (0, '{\n  "ok": true\n}\n')
    chain = cli("why", "r", "--json", "5", code=0).json
    assert chain[-1]["what"] == "RunStarted"
    assert [each["what"] for each in chain][:3] == [
        "receive approval finished",
        "take a message from approval",
        "a message from outside to approval",
    ]


def test_a_fork_from_the_shell(cli: Cli):
    flow = cli.flow(ASKING)
    cli("run", f"{flow}:app", "--text", '{"x": 1}', "--run", "r", *ENGINE, code=3)
    cli("resume", "r", "--answer", "0/~ask/0=yes", *ENGINE, code=0)
    tree = cli("show", "r", "--json", code=0).json["calls"]
    [one] = [each["seq"] for each in tree if each["name"] == "one"]
    forked = cli("fork", "r", one, '{"x": 41}', "--run", "f", *ENGINE, code=3)
    assert "{'x': 41}" in forked.err
    assert "counted" not in forked.err
    assert "not the start of a call" in cli("fork", "r", 99, "1", *ENGINE, code=2).err
    assert "a node writes a JSON object" in cli("fork", "r", one, "5", *ENGINE, code=2).err
    assert "exists" in cli("fork", "r", one, "{}", "--run", "f", *ENGINE, code=2).err
    assert cli.status("r") == "finished"


def test_bad_signals_and_events_are_refused(cli: Cli):
    flow = cli.flow(ASKING)
    cli("run", f"{flow}:two", "--run", "r", *ENGINE, code=3)
    assert "no run 'x'" in cli("signal", "x", "name", "1", code=2).err
    assert "printable text" in cli("signal", "r", " ", "1", code=2).err
    assert "has the events 0 to" in cli("why", "r", "999", code=2).err
    assert "is not an answer" in cli("resume", "r", "--answer", "yes", code=2).err
    refused = cli("resume", "r", "--answer", "9/9=1", *ENGINE, code=2)
    assert "is no question of it" in refused.err
