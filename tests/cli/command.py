"""The command as a user runs it: a process of its own, in a folder and with a log of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of stdout, which is one document."""
        return json.loads(self.out)


@dataclass
class Cli:
    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> Path:
        return Path(self.environment["ACCORD_LOG"])

    def flow(self, text: str, name: str = "mine.py") -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def __call__(self, *arguments: object, stdin: bytes = b"", code: int | None = None) -> Done:
        done = subprocess.run(
            self._command(arguments),
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        told = Done(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in told.err, told.err
        assert code is None or told.code == code, told
        return told

    def start(self, *arguments: object) -> Started:
        return Started(
            subprocess.Popen(
                self._command(arguments),
                bufsize=0,  # what wait_for reads ahead, communicate would miss
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.folder,
                env=self.environment,
            )
        )

    def status(self, run: str) -> str:
        [found] = [each for each in self("runs", "--json", code=0).json if each["run"] == run]
        return found["status"]

    def _command(self, arguments: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "accord.cli.main", *map(str, arguments)]


class Started:
    """A command that runs. What it says on stderr is read until something is there."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._said = ""

    def wait_for(self, text: str) -> None:
        assert self._process.stderr is not None
        while text not in self._said:
            line = self._process.stderr.readline()
            assert line, f"it ended without saying {text!r}: {self._said}"
            self._said += line.decode()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> Done:
        out, err = self._process.communicate(timeout=TIMEOUT_S)
        return Done(self._process.returncode, out.decode(), self._said + err.decode())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
