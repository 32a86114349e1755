"""A command to run, and a server for it to ask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accord.testing.stub import StubServer
from tests.cli.command import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    environment = {**os.environ, "ACCORD_LOG": str(tmp_path / "log" / "log.sqlite3")}
    environment["COLUMNS"] = "100"
    for name in (
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "OPENAI_MODEL",
        "ACCORD_DEBUG",
        "FORCE_COLOR",
    ):
        environment.pop(name, None)
    return Cli(tmp_path, environment)


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server
