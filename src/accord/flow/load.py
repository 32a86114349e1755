"""Flows by name: ``path/to/file.py:name`` or ``module:name``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from accord.errors import UsageError
from accord.log.codec import printable

Flow = Callable[..., Any]
CONVENTIONAL = ("flow", "main")
KEPT_REFERENCES = 64
_references: dict[int, tuple[Flow, str]] = {}
"""The flows looked for last; looking through all modules takes as long as a small run."""
_LIBRARIES = (
    str(Path(__file__).parent.parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


def flow_name(flow: Flow) -> str:
    """A short name for runs of ``flow``."""
    name = getattr(flow, "__name__", None) or getattr(flow, "name", None)
    return printable(str(name or type(flow).__name__).strip("<>"))


def flow_reference(flow: Flow) -> str:
    """How to find ``flow`` again from another process, as :func:`load_flow` takes it."""
    qualname = getattr(flow, "__qualname__", "")
    if not qualname:
        return _reference_of_object(flow)
    module = sys.modules.get(flow.__module__)
    file = getattr(module, "__file__", None)
    return f"{Path(file).resolve()}:{qualname}" if file else f"{flow.__module__}:{qualname}"


def _reference_of_object(flow: Flow) -> str:
    """A graph, a chat or an agent goes by the name that it has in its module."""
    known, reference = _references.get(id(flow), (None, ""))
    if known is not flow:  # by identity: it need not be hashable, and is kept alive
        reference = _searched(flow)
        if len(_references) >= KEPT_REFERENCES:
            del _references[next(iter(_references))]
        _references[id(flow)] = flow, reference
    return reference


def _searched(flow: Flow) -> str:
    for file, module in _modules_of_users():
        for name, value in list(vars(module).items()):
            if value is flow:
                return f"{Path(file).resolve()}:{name}"
    return f"?:{flow_name(flow)}"


def _modules_of_users() -> Iterator[tuple[str, ModuleType]]:
    """Modules that are no part of Python, of Accord or of an installed package."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(_LIBRARIES):
            yield file, module


def load_flow(reference: str) -> Flow:
    """The flow that ``FILE.py``, ``FILE.py:name`` or ``module:name`` refers to.

    Without a name: the function called ``flow`` or ``main``, else the only async function.
    Raises :class:`accord.errors.UsageError` that says what was looked for and what is there.
    """
    place, _, name = _split(reference)
    if "<" in reference or reference.startswith("?"):
        raise UsageError(
            f"{reference} is no function of a file (it was made inside a function, typed in, or is "
            "an agent), so it cannot be found again; pass the flow itself: resume(run, flow)"
        )
    module = _module(place)
    if name:
        return check_flow(_attribute(module, name, reference), reference)
    return check_flow(_only_flow(module, place), reference)


def check_flow(flow: Any, reference: str) -> Flow:
    """``flow``, if it is async."""
    target = flow if inspect.isroutine(flow) else getattr(flow, "__call__", None)  # noqa: B004
    if inspect.iscoroutine(flow):
        flow.close()
        msg = f"{reference} is a call already; pass the function and its inputs: run(flow, x)"
        raise UsageError(msg)
    if not callable(flow):
        msg = f"{reference} is a {type(flow).__name__}, not a function"
        raise UsageError(msg)
    if not inspect.iscoroutinefunction(target):
        msg = f"{reference} is not async; write it as `async def {flow_name(flow)}(...)`"
        raise UsageError(msg)
    return flow


def check_inputs(flow: Flow, inputs: Sequence[Any]) -> None:
    """Raise ``UsageError`` if ``flow`` does not take ``inputs``."""
    try:
        inspect.signature(flow).bind(*inputs)
    except TypeError as error:
        msg = f"{flow_name(flow)}{inspect.signature(flow)} got {len(inputs)} inputs: {error}"
        raise UsageError(msg) from error


def check_name(run_id: str | None) -> None:
    """Raise ``UsageError`` if a run cannot be called ``run_id``."""
    if run_id is not None and (not run_id or not run_id.isprintable()):
        raise UsageError(f"a run's name is printable text, not {run_id!r}")


def _split(reference: str) -> tuple[str, str, str]:
    # A drive letter's colon is followed by a slash, a flow's by a name.
    head, colon, tail = reference.rpartition(":")
    if colon and "/" not in tail and "\\" not in tail:
        return head, colon, tail
    return reference, "", ""


def _module(place: str) -> ModuleType:
    if place.endswith(".py") or "/" in place or "\\" in place:
        return _from_file(Path(place).resolve())
    if not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"there is no flow at {place!r}; name a file, as path/to/file.py:flow")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not place.startswith(error.name or "\0"):
            raise  # the module is there, and misses one that it imports
        msg = f"there is no module {place!r}; a file is given as path/to/file.py"
        raise UsageError(msg) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        msg = f"there is no file {path}"
        raise UsageError(msg)
    main = sys.modules.get("__main__")
    if main is not None and _file_of(main) == path:
        return main  # the running script itself: loading it again would run it again
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None or path.stem in sys.stdlib_module_names:
        msg = f"{path} has the name of another module, {path.stem!r}; give the file another name"
        raise UsageError(msg)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        msg = f"{path} is not a Python file"
        raise UsageError(msg)
    module = importlib.util.module_from_spec(spec)
    # By its stem, so that classes in the log are found; its folder, so that it may import.
    sys.modules[path.stem] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]
        if isinstance(error, Exception):
            msg = f"{path} cannot be loaded: {type(error).__name__}: {error}"
            raise UsageError(msg) from error
        raise
    return module


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _attribute(module: ModuleType, name: str, reference: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        there = ", ".join(_candidates(module)) or "no async function"
        msg = f"{reference}: there is no {name!r}; there is {there}"
        raise UsageError(msg)
    return found


def _only_flow(module: ModuleType, place: str) -> Any:
    for name in CONVENTIONAL:
        if hasattr(module, name):
            return getattr(module, name)
    names = _candidates(module)
    if len(names) == 1:
        return getattr(module, names[0])
    if not names:
        msg = f"{place} has no flow; write one as `async def flow(...)`"
        raise UsageError(msg)
    msg = f"{place} has several async functions; choose one, as {place}:{names[0]} ({names})"
    raise UsageError(msg)


def _candidates(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
