"""The examples, run as a user runs them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from accord.testing.stub import StubServer

EXAMPLES = Path(__file__).parent.parent / "examples"


def shown(name: str) -> str:
    """What an example's docstring says that it prints."""
    doc = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
    return textwrap.dedent(doc.partition("Prints::\n\n")[2]).strip()


def command(*arguments: str, url: str = "", log: Path | None = None) -> str:
    env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
    if log is not None:
        env["ACCORD_LOG"] = str(log)
    done = subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "actors.py",
        "chat.py",
        "crew.py",
        "early.py",
        "events.py",
        "graph.py",
        "joins.py",
        "own_engine.py",
        "pipeline.py",
        "policies.py",
        "report64.py",
        "resume.py",
        "team.py",
    ],
)
def test_an_example_prints_what_it_says(name: str) -> None:
    assert command(str(EXAMPLES / name)).strip() == shown(name)


def test_hello_greets(tmp_path: Path) -> None:
    with StubServer() as stub:
        out = command(str(EXAMPLES / "hello.py"), url=stub.url, log=tmp_path / "log.sqlite3")
        assert out.strip()
        assert stub.requests[0].body["messages"][-1]["content"] == "Ada"
    assert len((EXAMPLES / "hello.py").read_text().strip().splitlines()) <= 14


def test_the_report_reads_all_of_documents_longer_than_a_window(tmp_path: Path) -> None:
    """Every word of every document reaches a reader, in order; nothing is cut off."""
    inputs: list[str] = []
    for number in range(3):
        lines = (f"Document {number}, line {line}, says something." for line in range(800))
        path = tmp_path / f"{number}.txt"
        path.write_text("\n".join(lines))
        inputs += ["--input", str(path)]
    with StubServer() as stub:
        out = command(
            *("-m", "accord.cli.main", "run", str(EXAMPLES / "report.py"), *inputs, "--json"),
            url=stub.url,
            log=tmp_path / "log.sqlite3",
        )
        read = "".join(request.body["messages"][-1]["content"] for request in stub.requests)
    result = json.loads(out)
    assert result["status"] == "finished"
    assert result["output"].startswith("# ")
    assert result["tax"]["closes"]
    missing = [
        (number, line)
        for number in range(3)
        for line in range(800)
        if f"Document {number}, line {line}, says something." not in read
    ]
    assert not missing
