"""`accord run` and `accord resume` where all goes well, and what reads their runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accord.testing.stub import StubServer, text
from tests.cli.command import Cli

JOIN = """
from accord import step
print("printed at import")

@step
def join(*texts: str) -> str:
    return "|".join(texts)

async def flow(*texts: str) -> str:
    print("printed in the flow")
    import os; os.system("echo printed by a child")
    return await join(*texts)

async def nothing() -> None:
    pass
"""

TEAM = """
from accord import Agent, gather, step
planner = Agent("planner", "Plan.", coordination=True)
writer = Agent("writer", "Write.")

@step
def shout(text: str) -> str:
    return text.upper()

async def solo(brief: str) -> str:
    return await writer(brief)

async def flow(brief: str) -> str:
    plan = await planner(brief)
    parts = await gather(writer(plan), writer(brief))
    return await shout(" ".join(parts))
"""

NOISE = ("printed at import", "printed in the flow", "printed by a child")


def test_without_arguments_help_is_shown_and_the_code_says_bad_usage(cli: Cli):
    done = cli()
    assert (done.code, done.out) == (2, "")
    assert "resume" in done.err


def test_help_and_version(cli: Cli):
    assert "doctor" in cli("--help", code=0).out
    assert cli("--version", code=0).out.startswith("accord ")


def test_help_loads_no_heavy_package(cli: Cli):
    script = "import accord.cli.main, json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", script], text=True))
    assert {"rich", "httpcore2", "accord.cli.execute"}.isdisjoint(loaded)


def test_inputs_keep_the_order_of_the_command_line(cli: Cli):
    (cli.folder / "a.txt").write_bytes("\ufeffä\r\n".encode())
    flow = cli.flow(JOIN)
    given = ("--text", "1", "--input", "a.txt", "--text=-2", "--input", "-")
    done = cli("run", f"{flow}:flow", *given, stdin="こ".encode(), code=0)
    assert done.out == "1|ä\r\n|-2|こ\n"
    assert all(noise in done.err for noise in NOISE)
    assert "join finished" in done.err
    assert "accord tax flow-1" in done.err


def test_json_is_one_document_whatever_the_flow_prints(cli: Cli):
    done = cli("run", cli.flow(JOIN), "--text", "x", "--run", "mine", "--json", code=0)
    assert done.json["run"] == "mine"
    assert done.json["status"] == "finished"
    assert done.json["output"] == "x"
    assert done.json["usage"] == {"prompt": 0, "completion": 0}
    assert done.json["tax"]["closes"] is True
    assert "error" not in done.json
    assert "join finished" not in done.err


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("None", None),
        ("{'a': (1, 2.5, True)}", {"a": [1, 2.5, True]}),
        ("[float('nan'), 2**80, b'ab', {3, 1}, {4: 5}]", [None, 2**80, "YWI=", [1, 3], {"4": 5}]),
        ("Point(x=1, inner=Point(x=float('inf')))", {"x": 1, "inner": {"x": None, "inner": None}}),
        ("Model(name='n', points=[Color.red])", {"name": "n", "points": ["r"]}),
    ],
)
def test_an_output_that_is_no_text_is_json(cli: Cli, expression: str, expected: object):
    flow = cli.flow(f"""
from dataclasses import dataclass
from enum import Enum
from pydantic import BaseModel
from typing import Any

class Color(Enum):
    red = "r"

@dataclass
class Point:
    x: float
    inner: Any = None

class Model(BaseModel):
    name: str
    points: list[Color]

async def flow():
    return {expression}
