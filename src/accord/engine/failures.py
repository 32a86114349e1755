"""What an engine's refusal means: status, headers and body to one error of the tree.

Pure functions. Promises: an error that another attempt cannot mend is never a
:class:`~accord.errors.TransientEngineError`; no message holds the key that was sent.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast

from accord.engine.shapes import mapping
from accord.errors import (
    AuthenticationError,
    ContextTooLongError,
    EngineError,
    EngineProtocolError,
    EngineUnavailableError,
    ModelNotFoundError,
    RateLimitedError,
    RejectedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EXCERPT_CHARS = 200

_TOO_LONG = (
    "exceed_context_size",  # llama.cpp
    "context_length_exceeded",  # OpenAI
    "maximum context length",  # vLLM, OpenAI
    "context window",
    "exceeds the available context",  # llama.cpp
    "longer than the model's context length",  # SGLang
    "prompt is too long",  # Anthropic
)
# In the order in which they are tried: a quota that is used up also calls itself a rate limit.
_STATUS_BY_WORD = (
    ("insufficient_quota", 429),
    ("rate_limit", 429),
    ("authentication", 401),
    ("invalid_api_key", 401),
    ("permission", 403),
    ("not_found", 404),
    ("overloaded", 503),
    ("unavailable", 503),
    ("server_error", 500),
    ("internal", 500),
    ("invalid_request", 400),
    ("badrequest", 400),
)


def error_for(
    status: int,
    headers: Mapping[str, str],
    text: str,
    *,
    where: str,
    model: str = "",
    served: Sequence[str] = (),
    secret: str = "",
) -> EngineError:
    """The error for an answer of ``status`` that is not a success."""
    said = reason(text, secret)
    about = f"{where} answered {status}: {said}"
    wait_s = retry_after_s(headers)
    match status:
        case 401 | 403:
            message = f"{about}; check the API key (OPENAI_API_KEY) and what it may do"
            return AuthenticationError(message, status=status)
        case 404:
            return ModelNotFoundError(_not_found(about, model, served), status=status)
        case 429 if "insufficient_quota" in text:
            # Waiting does not mend this one, so it is no rate limit to us.
            message = f"{about}; the account's quota is used up: raise it, or use another key"
            return RejectedError(message, status=status)
        case 408 | 409 | 429:
            return RateLimitedError(_wait(about, wait_s), status=status, retry_after_s=wait_s)
        case _ if status >= 500:
            return EngineUnavailableError(_wait(about, wait_s), status=status, retry_after_s=wait_s)
        case _ if status >= 400:
            return _rejected(status, text, about)
        case _:
            target = f" to {headers['location']}" if "location" in headers else ""
            message = f"{about}; a redirect{target} is not followed: set the final base URL"
            return EngineProtocolError(message, status=status)


def error_in(
    payload: Mapping[str, Any],
    *,
    where: str,
    model: str = "",
    served: Sequence[str] = (),
    secret: str = "",
) -> EngineError | None:
    """The error that a 200 carries in its body or in its stream, if it carries one."""
    error = payload.get("error")
    if not error:
        return None
    text = json.dumps({"error": error}, ensure_ascii=False, default=str)
    status = _status(mapping(error), text)
    if status is None:
        said = reason(text, secret)
        return EngineProtocolError(
            f"{where} sent an error in place of a reply: {said}; the server's own log may say more"
        )
    return error_for(status, {}, text, where=where, model=model, served=served, secret=secret)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by ``retry-after-ms`` or ``retry-after`` (seconds or an HTTP date)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    until = _date(value)
    # The server's own clock where it is known: this machine's may be wrong.
    now = _date(headers.get("date")) or datetime.now(UTC)  # noqa: TID251  (a date on the wire is wall time)
    return None if until is None else max((until - now).total_seconds(), 0.0)


def reason(text: str, secret: str = "") -> str:
    """What the engine said, in at most ``EXCERPT_CHARS`` characters of one line."""
    said = _message(text) or text
    if secret:
        said = said.replace(secret, "***")
    said = " ".join(said.split())
    return (said[:EXCERPT_CHARS] + "…") if len(said) > EXCERPT_CHARS else (said or "(empty body)")


def says_too_long(text: str) -> bool:
    """Whether a refusal is about the context window, in any engine's words."""
    lower = text.lower()
    return any(phrase in lower for phrase in _TOO_LONG)


def refused_field(text: str, fields: Iterable[str]) -> str | None:
    """Which of ``fields`` of the request a refusal is about.

    Servers quote in it what they were sent, prompts too: it does not count that a name occurs.
    """
    body = mapping(_json(text))
    error = mapping(body.get("error")) or body
    said = [str(error.get("param"))]
    detail = body.get("detail")
    for each in cast("list[object]", detail) if isinstance(detail, list) else []:
        loc = mapping(each).get("loc")
        said += [str(part) for part in cast("list[object]", loc)] if isinstance(loc, list) else []
    message = reason(text).lower()
    return next((f for f in fields if f in said or _names(message, f)), None)


def _names(message: str, field: str) -> bool:
    """OpenAI's and others' "unknown argument: x", vLLM's "x scheduling is not enabled"."""
    name = rf"[\"'`]?\b{field}\b[\"'`]?"
    unknown = r"(unrecogni[sz]ed|unknown|unsupported|unexpected|extra|invalid)"
    what = r"(\w+ )*(argument|parameter|field|key|property|option)s?( \w+)?:? "
    is_not = rf"(the )?(\w+ )?{name}( \w+)? (is|are) not\b"
    got = rf"got {field} \S+ but {field} \w+ is not\b"
    place = rf".{{0,60}}\bloc\W+body\W+{field}\b"
    return re.match(rf"{unknown} {what}{name}|{is_not}|{got}|{place}", message) is not None


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _rejected(status: int, text: str, about: str) -> RejectedError:
    if status in (400, 413, 422) and says_too_long(text):
        message = f"{about}; send less context or ask for fewer tokens"
        return ContextTooLongError(message, status=status)
    return RejectedError(f"{about}; the same request would be refused again", status=status)


def _not_found(about: str, model: str, served: Sequence[str]) -> str:
    asked = f"; the model asked for was {model!r}" if model else ""
    known = f", and it serves {', '.join(served)}" if served else ""
    return f"{about}{asked}{known}; check the model's name, and that the base URL ends in /v1"


def _wait(about: str, wait_s: float | None) -> str:
    return about if wait_s is None else f"{about}; it asks to wait {wait_s:g} s"


def _message(text: str) -> str:
    """The message inside an error body: OpenAI's, FastAPI's or older vLLM's shape."""
    body = mapping(_json(text))
    error = body.get("error")
    found = mapping(error).get("message") or error or body.get("message") or body.get("detail")
    if not found:
        return ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _status(error: Mapping[str, Any], text: str) -> int | None:
    for key in ("code", "status", "status_code"):
        value = error.get(key)
        if isinstance(value, str) and value.isdecimal() and len(value) < 9:
            value = int(value)
        number: object = value
        if isinstance(number, int) and 400 <= number < 600:
            return number
    if says_too_long(text):
        return 400
    words = f"{error.get('type')} {error.get('code')}".lower()
    return next((status for word, status in _STATUS_BY_WORD if word in words), None)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
