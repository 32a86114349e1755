"""The tree under test: layers, imports, documents."""

import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import accord

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

HEAVY = {"anyio", "google.protobuf", "httpcore2", "mcp", "pydantic", "rich", "xllamacpp"}


def layers() -> list[str]:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each["type"] == "layers"]
    return re.findall(r"\w+", " ".join(contract["layers"]))


def modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules([str(ROOT / "src" / "accord")])]


def test_every_module_has_a_layer():
    assert set(modules()) <= set(layers())


def test_no_layer_is_named_twice():
    assert len(layers()) == len(set(layers()))


def test_every_folder_of_the_package_is_importable():
    folders = {path.parent for path in (ROOT / "src" / "accord").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_importing_accord_loads_no_heavy_package():
    script = "import accord, json, sys; print(json.dumps(sorted(sys.modules)))"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert HEAVY.isdisjoint(json.loads(loaded))


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "accord" / "py.typed").is_file()


@pytest.mark.parametrize(
    "name", ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"]
)
def test_the_document_exists_and_says_something(name: str):
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert accord.__version__ in headings


def test_the_package_page_is_the_readme():
    assert PROJECT["project"]["readme"] == "README.md"


def test_core_dependencies_are_few_and_have_no_upper_bound():
    dependencies = PROJECT["project"]["dependencies"]
    assert len(dependencies) <= 4
    assert [each for each in dependencies if re.search(r"<|==|~=", each)] == []


def test_every_ignored_lint_rule_carries_its_reason():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ruff = text[text.index("[tool.ruff.lint]") : text.index("[tool.ruff.lint.pydocstyle]")]
    ignores = [line for line in ruff.splitlines() if re.match(r'\s+"[A-Z]+\d*",', line)]
    assert ignores
    assert [line for line in ignores if "#" not in line] == []
