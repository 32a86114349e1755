"""The documents under test: what they show runs, and what exists is in them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import accord
from accord import run
from accord.cli.main import COMMANDS
from accord.testing.scripted import ScriptedEngine

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_all_is_exactly_what_can_be_imported() -> None:
    public = {name for name in vars(accord) if not name.startswith("_")}
    modules = {path.stem for path in (ROOT / "src/accord").iterdir()}
    assert public - modules == set(accord.__all__) - {"__version__"} - modules


def test_the_typed_use_of_the_surface_is_complete() -> None:
    text = (ROOT / "tests/typing/api.py").read_text()
    assert not [name for name in accord.__all__ if not re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"accord {command}" in README


def test_every_setting_is_in_the_readme() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    settings = set(re.findall(r'"(ACCORD_[A-Z]+)"', source))
    assert settings
    assert not [name for name in settings if name not in README]


def test_every_event_is_in_the_architecture() -> None:
    from accord.log.events import Fact, Note

    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert not [
        kind.__name__
        for kind in {*Fact.__subclasses__(), *Note.__subclasses__()}
        if kind.__name__ not in text
    ]


def test_the_figures_of_the_readme_are_the_kept_results() -> None:
    from bench.table import written

    assert written(README) == README, "python -m bench.table writes them"


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(re.finditer(r"```python\n(.*?)```", README, re.DOTALL)).group(1)
    definitions = code.partition("result = run(")[0]
    module = ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    exec(compile(definitions, "README.md", "exec"), vars(module))
    engine = ScriptedEngine(lambda r: {"sections": ["a"]} if r.agent == "planner" else r.agent)
    assert run(module.report, "x", engine=engine, log="memory").output == "editor"


def test_the_team_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = list(re.finditer(r"```python\n(.*?)```", README, re.DOTALL))[1].group(1)
    module = ModuleType("readme_team")
    monkeypatch.setitem(sys.modules, "readme_team", module)
    exec(compile(code, "README.md", "exec"), vars(module))
    engine = ScriptedEngine(lambda r: r.agent)
    assert run(module.team, "x", engine=engine, log="memory").output == "editor"


def test_the_helpdesk_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(c for c in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "helpdesk" in c)
    module = ModuleType("readme_helpdesk")
    monkeypatch.setitem(sys.modules, "readme_helpdesk", module)
    exec(compile(code, "README.md", "exec"), vars(module))
    engine = ScriptedEngine(lambda r: '"tech"' if r.agent == "router" else r.agent)
    assert run(module.helpdesk, "x", engine=engine, log="memory").output == "tech"


def test_every_visibility_is_in_the_readme() -> None:
    from accord.agent.reading import VISIBILITIES

    assert not [name for name in VISIBILITIES if f"| `{name}`" not in README]