""")
    assert cli("run", flow, code=0).json == expected


def test_texts_that_no_encoding_holds_come_out(cli: Cli):
    flow = cli.flow("async def flow():\n    return 'a\\ud800\\x00\\u2028'\n")
    assert cli("run", flow, code=0).out == "a\\ud800\x00\u2028\n"
    assert cli("run", flow, "--json", code=0).json["output"] == "a\ud800\x00\u2028"


def test_a_run_of_agents_is_measured_against_its_baseline(cli: Cli, stub: StubServer):
    flow = cli.flow(TEAM)
    run = ("run", f"{flow}:flow", "--text", "the brief", "--engine", stub.url, "--run", "team")
    done = cli(*run, "--baseline", "solo", code=0)
    assert done.out.startswith("ECHO:")
    assert "planner finished: 5+3 tokens" in done.err
    assert "amplification:" in done.err

    tax = cli("tax", "team", "--json", code=0).json
    assert tax["closes"] is True
    assert tax["tokens"]["baseline"] == 8
    assert tax["tokens"]["amplification"] == tax["tokens"]["total"] / 8
    assert tax["agents"]["writer"]["calls"] == 2

    table = cli("tax", "team", code=0).out
    for word in ("instructions", "makespan", "amplification", "planner", "critical path", "Closes"):
        assert word in table
    assert max(map(len, table.splitlines())) <= 100

    tree = cli("show", "team", code=0).out
    assert [line.split()[0] for line in tree.splitlines() if "planner" in line] == ["●"]
    assert "join 2 branches" in tree
    assert "step shout" in tree

    calls = cli("show", "team", "--json", code=0).json["calls"]
    kinds = [call["kind"] for call in calls]
    assert kinds == ["agent", "request", "join"] + ["agent", "request"] * 2 + ["step"]
    assert sum((call["usage"] or {}).get("prompt", 0) for call in calls) == tax["tokens"]["prompt"]
    assert all(
        call["parent"] == calls[2]["scope"]
        for call in calls
        if call["name"] == "writer" and call["kind"] == "agent"
    )


def test_a_name_that_is_taken_costs_no_baseline(cli: Cli, stub: StubServer):
    flow = cli.flow(TEAM)
    run = ("run", f"{flow}:solo", "--text", "the brief", "--engine", stub.url, "--run", "once")
    cli(*run, code=0)
    done = cli(*run, "--baseline", "solo", code=2)
    assert "a run named 'once' exists" in done.err
    assert "accord resume once" in done.err
    assert len(stub.requests) == 1


def test_a_failed_run_goes_on_where_it_stopped(cli: Cli, stub: StubServer):
    flow = cli.flow("""
import pathlib
from accord import Agent
writer = Agent("writer", "Write.")

async def flow(text: str) -> str:
    said = await writer(text)
    if not pathlib.Path("mended").exists():
        raise ValueError("not yet")
    return said
