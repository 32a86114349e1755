"""``accord cache``: what is kept of earlier answers, in numbers, in full, or no more."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from accord.cli.failures import FAILED, SUCCESS
from accord.cli.render import clean, columns, count, heading, styled
from accord.cli.stores import log_path
from accord.cli.streams import Answer, say
from accord.errors import UsageError
from accord.reuse.open import beside, is_cache
from accord.reuse.results import MOST_BYTES, Entry, entry_of
from accord.reuse.store import Kept, ResultStore, Row, StoreError, StoreUnreadableError


def cache_command(options: argparse.Namespace) -> int:
    """``accord cache``."""
    if options.json and options.action != "stats":
        raise UsageError("--json goes with stats; export writes JSON in any case")
    if options.out is not None and options.action != "export":
        raise UsageError("--out goes with export")
    path = _path(options)
    try:
        match options.action:
            case "stats":
                _stats(path, as_json=options.json)
            case "export":
                _export(path, options.out or "-")
            case _:
                _clear(path)
    except StoreError as error:
        say(f"accord: {error}")
        return FAILED
    return SUCCESS


def _path(options: argparse.Namespace) -> Path:
    if options.store is None:
        return beside(log_path(options.log))
    if options.log is not None:
        raise UsageError("--log and --store both say which cache is meant: give one")
    return Path(options.store)


@contextmanager
def _reading(path: Path) -> Generator[ResultStore]:
    """The cache at ``path``, which must be there."""
    if not path.exists():
        raise UsageError(
            f"there is no result cache at {path}; name one with --log or --store PATH, or make one "
            "with accord run (it keeps requests that have a seed or temperature 0; --cache on, all)"
        )
    store = ResultStore(path, MOST_BYTES)
    try:
        yield store
    finally:
        store.close()


def _stats(path: Path, *, as_json: bool) -> None:
    answer = Answer()
    with _reading(path) as store:
        kept = store.kept()
    if as_json:
        answer.document(_plain(path, kept))
    elif not kept:
        say(f"no results are kept in {path}")
    else:
        answer.show(*_table(kept))


def _table(kept: list[Kept]) -> list[str]:
    named = any(each.tenant for each in kept)
    rows = [heading("tenant", "kind", "name", "entries", "bytes")]
    rows += [[clean(each.tenant), each.kind, clean(each.name), *_counts([each])] for each in kept]
    total = (styled(text, "bold") for text in ("total", *_counts(kept)))
    rows.append(["", "", *total])
    return columns(rows if named else [row[1:] for row in rows], "<<<>>" if named else "<<>>")


def _counts(kept: list[Kept]) -> tuple[str, str]:
    return count(sum(each.entries for each in kept)), count(sum(each.bytes for each in kept))


def _plain(path: Path, kept: list[Kept]) -> dict[str, Any]:
    return {
        "path": str(path),
        "entries": sum(each.entries for each in kept),
        "bytes": sum(each.bytes for each in kept),
        "kept": [vars(each) for each in kept],
    }


def _export(path: Path, out: str) -> None:
    answer = Answer()
    with _reading(path) as store:
        lines = _lines(store.rows())
        if out == "-":
            for line in lines:
                answer.text(line)
            return
        with Path(out).open("w", encoding="utf-8") as file:
            written = sum(1 for line in lines if file.write(f"{line}\n"))
    say(f"wrote {_results(written)} to {out}")


def _lines(rows: Iterator[Row]) -> Iterator[str]:
    for row in rows:
        try:
            yield msgspec.json.encode(_exported(row, entry_of(row.body))).decode()
        except ValueError:
            say(f"left out {row.key.hex()}: it is not what was kept there")


def _exported(row: Row, entry: Entry) -> dict[str, Any]:
    return {
        "key": row.key.hex(),
        "tenant": row.tenant,
        "kind": row.kind,
        "name": row.name,
        "made_s": row.made_s,
        "result": entry.result,
        "usage": entry.usage,
        "cost": entry.cost,
        "took_ns": entry.took_ns,
    }


def _clear(path: Path) -> None:
    if not path.exists():
        say(f"there was no result cache at {path}")
        return
    try:
        with _reading(path) as store:
            entries = store.clear()
    except StoreUnreadableError as error:
        if not is_cache(path):
            raise StoreError(
                f"{path} is no result cache, as far as can be told: remove it yourself, or name "
                "another file"
            ) from error
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        say(f"removed {path}, which could not be read")
        return
    say(f"removed {_results(entries)} from {path}")


def _results(number: int) -> str:
    return "1 result" if number == 1 else f"{count(number)} results"
