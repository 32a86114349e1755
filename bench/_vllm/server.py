"""A vLLM to measure: the one that ACCORD_VLLM_URL names, or one that is started for it."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

HOME = Path(__file__).parent.parent.parent / ".venv-vllm"
SCRIPT = Path(__file__).parent / "serve.sh"
READY_S = 300.0
END_S = 30.0


class NotServedError(Exception):
    """vLLM is installed and does not serve."""


@contextmanager
def served(options: Sequence[str]) -> Generator[str | None]:
    """The URL of a server with vLLM's ``options``, while the block runs.

    None if vLLM is not installed. One that ACCORD_VLLM_URL names is taken as it is.
    """
    given = os.environ.get("ACCORD_VLLM_URL")
    if given or not (HOME / "stamp").exists():
        yield given or None
        return
    port = _free_port()
    command = ["bash", str(SCRIPT), "serve", str(HOME), str(port), *options]
    with (HOME / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}/v1"
            _wait_until_ready(url, process)
            yield url
        finally:
            _end(process)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise NotServedError(f"vLLM does not serve on {url}; its log: {HOME / 'server.log'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
