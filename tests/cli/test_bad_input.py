"""Bad input, faults from outside, and stopping: a clear message, the right code, nothing lost."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from accord.testing.stub import StubServer, error, hang, raw
from tests.cli.command import Cli

ASK = """
from accord import Agent, Retry
writer = Agent("writer", "Write.", retry=Retry(attempts=1))

async def flow(text: str) -> str:
    return await writer(text)
"""

WAIT = """
import asyncio, sys
from accord import step

@step
async def wait(seconds: float) -> str:
    print("waiting", flush=True)
    await asyncio.sleep(seconds)
    return "done"

@step(pure=True)
async def quick(name: str) -> str:
    return name

async def flow() -> str:
    await quick("first")
    return await wait(3600)

async def stubborn() -> str:
    await quick("first")
    print("waiting", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            print("not yet", flush=True)

async def busy() -> str:
    await quick("first")
    import time
    await asyncio.sleep(0)
    print("waiting", flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ("text", "reference", "said"),
    [
        ("x = 1\n", "mine.py", "has no flow"),
        ("async def a(): ...\nasync def b(): ...\n", "mine.py", "choose one"),
        ("def flow(): ...\n", "mine.py", "is not async"),
        ("flow = 3\n", "mine.py:flow", "not a function"),
        ("async def flow(): ...\n", "mine.py:other", "there is flow"),
        ("async def flow(a, b): ...\n", "mine.py", "got 1 inputs"),
        ("def flow(:\n", "mine.py", "SyntaxError"),
        ("1 / 0\n", "mine.py", "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "mine.py", "__main__"),
        ("", "absent.py", "there is no file"),
        ("", "absent", "path/to/file.py"),
        ("", "absent.part:flow", "absent"),
    ],
)
def test_a_flow_that_cannot_run_is_refused_before_anything_is_recorded(
    cli: Cli, text: str, reference: str, said: str
):
    cli.flow(text)
    done = cli("run", reference, "--text", "x", "--json", code=2)
    assert said in done.err
    assert done.json["status"] == "refused"
    assert done.json["run"] is None
    assert said in done.json["error"]["message"]
    assert not cli.log.exists() or cli("runs", "--json").json == []


def test_the_place_in_the_users_file_is_shown(cli: Cli):
    done = cli("run", cli.flow("def inner():\n    return 1 / 0\n\ninner()\n"), code=2)
    assert 'mine.py", line 2, in inner' in done.err
    assert "importlib" not in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--input", "absent.txt"), "absent.txt cannot be read (No such file"),
        (("--input", "."), "cannot be read (Is a directory)"),
        (("--input", "latin1.txt"), "is not UTF-8 text (byte 0xe4 at position 1)"),
        (("--input", "-", "--input", "-"), "stdin can be one input only"),
        (("--engine", "nonsense"), "no engine is called 'nonsense'"),
        (("--engine", "http://"), "must look like"),
        (("--durability", "never"), "invalid choice"),
        (("--run", ""), "printable"),
        (("--nonsense",), "unrecognized arguments"),
    ],
)
def test_bad_arguments_are_refused_before_the_file_is_loaded(
    cli: Cli, arguments: tuple[str, ...], said: str
):
    (cli.folder / "latin1.txt").write_bytes("näh".encode("latin-1"))
    flow = cli.flow("import pathlib\npathlib.Path('loaded').touch()\nasync def flow(*a): ...\n")
    done = cli("run", flow, *arguments, code=2)
    assert said in done.err
    assert not (cli.folder / "loaded").exists()


@pytest.mark.parametrize("command", ["show", "tax", "resume", "delete"])
def test_a_run_that_is_not_there(cli: Cli, command: str):
    assert "there is no log at" in cli(command, "absent", code=2).err
    assert not cli.log.exists()
    cli("run", cli.flow("async def flow(): ...\n"), code=0)
    assert "there is no run 'absent'" in cli(command, "absent", code=2).err


def test_pruning_needs_to_know_what(cli: Cli):
    assert "--keep N" in cli("prune", code=2).err
    assert "not a number of days" in cli("prune", "--older-than", "x", code=2).err
    assert "whole number" in cli("runs", "--limit", "0", code=2).err


def unreachable() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def test_an_engine_that_is_not_there(cli: Cli):
    url = unreachable()
    done = cli("run", cli.flow(ASK), "--text", "x", "--engine", url, "--run", "r", code=1)
    assert f"no engine at {url}" in done.err
    assert "accord resume r" in done.err
    assert cli.status("r") == "failed"
    doctor = cli("doctor", "--engine", url, "--json", code=1).json
    [fault] = [finding for finding in doctor["findings"] if not finding["ok"]]
    assert "does not answer" in fault["found"]
    assert fault["advice"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(401, "bad key"), "check the API key"),
        (error(404, "no such model"), "no such model"),
        (raw(b"<html>welcome</html>", headers={"content-type": "text/html"}), "no chat completion"),
        (raw(b"\x00\xff\xfe"), "no chat completion"),
    ],
)
def test_an_engine_that_refuses_or_answers_garbage(
    cli: Cli, stub: StubServer, answer: object, said: str
):
    stub.always(answer)  # pyright: ignore[reportArgumentType]
    flow = cli.flow(ASK)
    done = cli("run", flow, "--text", "x", "--engine", stub.url, "--run", "r", "--json", code=1)
    assert said in done.err
    assert done.json["status"] == "failed"
    assert said in done.json["error"]["message"]
    assert len(stub.requests) == 1
    if "key" in said:
        assert said in cli("doctor", "--engine", stub.url, code=1).out
    stub.always(None)
    assert cli("resume", "r", code=0).out == "echo: x\n"