""")
    failed = cli("run", flow, "--text", "x", "--engine", stub.url, "--run", "r", "--json", code=1)
    assert failed.json["status"] == "failed"
    assert failed.json["output"] is None
    assert failed.json["error"] == {"type": "ValueError", "message": "ValueError: not yet"}
    assert failed.json["usage"]["prompt"] > 0
    assert 'raise ValueError("not yet")' in failed.err
    assert "accord resume r" in failed.err
    assert "failed: ValueError: not yet" in cli("show", "r", code=0).out

    (cli.folder / "mended").touch()
    assert cli("resume", "r", code=0).out == "echo: x\n"
    again = cli("resume", "r", "--json", code=0)
    assert again.json["output"] == "echo: x"
    assert again.json["status"] == "finished"
    assert len(stub.requests) == 1


def test_the_flow_may_have_moved(cli: Cli):
    flow = cli.flow("async def flow():\n    raise OSError(28, 'No space')\n")
    cli("run", flow, "--run", "r", code=1)
    Path(flow).rename(cli.folder / "moved.py")
    assert "--flow FILE.py:name" in cli("resume", "r", code=2).err
    cli.flow("async def flow():\n    return 1\n", "moved.py")
    assert cli("resume", "r", "--flow", "moved.py:flow", code=0).out == "1\n"


def test_a_finished_run_gives_its_output_without_its_file(cli: Cli):
    flow = cli.flow("async def flow():\n    return [1]\n")
    cli("run", flow, "--run", "r", code=0)
    Path(flow).unlink()
    assert cli("resume", "r", code=0).json == [1]


def test_runs_are_listed_newest_first_and_can_be_removed(cli: Cli):
    assert "no runs yet" in cli("runs", code=0).err
    assert cli("runs", "--json", code=0).json == []
    flow = cli.flow(JOIN)
    for number in range(3):
        cli("run", f"{flow}:nothing", "--run", f"r{number}", code=0)
    listed = cli("runs", "--json", code=0).json
    assert [each["run"] for each in listed] == ["r2", "r1", "r0"]
    assert {each["status"] for each in listed} == {"finished"}
    assert [line.split()[0] for line in cli("runs", "--limit", "2").out.splitlines()[1:]] == [
        "r2",
        "r1",
    ]
    assert "removed 1 run " in cli("delete", "r1", code=0).err
    assert "removed 1 run " in cli("prune", "--keep", "1", code=0).err
    assert "removed 0 runs" in cli("prune", "--older-than", "1", code=0).err
    assert [each["run"] for each in cli("runs", "--json").json] == ["r2"]


def test_the_list_of_runs_has_a_line_for_each_that_is_cut_nowhere(cli: Cli):
    name = "a name that goes on and on and on, " * 6
    cli("run", f"{cli.flow(JOIN)}:nothing", "--run", name, code=0)
    cli("run", f"{cli.flow(JOIN)}:nothing", "--run", "short", code=0)
    head, short, long = cli("runs", code=0).out.splitlines()
    assert long.startswith(name)
    at = head.index("status")
    assert short[at:].startswith("finished  ")
    assert long[at:].startswith("finished  ")


def test_a_reply_that_was_cut_is_shown(cli: Cli, stub: StubServer):
    stub.always(text("half a", finish_reason="length"))
    flow = cli.flow(TEAM)
    run = ("run", f"{flow}:solo", "--text", "x", "--engine", stub.url, "--run", "r")
    cli(*run, code=0)
    shown = cli("show", "r", code=0).out
    [request] = [line for line in shown.splitlines() if "request" in line]
    assert " cut " in request
    assert "cut = the reply reached its limit of tokens" in shown
    states = [call["state"] for call in cli("show", "r", "--json", code=0).json["calls"]]
    assert states == ["done", "cut"]
    assert "replies cut" in cli("tax", "r", code=0).out


def test_a_call_is_shown_in_full(cli: Cli, stub: StubServer):
    stub.always(text("Two lines,\nwhole."))
    cli("run", cli.flow(TEAM), "--engine", stub.url, "--text", "a long brief", "--run", "r", code=0)
    calls = cli("show", "r", "--json", code=0).json["calls"]
    planner = next(call["seq"] for call in calls if call["name"] == "planner")
    shown = cli("show", "r", str(planner), code=0).out
    assert shown.splitlines()[1:] == [
        *("--- system", "Plan.", "--- user", "a long brief", "--- reply", "Two lines,", "whole."),
    ]
    told = cli("show", "r", str(planner), "--json", code=0).json
    assert told["exchanges"][0]["reply"]["text"] == "Two lines,\nwhole."
    step = next(call["seq"] for call in calls if call["kind"] == "step")
    assert "TWO LINES" in cli("show", "r", str(step), code=0).out
    assert "not the start of a call" in cli("show", "r", "0", code=2).err
    assert "not the start of a call" in cli("show", "r", "9999", code=2).err


def test_what_a_model_wrote_cannot_command_the_terminal(cli: Cli):
    flow = cli.flow("""
from accord import step

@step
def evil(text: str) -> str:
    raise ValueError(text)

async def flow():
    await evil("\\x1b]0;owned\\x07[bold]\\u202e\\x9b31m")
""")
    cli("run", flow, "--run", "r", code=1)
    shown = cli("show", "r", code=0).out
    assert "[bold]" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_doctor_says_what_answers(cli: Cli, stub: StubServer):
    told = cli("doctor", "--engine", stub.url, "--json", code=0).json
    assert told["ok"] is True
    assert f"{stub.url} (as given) answers" in json.dumps(told)
    assert not cli.log.exists()
    assert "All is well" in cli("doctor", "--engine", stub.url, code=0).out


def test_the_demo_writes_report_and_tax(cli: Cli, stub: StubServer):
    done = cli("demo", "--engine", stub.url, "--out", "d", "--json", "all.json", code=0)
    told = json.loads((cli.folder / "all.json").read_bytes())
    tax = json.loads((cli.folder / "d" / "tax.json").read_bytes())
    assert (cli.folder / "d" / "report.md").read_text(encoding="utf-8") == told["output"]
    assert told["tax"] == tax
    assert tax["tokens"]["amplification"] > 1
    assert "the tokens of one agent" in done.out
    assert f"accord show {told['run']}" in done.out

    piped = cli("demo", "--engine", stub.url, "--json", "-", code=0)
    assert piped.json["status"] == "finished"
    assert (cli.folder / "accord-demo" / "report.md").exists()
