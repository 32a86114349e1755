"""The main job, on the real model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp", reason="the local engine is not installed: accord[local]")


@pytest.mark.local
@pytest.mark.slow
def test_the_demo_writes_a_report_and_accounts_for_all_of_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accord.cli.main", "demo", "--out", "out", "--json", "all.json"],
        cwd=tmp_path,
        env={**os.environ, "ACCORD_LOG": str(tmp_path / "log.sqlite3")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "out/report.md").read_text()
    assert report.startswith("# ")
    assert len(re.findall(r"^## \S", report, re.MULTILINE)) == 3
    told = json.loads((tmp_path / "all.json").read_text())
    assert told["counters_agree"] is True, "the engine counted the same tokens"
    tax = told["tax"]
    assert tax["closes"]
    assert set(tax["agents"]) == {"planner", "researcher", "writer", "editor"}
    assert tax["tokens"]["amplification"] > 1
    parts = [seconds for name, seconds in tax["time"].items() if name != "makespan"]
    assert sum(parts) == pytest.approx(tax["time"]["makespan"], abs=1e-6)
    for segment in tax["critical_path"]:
        assert sum(segment["parts"].values()) == segment["end_ns"] - segment["start_ns"]