def test_a_model_file_that_is_none(cli: Cli):
    (cli.folder / "no.gguf").write_bytes(b"nothing")
    done = cli("run", cli.flow(ASK), "--text", "x", "--engine", "local:no.gguf")
    assert done.code in (1, 2)
    assert "GGUF" in done.err or "xllamacpp" in done.err


def test_a_log_of_a_newer_version(cli: Cli):
    cli.log.parent.mkdir()
    with sqlite3.connect(cli.log) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    flow = cli.flow("async def flow(): ...\n")
    for command in (("run", flow), ("runs",), ("doctor", "--engine", "http://127.0.0.1:1")):
        done = cli(*command, code=1)
        assert "written by a newer Accord" in done.err + done.out


def test_a_log_that_is_no_log(cli: Cli):
    cli.log.parent.mkdir()
    cli.log.write_bytes(os.urandom(8192))
    for command in (("run", cli.flow("async def flow(): ...\n")), ("runs",), ("show", "r")):
        assert "cannot be read" in cli(*command, code=1).err


def test_a_log_that_was_damaged(cli: Cli, stub: StubServer):
    cli("run", cli.flow(ASK), "--text", "x", "--engine", stub.url, "--run", "r", code=0)
    with sqlite3.connect(cli.log) as db:
        db.execute("UPDATE records SET body = x'00ff' WHERE seq = 3")
    db.close()
    for command in ("show", "tax", "resume"):
        assert "log record cannot be read" in cli(command, "r", code=1).err
    assert "record 3" in cli("doctor", "--engine", stub.url, code=1).out


def test_a_log_where_none_can_be(cli: Cli):
    (cli.folder / "file").touch()
    flow = cli.flow("async def flow(): ...\n")
    assert "file/log" in cli("run", flow, "--log", "file/log", code=1).err
    doctor = cli("doctor", "--engine", "http://127.0.0.1:1", "--log", "file/log", code=1)
    assert "--log PATH" in doctor.out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(cli: Cli, small_disk: Path):
    flow = cli.flow("""
import os
from accord import step

@step
async def big(number: int) -> str:
    return os.urandom(20_000).hex()

async def flow():
    for number in range(50):
        await big(number)
""")
    log = small_disk / "log.sqlite3"
    done = cli("run", flow, "--log", log, "--run", "r", code=1)
    assert "could not be written" in done.err
    assert f"accord resume r --log {log}" in done.err
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    [listed] = cli("runs", "--log", log, "--json", code=0).json
    assert listed["status"] == "stopped"
    assert listed["events"] > 1
    # The outcome of one step could not be written, so whether it happened is not known.
    assert "it may have happened" in cli("resume", "r", "--log", log, code=1).err
    cli("resume", "r", "--log", log, "--repeat-unknown", code=0)


def test_a_stdout_that_is_full_or_closed(cli: Cli):
    flow = cli.flow("async def flow():\n    return 'x'\n")
    with Path("/dev/full").open("wb") as full:
        command = cli._command(("run", flow, "--run", "r"))
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=cli.environment, check=False
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"accord resume r" in done.stderr
    assert cli.status("r") == "finished"
    piped = " ".join(cli._command(("runs",))) + " | true"
    quiet = subprocess.run(piped, shell=True, capture_output=True, env=cli.environment, check=False)
    assert b"Traceback" not in quiet.stderr
    assert b"Exception" not in quiet.stderr


def test_progress_that_nobody_reads_ends_no_run(cli: Cli):
    flow = cli.flow("async def flow():\n    return 'x'\n")
    command = cli._command(("run", flow))
    closed = subprocess.run(
        " ".join(command) + " 2>&- <&-",
        shell=True,
        capture_output=True,
        env=cli.environment,
        check=False,
    )
    assert (closed.returncode, closed.stdout) == (0, b"x\n")


def test_an_error_of_the_flow_names_its_place_and_the_way_on(cli: Cli):
    flow = cli.flow("""
import asyncio

async def broken():
    return {}["key"]

async def flow():
    async with asyncio.TaskGroup() as group:
        group.create_task(broken())
""")
    done = cli("run", flow, "--run", "r", code=1)
    assert "run r failed: KeyError: 'key'" in done.err
    assert 'mine.py", line 5, in broken' in done.err
    assert "accord resume r" in done.err


def test_debug_shows_the_whole_traceback(cli: Cli):
    flow = cli.flow("async def flow():\n    raise ValueError('x')\n")
    for command in (("--debug", "run", flow), ("run", flow, "--debug")):
        done = cli.start(*command).end()
        assert done.code == 1
        assert "Traceback" in done.err


