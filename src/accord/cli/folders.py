"""Places that a command writes to, checked before it costs anything."""

from __future__ import annotations

from pathlib import Path

from accord.errors import UsageError


def folder_at(out: str) -> Path:
    """The folder ``out``, made if need be."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the folder {out} cannot be made ({error.strerror}); name another with --out"
        raise UsageError(msg) from error
    return folder


def check_place(file: str | None) -> None:
    """A place that cannot be written must not cost the runs first."""
    if file is not None and file != "-" and not Path(file).absolute().parent.is_dir():
        msg = f"there is no folder for {file}; make it, or name another file with --json"
        raise UsageError(msg)
