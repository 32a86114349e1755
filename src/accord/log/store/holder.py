"""Who holds a lease: ``host/pid/start``, so that a holder that died is known to be dead."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


def this_process() -> str:
    """The name of the running process as a holder."""
    return _name_of(os.getpid())


def surely_dead(holder: str) -> bool:
    """True if ``holder`` was a process of this machine and is gone; False if unsure."""
    host, _, rest = holder.partition("/")
    pid, _, start = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _start_of(int(pid)) != start or _is_zombie(int(pid))


@lru_cache(maxsize=1)  # by number, since a fork is another process
def _name_of(pid: int) -> str:
    return f"{socket.gethostname()}/{pid}/{_start_of(pid)}"


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The command, in parentheses, may hold anything; fields are counted from behind it.
    return text.rpartition(")")[2].split()


def _start_of(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else "0"  # proc(5): starttime


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == ["Z"]