def test_a_flow_that_exits(cli: Cli):
    flow = cli.flow("import sys\nasync def flow():\n    sys.exit(7)\n")
    assert "called sys.exit(7)" in cli("run", flow, code=1).err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_the_run_cleanly(cli: Cli, number: signal.Signals):
    flow = cli.flow(WAIT)
    started = cli.start("run", f"{flow}:flow", "--run", "r", "--json")
    started.wait_for("waiting")
    started.send(number)
    done = started.end()
    assert done.code == 130
    assert "accord resume r" in done.err
    assert done.json["status"] == "interrupted"
    assert cli.status("r") == "interrupted"


@pytest.mark.parametrize("command", ["run", "resume", "fork"])
def test_an_unknown_policy_is_refused_before_anything_is_loaded(cli: Cli, command: str):
    rest = {"run": ["none.py"], "resume": ["r"], "fork": ["r", 1, "x"]}[command]
    done = cli(command, *rest, "--policy", "fifo", code=2)
    assert "fifo" in done.err
    assert all(name in done.err for name in ("fcfs", "least_attained", "edf"))


def test_a_run_goes_by_a_policy(cli: Cli):
    flow = cli.flow(TEAM)
    with StubServer() as stub:
        cli("run", flow, "--run", "r", "--engine", stub.url, "--policy", "critical_path", code=0)
        cli("resume", "r", "--policy", "edf", code=0)


TEAM = """
from accord import Agent, gather
writers = [Agent(f"writer {index}", "Write.") for index in range(5)]

async def flow() -> list[str]:
    return await gather(writer("go") for writer in writers)
"""


def test_a_signal_with_requests_in_flight_ends_all_of_them(cli: Cli):
    """CAN-8: the code says so, each call has ended in the log, and the engine is let go."""
    with StubServer() as stub:
        stub.always(hang())
        started = cli.start("run", cli.flow(TEAM), "--run", "r", "--engine", stub.url)
        stub.wait_until(lambda s: len(s.requests) == 5)
        started.send(signal.SIGTERM)
        assert started.end().code == 130
        stub.wait_until(lambda s: len(s.aborts) == 5)
    assert cli.status("r") == "interrupted"
    calls = cli("show", "r", "--json", code=0).json["calls"]
    states = [each["state"] for each in calls if each["kind"] in ("agent", "request")]
    assert states == ["cancelled"] * 10


@pytest.mark.parametrize(("name", "first"), [("stubborn", "not yet"), ("busy", "once more")])
def test_the_second_signal_leaves_at_once_and_the_log_is_sound(cli: Cli, name: str, first: str):
    flow = cli.flow(WAIT)
    started = cli.start("run", f"{flow}:{name}", "--run", "r")
    started.wait_for("waiting")
    started.send(signal.SIGINT)
    started.wait_for(first)
    started.send(signal.SIGINT)
    assert started.end().code == 130
    assert cli.status("r") == "stopped"
    shown = cli("show", "r", code=0).out
    assert "step quick" in shown
    assert "accord resume r" in shown


def test_a_signal_before_any_run(cli: Cli):
    started = cli.start("run", cli.flow("import time\nprint('up')\ntime.sleep(3600)\n"))
    started.wait_for("up")
    started.send(signal.SIGTERM)
    done = started.end()
    assert done.code == 130
    assert "interrupted" in done.err


def test_a_run_that_another_process_works_on(cli: Cli):
    flow = cli.flow(WAIT)
    started = cli.start("run", f"{flow}:flow", "--run", "r")
    try:
        started.wait_for("waiting")
        assert cli.status("r") == "running"
        assert "running" in cli("show", "r", code=0).out
        assert cli("tax", "r", "--json", code=0).json["closes"] is True
        for command in ("resume", "delete"):
            assert "is being written by" in cli(command, "r", code=1).err
    finally:
        started.kill()


def test_a_killed_run_reports_the_effect_whose_outcome_is_unknown(cli: Cli):
    flow = cli.flow(WAIT)
    started = cli.start("run", f"{flow}:flow", "--run", "r")
    started.wait_for("waiting")
    started.kill()
    assert cli.status("r") == "stopped"
    assert "unfinished" in cli("show", "r", code=0).out
    done = cli("resume", "r", "--json", code=1)
    assert "--repeat-unknown" in done.err
    assert done.json["error"]["type"] == "UnknownOutcomeError"
    Path(flow).write_text(WAIT.replace("asyncio.sleep(seconds)", "asyncio.sleep(0)"))
    assert cli("resume", "r", "--repeat-unknown", code=0).out == "done\n"


def test_a_flow_that_has_changed(cli: Cli):
    flow = cli.flow(WAIT)
    started = cli.start("run", f"{flow}:flow", "--run", "r")
    started.wait_for("waiting")
    started.kill()
    Path(flow).write_text(WAIT.replace('quick("first")', 'quick("other")'))
    done = cli("resume", "r", code=1)
    assert "the flow has changed" in done.err
    assert "first" in done.err
    assert "other" in done.err
