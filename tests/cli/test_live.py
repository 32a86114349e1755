"""The live view: what it shows, on a terminal and elsewhere, and that it stays out of the way."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from typing import Any

import msgspec

from accord import Agent, Runtime
from accord.cli.live import MOST_ROWS, line_of, picture_of, visible
from accord.cli.progress import RECENT, Progress, Work
from accord.cli.render import plain
from accord.clock import VirtualClock, run_virtual
from accord.engine.base import Usage
from accord.flow.execution import Sent, Token
from accord.log.events import CallCancelled, CallFinished, CallStarted, Envelope, RunResumed
from accord.testing.scripted import ScriptedEngine
from accord.testing.stub import StubServer
from tests.cli.command import Cli


def work(name: str, **fields: Any) -> Work:
    return Work(scope=name, name=name, kind="agent", started_ns=0, **fields)


def drawn(progress: Progress, room: int = MOST_ROWS) -> list[str]:
    from rich.console import Console

    console = Console(width=80, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(picture_of(progress, 10**9, "r", room))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_line_for_work_that_has_ended():
    done = work("writer", state="done", prompt=210, completion=96, ended_ns=12_345_000_000)
    assert line_of(done) == "[12.3s] writer finished: 210+96 tokens"
    failed = work("writer", state="failed", error="E: a\x1b[0m\nb", ended_ns=0)
    assert line_of(failed) == "[0.0s] writer failed: E: a [0m b"


def test_more_than_a_screenful_is_counted():
    progress = Progress()
    for number in range(30):
        state = "writing" if number == 29 else "queued"
        progress.active[str(number)] = work(str(number), state=state)
    lines = drawn(progress)
    assert lines[0].split()[:2] == ["29", "writing"]
    assert lines[-2:] == ["… and 10 queued", "r: 30 at work, 0 ended, 0 tokens, 1.0 s"]
    assert len(drawn(progress, 5)) == 7


def test_what_has_ended_fills_the_room_that_is_left():
    progress = Progress()
    progress.active["a"] = work("a", state="writing")
    progress.recent.extend(work(str(number), state="done", ended_ns=1) for number in range(9))
    assert len(progress.recent) == RECENT
    assert [each.name for each in visible(progress, 3)[0]] == ["7", "8", "a"]
    assert [each.name for each in visible(progress, 1)[0]] == ["a"]


def test_the_states_of_a_request_follow_events_and_news():
    states: list[str] = []
    progress = Progress()
    engine = ScriptedEngine(lambda _request: "one two")
    log: Any = None
    seen = 0

    def look() -> None:
        nonlocal seen
        for envelope in log.envelopes[seen:]:
            progress.take(envelope)
        seen = len(log.envelopes)

    async def listener(news: Sent | Token) -> None:
        look()
        progress.hear(news)
        [only] = progress.active.values()
        states.append(only.state)
        assert only.streaming == len(states) - 1

    def opened(opened_log: Any) -> None:
        nonlocal log
        log = opened_log

    async def flow() -> str:
        return await Agent("writer")("x")

    async def main() -> None:
        runtime = Runtime(engine=engine, log="memory", clock=VirtualClock())
        await runtime.arun(flow, listener=listener, opened=opened)

    run_virtual(main())
    look()
    assert states[:2] == ["reading prompt", "writing"]
    assert not progress.active
    assert (progress.ended, progress.failed) == (1, 0)
    assert progress.recent[0].tokens == progress.tokens > 0


def test_a_call_that_a_resume_makes_again_is_told_again():
    started = CallStarted(kind="agent", name="writer", key="k")
    asked = CallStarted(kind="request", name="writer", key="k")
    raw = msgspec.Raw(b'""')
    usage = Usage(prompt=3, completion=2)
    progress = Progress()
    told = [
        progress.take(Envelope(seq, seq, scope, (), event))
        for seq, (scope, event) in enumerate(
            [
                ("0", started),
                ("0/0", asked),
                ("0/0", CallCancelled(call=1)),
                ("0", CallCancelled(call=0)),
                ("", RunResumed(version="1")),
                ("0/0", CallFinished(call=1, output=raw, usage=usage)),
                ("0", CallFinished(call=0, output=raw)),
            ]
        )
    ]
    assert [each.state for each in told if each] == ["cancelled", "done"]
    assert told[-1] is not None
    assert (told[-1].prompt, told[-1].completion) == (3, 2)
    assert not progress.active


def in_terminal(
    cli: Cli, *arguments: object, stdout: int = subprocess.PIPE
) -> tuple[int, bytes, bytes]:
    """Stdout is a pipe, stderr a terminal of 12 lines and 80 columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
    environment = {**cli.environment, "TERM": "xterm"}
    del environment["COLUMNS"]
    process = subprocess.Popen(
        cli._command(arguments), stdout=stdout or side, stderr=side, env=environment
    )
    os.close(side)
    shown = b""
    try:
        while piece := os.read(main, 65536):
            shown += piece
    except OSError:
        pass  # Linux: the last writer has closed the terminal
    os.close(main)
    out, _ = process.communicate()
    return process.returncode, out, shown


FAN = """
from accord import Agent, gather
writers = [Agent(f"writer-{number:02}") for number in range(30)]

async def flow():
    print("printed by the flow")
    await gather(writer("x") for writer in writers)
    return "done"
"""


def test_on_a_terminal_a_table_is_drawn_and_taken_away(cli: Cli):
    with StubServer(delay_s=0.3) as stub:
        code, out, shown = in_terminal(
            cli, "run", cli.flow(FAN), "--engine", stub.url, "--run", "r"
        )
    text = shown.decode()
    assert (code, out) == (0, b"done\n")
    assert "writer-00" in text
    assert "reading prompt" in text
    # A server of unknown kind is asked by eight at first, and by more as it begins to answer.
    assert re.search(r"… and \d+ reading prompt", text)
    assert "r: 30 at work, 0 ended" in text
    assert "printed by the flow" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert "30 agent calls" in text


def test_on_a_terminal_the_tree_has_styles_and_fits(cli: Cli):
    with StubServer() as stub:
        cli("run", cli.flow(FAN.replace('"x"', '"x" * 40')), "--engine", stub.url, "--run", "r")
    _, _, shown = in_terminal(cli, "show", "r", stdout=0)
    lines = shown.decode().splitlines()
    assert any("\x1b[1m" in line for line in lines)
    assert max(len(plain(line)) for line in lines[3:]) <= 80
    assert "xxx…" in shown.decode()
