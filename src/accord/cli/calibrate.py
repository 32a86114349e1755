"""``accord calibrate``: measures an engine, and keeps what a simulation of it needs in a file."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import msgspec

from accord.cli.failures import SUCCESS
from accord.cli.interrupt import run_interruptible
from accord.cli.render import clean, columns, count
from accord.cli.streams import Answer, say
from accord.engine.base import Engine
from accord.engine.select import select
from accord.engine.sim.fit import Known, fit
from accord.engine.sim.measure import Measured, measure
from accord.engine.sim.profile import Profile
from accord.errors import UsageError

SECONDS, QUICK_SECONDS = 120.0, 30.0
ROUNDS = 2
POOR = 0.3
"""An error that says that something else was measured."""


def calibrate_command(options: argparse.Namespace) -> int:
    """``accord calibrate``."""
    answer = Answer()
    path = _writable(Path(options.out))
    named = _named(options.name or path.stem)
    engine = select(options.engine, model=options.model)
    measured = run_interruptible(_measured(engine, options))
    source = f"accord calibrate {engine.name}" + (
        f", model {measured.model}" if measured.model else ""
    )
    known = Known(
        name=named,
        source=source,
        machine=_machine(),
        kv_tokens=options.kv_tokens,
        batch_tokens=options.batch_tokens,
        aside_tokens=options.aside_tokens,
    )
    profile = fit(measured, known)
    try:
        _write(path, profile)
    except UsageError:
        answer.document(msgspec.to_builtins(profile))  # minutes of measuring are not to be lost
        raise
    if options.json:
        answer.document(msgspec.to_builtins(profile))
    else:
        answer.show(*_lines(profile, path))
    return SUCCESS


def _named(name: str) -> str:
    """``name``, if a profile can have it. Raises UsageError."""
    if not name.isprintable() or not name.strip():
        raise UsageError(f"a profile's name is printable text, not {name!r}; see --name")
    return name


async def _measured(engine: Engine, options: argparse.Namespace) -> Measured:
    seconds = QUICK_SECONDS if options.quick else SECONDS
    rounds = 1 if options.quick else ROUNDS
    try:
        return await measure(
            engine,
            seconds=seconds,
            rounds=rounds,
            concurrency=options.concurrency,
            progress=lambda text: say(f"calibrate: {text}"),
        )
    finally:
        await engine.close()


def _writable(path: Path) -> Path:
    """``path``, as far as can be told before the minutes that it takes. Raises UsageError."""
    folder = path.absolute().parent
    if not folder.is_dir() or path.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written; name another file with --out FILE")
    return path


def _write(path: Path, profile: Profile) -> None:
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}); name another file with --out FILE"
        raise UsageError(message) from error


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {_cores()} cores"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(profile: Profile, path: Path) -> list[str]:
    fitted = profile.fit
    assert fitted is not None
    rows = [
        ["a request", _time(profile.request_s), "on top of its steps"],
        ["a step", _time(profile.overhead_s), "on top of what is in it"],
        ["the weights", _time(profile.weights_s), "a step at least"],
        ["a token", _time(profile.token_s), "read or written"],
        ["a sequence", _time(profile.sequence_s), "that writes, a step"],
        ["its context", _time(profile.kv_s), "a token and step"],
        ["attention", _time(profile.attention_s), "a token read, for each before it"],
    ]
    shared = {"blocks": f"blocks of {profile.block_tokens} tokens", "slots": "slots", "none": "-"}
    rows += [
        ["at once", count(profile.concurrency), "sequences"],
        ["KV cache", count(profile.kv_tokens), f"tokens; it shares: {shared[profile.cache]}"],
        ["text", f"{profile.bytes_a_token:.2f}", "bytes a token"],
        ["a prompt", count(profile.template_tokens), "tokens of the chat template"],
    ]
    off = (
        f"Off by {fitted.error:.1%} on {fitted.points} points that it was fitted to, and by "
        f"{fitted.held_out_error:.1%} on {fitted.held_out} others (medians)."
    )
    if fitted.held_out_error > POOR:
        off += " That is too far off to go by: was the engine, or this machine, busy otherwise?"
    reach = (
        f"Measured up to {fitted.most_sequences} at once and prompts of "
        f"{fitted.longest_prompt:,} tokens; beyond that it is extrapolated."
    )
    assumed = (
        f"Not measured: {profile.batch_tokens:,} tokens a step (--batch-tokens), a window of "
        f"{profile.window:,}, the KV cache (--kv-tokens, where the engine does not say)."
    )
    return [
        f"{clean(profile.name)}: {clean(profile.source)}",
        "",
        *columns(rows, "<><"),
        "",
        off,
        reach,
        assumed,
        f"{path}: use it with --engine sim:{path}",
    ]


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
