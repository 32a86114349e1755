"""Which engine a word on the command line means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from accord.engine.local import LocalEngine
from accord.engine.openai import OpenAIEngine
from accord.engine.sim.engine import SimEngine
from accord.engine.sim.presets import DEFAULT, known_profiles, profile_of
from accord.errors import UsageError

if TYPE_CHECKING:
    from accord.engine.base import Engine


def select(spec: str | None, *, model: str | None = None) -> Engine:
    """The engine that ``spec`` names: ``local``, ``local:PATH``, a server's URL, ``sim:PROFILE``.

    None means the server that OPENAI_BASE_URL names, or the local engine if it names none. Nothing
    is started. Raises UsageError for anything else, and for a ``model`` that the local engine would
    have to ignore.
    """
    if spec is None and os.environ.get("OPENAI_BASE_URL"):
        return OpenAIEngine.from_env(model=model)
    spec = spec or "local"
    kind, _, rest = spec.partition(":")
    match kind.lower():
        case "local" if model:
            message = (
                f"the local engine serves one file, so it takes no model name ({model!r}); "
                "use local:PATH of the model's .gguf file, or the URL of a server that has it"
            )
            raise UsageError(message)
        case "local" if not rest:
            return LocalEngine()
        case "local":
            return LocalEngine(Path(rest).expanduser())
        case "http" | "https":
            key = os.environ.get("OPENAI_API_KEY") or None
            named = model or os.environ.get("OPENAI_MODEL") or None
            return OpenAIEngine(spec, model=named, api_key=key)
        case "sim":
            if model:
                message = f"sim:PROFILE names what is simulated, so it takes no model ({model!r})"
                raise UsageError(message)
            return SimEngine(profile_of(rest or DEFAULT), name=f"sim:{rest or DEFAULT}")
        case _:
            message = (
                f"no engine is called {spec!r}; use local, local:PATH of a .gguf file, "
                "the URL of an OpenAI-compatible server such as http://127.0.0.1:8000/v1, "
                f"or sim:PROFILE ({', '.join(known_profiles())}, or a file of accord calibrate)"
            )
            raise UsageError(message)
