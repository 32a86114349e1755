"""What the shell tells of runs that wait, of forks, of mailboxes and of logs of other versions."""

from __future__ import annotations

import sqlite3

from accord.testing.stub import StubServer
from tests.cli.command import Cli

FLOWS = """
from accord import Agent, gather, step
from accord.comm.interrupt import interrupt
from accord.comm.mailbox import Mailbox

@step
async def look(text: str, *, where: str = "") -> str:
    return text + where

@step
async def join(left: str, right: str) -> str:
    return left + right

async def two() -> list[str]:
    return await gather(interrupt("A?"), interrupt("B?"))

async def long() -> str:
    return await interrupt("x" * 2500, name="approve")

async def short() -> str:
    return await interrupt("Really?\\nSure?", name="approve")

async def boxed() -> str:
    Mailbox("inbox")
    return await interrupt("Go?")

async def meeting() -> str:
    left, right = await gather(look("a", where="web"), look("b"))
    return await join(left, right)
"""

GRAPH = """
from typing import TypedDict
from accord import step
from accord.graph import START, StateGraph

class State(TypedDict, total=False):
    x: int

@step
async def count(x: int) -> int:
    return x + 1

async def double(state: State) -> dict:
    return {"x": await count(await count(state["x"]))}

async def picky(state: State) -> dict:
    return {"x": await count(state["x"])}

graph = StateGraph(State)
graph.add_node("double", double).add_node("picky", picky, reads=["x"])
graph.add_edge(START, "double").add_edge("double", "picky")
app = graph.compile(name="app")
"""

ENGINE = ("--engine", "http://127.0.0.1:9/v1")


def test_a_question_is_told_in_full(cli: Cli):
    flow = cli.flow(FLOWS)
    asked = cli("run", f"{flow}:long", "--run", "r", *ENGINE, code=3).err
    assert "x" * 2000 + "… (500 characters more: `accord show r 1`)" in asked
    assert "x" * 2000 + "… (500" in cli("show", "r", code=0).out
    whole = cli("show", "r", "1", code=0).out
    assert "x" * 2500 in whole
    assert "no output yet: it waits for an answer" in whole
    cli("run", f"{flow}:short", "--run", "s", *ENGINE, code=3)
    assert "  Really?\n  Sure?\n" in cli("show", "s", code=0).out


def test_an_answer_needs_no_id_where_one_question_is_open(cli: Cli):
    flow = cli.flow(FLOWS)
    cli("run", f"{flow}:two", "--run", "r", *ENGINE, code=3)
    refused = cli("resume", "r", "--answer", "yes", *ENGINE, code=2).err
    assert "'yes' is not an answer" in refused
    assert "waits for ['0/0/0', '0/1/0']" in refused
    cli("signal", "r", "0/1/0", "b", code=0)
    done = cli("resume", "r", "--answer", "a", "--json", *ENGINE, code=0)
    assert done.json["output"] == ["a", "b"]
    assert "waits for no answer" in cli("resume", "r", "--answer", "c", *ENGINE, code=2).err


def test_a_signal_to_no_open_mailbox_says_which_are_open(cli: Cli):
    flow = cli.flow(FLOWS)
    cli("run", f"{flow}:boxed", "--run", "r", *ENGINE, code=3)
    told = cli("signal", "r", "inbx", "hello", code=0).err
    assert "no mailbox 'inbx' so far (open: inbox)" in told
    assert "kept for inbx" in told
    assert "no mailbox" not in cli("signal", "r", "inbox", "hello", code=0).err
    assert "no mailbox" not in cli("signal", "r", "1", "yes", code=0).err


def test_why_names_the_other_causes_and_takes_names(cli: Cli):
    flow = cli.flow(FLOWS)
    cli("run", f"{flow}:meeting", "--run", "r", *ENGINE, code=0)
    chain = cli("why", "r", "join", "--json", code=0).json
    assert chain[0]["what"] == "step join finished"
    [met] = [each for each in chain if each["what"] == "2 branches met"]
    assert met["also"] == ["look"]
    assert "also: look" in cli("why", "r", "join", code=0).out
    assert "no call named 'jion'" in cli("why", "r", "jion", code=2).err


def test_named_inputs_are_shown_by_name(cli: Cli):
    cli("run", f"{cli.flow(FLOWS)}:meeting", "--run", "r", *ENGINE, code=0)
    assert "step look a, where=web" in cli("show", "r", code=0).out


def test_a_fork_says_of_what(cli: Cli):
    flow = cli.flow(FLOWS)
    cli("run", f"{flow}:meeting", "--run", "r", *ENGINE, code=0)
    cli("fork", "r", 1, '"other"', "--run", "f", *ENGINE, code=0)
    assert "fork of r, " in cli("show", "f", code=0).out
    assert "meeting, fork of r " in cli("runs", code=0).out
    known = {each["run"]: each["forked_from"] for each in cli("runs", "--json", code=0).json}
    assert known == {"r": None, "f": "r"}
    assert cli("show", "f", "--json", code=0).json["forked_from"] == "r"


def test_a_log_of_another_version_is_told_from_a_damaged_one(cli: Cli, stub: StubServer):
    cli("run", f"{cli.flow(FLOWS)}:meeting", "--run", "r", *ENGINE, code=0)
    with sqlite3.connect(cli.log) as db:
        record = '[1,0,"0",[0],{"is":"Unheard"}]'
        db.execute("UPDATE records SET body = ? WHERE seq = 1", (record.encode(),))
    db.close()
    told = cli("doctor", "--engine", stub.url, code=1).out
    assert "record 1: a log record was written by another version of Accord" in told
    assert "accord doctor" not in told
    assert "accord delete" not in told
    assert "another version" in cli("show", "r", code=1).err


def test_a_thread_of_langgraph_is_suggested(cli: Cli):
    cli("run", f"{cli.flow(FLOWS)}:meeting", "--run", "thread:t1", *ENGINE, code=0)
    for command in ("show", "tax"):
        assert "a LangGraph thread: 'thread:t1'" in cli(command, "t1", code=2).err


def test_an_empty_log_is_told_of_alike(cli: Cli):
    cli("run", f"{cli.flow(FLOWS)}:meeting", "--run", "r", *ENGINE, code=0)
    with sqlite3.connect(cli.log) as db:
        db.execute("DELETE FROM records")
    db.close()
    for command in (("show", "r"), ("tax", "r"), ("why", "r", "1")):
        assert "has no events yet" in cli(*command, code=2).err


def test_what_a_call_was_given_is_told(cli: Cli):
    flow = cli.flow(GRAPH)
    cli("run", f"{flow}:app", "--text", '{"x": 1}', "--run", "r", *ENGINE, code=0)
    calls = {each["name"]: each["seq"] for each in cli("show", "r", "--json", code=0).json["calls"]}
    assert '--- input\n{\n  "x": 1\n}\n--- output' in cli("show", "r", calls["app"], code=0).out
    assert "the graph's state, as left by" in cli("show", "r", calls["double"], code=0).out
    picky = cli("show", "r", calls["picky"], code=0).out
    assert "--- input\nreads x\n" in picky
    assert "attempt" not in cli("show", "r", code=0).out
    assert "unfinished" not in cli("show", "r", code=0).out
