"""Message logs of other systems, read as conversations: who wrote what, in what order.

Three formats are known, and told apart by what is in them: runs as Who&When publishes them, OpenAI
chat (a request or a conversation a line), and records that name a run and an agent. A request is
sent all that was said before, so of its messages only those count as written that the conversation
did not hold yet; one without a run goes on with the conversation that it begins with.

Nothing is lost in silence: what is no message is counted with its reason, and anything broken is a
:class:`accord.errors.UsageError` that names file and line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

from accord.engine.base import Usage
from accord.engine.shapes import items, mapping, string
from accord.engine.usage import normalise_usage
from accord.errors import UsageError
from accord.observe.whatif import EVERYONE, Conversation, Turn

KNOWN = (
    'Known are: {"history": [{content, role, name?}]} (Who&When); {"messages": [...], response?, '
    "usage?, model?} a line (OpenAI chat); {run, agent, time?, messages or content} a line or in "
    "an array."
)
LONGEST_LINE = 64 << 20
"""Bytes; a longer line is no message."""
NO_AGENTS = frozenset({"", "human", "user", "system", "developer", "tool", "function"})
"""Roles and names of those who are sent no prompt."""
_TEXTS = ("text", "input_text", "output_text")


class Skipped(NamedTuple):
    """What holds no message: where it is, and why it was passed over."""

    where: str
    why: str


@dataclass(kw_only=True)
class MessageLog:
    """All that was read of a file.

    ``not_counted`` are parts of messages that are no text, by kind; ``usage`` is what the engines
    counted, None if no reply says so.
    """

    formats: list[str] = field(default_factory=list[str])
    conversations: list[Conversation] = field(default_factory=list[Conversation])
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    not_counted: Counter[str] = field(default_factory=Counter[str])
    usage: Usage | None = None


def read_messages(path: Path) -> MessageLog:
    """The conversations in ``path``; raises :class:`accord.errors.UsageError` if there is none."""
    reading = _Reading()
    try:
        for where, value in _records(path):
            reading.take(where, value)
        log = reading.ended()
    except _BrokenError as error:
        raise UsageError(f"{path}{error}") from error
    if not log.conversations:
        where, why = log.skipped[0]
        raise UsageError(f"{path} holds no messages: {where or 'it'} is {why}. {KNOWN}")
    return log


class _BrokenError(Exception):
    """Where in the file something is broken, and how."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f", {where}: {what}" if where else f": {what}")


# ---------------------------------------------------------------------------- lines and values


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each value stands, and the value: a line each, or all of a file that is one."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise _BrokenError("", f"the file is empty. {KNOWN}")
    number, text = first
    try:
        value = _parse(text, number)
    except _BrokenError:
        yield from _expanded("", _document(number, text, lines))
        return
    second = next(lines, None)
    if second is None:
        yield from _expanded("" if number == 1 else f"line {number}", value)
        return
    yield f"line {number}", value
    for at, line in (second, *lines):
        yield f"line {at}", _parse(line, at)


def _expanded(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, list):
        yield where, value
    elif not value:
        raise _BrokenError(where, f"the array is empty. {KNOWN}")
    else:
        listed = enumerate(cast("list[Any]", value), 1)
        yield from ((f"item {number}", item) for number, item in listed)


def _document(number: int, text: str, more: Iterable[tuple[int, str]]) -> Any:
    """A value over many lines; else what is wrong with it, or with the first of many values."""
    lines, size = [*[""] * (number - 1), text], len(text)
    for at, line in more:
        lines += [*[""] * (at - len(lines) - 1), line]
        size += len(line)
        if size > LONGEST_LINE:
            break
    try:
        return _parse("\n".join(lines), 1)
    except _BrokenError as error:
        second = next(filter(None, lines[number:]), "")
        try:
            stands_alone = isinstance(json.loads(second), dict)
        except (ValueError, RecursionError):
            stands_alone = False
        if stands_alone:
            _parse(text, number)  # raises what is wrong with that line
        raise error from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(data) > LONGEST_LINE:
                    most = f"more than {LONGEST_LINE >> 20} MiB in one line"
                    raise _BrokenError(f"line {number}", f"{most}; split the log into lines")
                if text := _text_of(data, number).strip():
                    yield number, text
    except OSError as error:
        reason = error.strerror or str(error)
        raise _BrokenError("", f"it cannot be read ({reason}); name a file of messages") from error


def _text_of(data: bytes, number: int) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at position {error.start}"
        advice = "convert the file first, for instance with iconv -t UTF-8"
        raise _BrokenError(f"line {number}", f"not UTF-8 text ({found}); {advice}") from error


def _parse(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = number + error.lineno - 1
        what = f"not JSON ({error.msg}, column {error.colno}: {_cut(text[error.pos :])})"
        advice = KNOWN if at == 1 else "Mend or remove it"
        raise _BrokenError(f"line {at}", f"{what}. {advice}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise _BrokenError(f"line {number}", f"JSON that cannot be read: {reason}") from error


def _cut(text: str) -> str:
    return repr(text[:20] + "…" if len(text) > 20 else text) if text else "the end"


# ---------------------------------------------------------------------------- records


class _Reading:
    """Takes records one by one, each by what is in it."""

    def __init__(self) -> None:
        self._log = MessageLog()
        self._threads: dict[bytes, _Thread] = {}
        self._all: list[_Thread] = []
        self._runs: dict[str, list[_Record]] = {}

    def take(self, where: str, value: Any) -> None:
        """One value of the file."""
        record = mapping(value)
        request = mapping(record.get("request"))
        request = mapping(request.get("body")) or request
        messages = record.get("messages", request.get("messages"))
        if isinstance(record.get("history"), list):
            self._take_history(where, record)
        elif isinstance(messages, list) or _is_said(record):
            self._take_record(_Record(where, record, request, messages))
        else:
            self._skip(where, _seen(value))

    def ended(self) -> MessageLog:
        """What was read."""
        for run, records in self._runs.items():
            thread = self._begin(run)
            for record in _in_time(records):
                self._add(record, thread)
        self._log.conversations += [found for each in self._all if (found := each.conversation())]
        return self._log

    def _take_history(self, where: str, record: Mapping[str, Any]) -> None:
        said = items(record["history"])
        if not said:
            self._skip(where, "an object with an empty history")
            return
        self._see("Who&When")
        turns: list[Turn] = []
        for number, message in enumerate(said):
            at = f"{where}, history[{number}]" if where else f"history[{number}]"
            writer = _writer(_object(message, at), at)
            turns.append(Turn(writer, self._text(message, at), reads=writer not in NO_AGENTS))
        run = str(record.get("question_ID") or record.get("run") or "")
        self._log.conversations.append(Conversation(run, turns))

    def _take_record(self, record: _Record) -> None:
        """A request, or something that was said."""
        if record.messages is not None and not items(record.messages):
            self._skip(record.where, "a request without messages")
            return
        run = record.value.get("run")
        if record.messages is None or run is not None:
            self._see("records of runs")
            self._runs.setdefault("" if run is None else str(run), []).append(record)
        else:
            self._see("OpenAI chat")
            self._add(record, None)

    def _add(self, record: _Record, thread: _Thread | None) -> None:
        where, value = record.where, record.value
        agent = _writer(value, where) if "agent" in value or record.messages is None else ""
        waits = False
        if record.messages is not None:
            at = f"{where}, messages" if where else "messages"
            sent = [self._message(m, f"{at}[{n}]", agent) for n, m in enumerate(record.messages)]
            thread = self._go_on(sent, thread, agent)
            waits = not sent[-1].reads  # else the reply is the last message
        assert thread is not None
        reply, model = self._reply(record)
        if reply is not None:
            thread.say(Turn(agent or "assistant", reply, agent not in NO_AGENTS - {""}))
        elif waits:
            thread.wait(agent or "assistant")
        thread.model = model or thread.model
        if not thread.run:
            self._threads[thread.key] = thread

    def _go_on(self, sent: list[Turn], thread: _Thread | None, agent: str) -> _Thread:
        """Adds what is new in a request's messages to the conversation that it belongs to."""
        if thread is not None:
            thread.hear(thread.unknown(sent, agent))
            return thread
        key, ends = b"", [b""]
        for turn in sent:
            key = _chained(key, turn)
            ends.append(key)
        for known in range(len(sent), 0, -1):
            if (found := self._threads.pop(ends[known], None)) is not None:
                found.hear(sent[known:])
                return found
        begun = self._begin("")
        begun.hear(sent)
        return begun

    def _begin(self, run: str) -> _Thread:
        self._all.append(_Thread(run))
        return self._all[-1]

    def _reply(self, record: _Record) -> tuple[str | None, str]:
        """What the agent wrote, None if the record doesn't say; and the model that it came from."""
        value, where = record.value, record.where
        answer = value.get("response")
        found = mapping(answer)
        body = mapping(found.get("body")) or found
        model = string(value.get("model") or record.request.get("model") or body.get("model"))
        self._count(mapping(value.get("usage") or body.get("usage")))
        choices = items(value.get("choices") or body.get("choices"))
        message: Any = mapping(choices[0]).get("message") if choices else body or None
        if isinstance(answer, str):
            return answer, model
        if message is not None and "content" in mapping(message):
            return self._text(message, f"{where}, response" if where else "response"), model
        if "content" in value or record.messages is None:
            return self._text(value, where), model
        if answer is not None:
            self._skip(where, "a request whose response has no text")
        return None, model

    def _message(self, message: Any, where: str, agent: str) -> Turn:
        record = _object(message, where)
        role = record.get("role")
        if not isinstance(role, str):
            raise _BrokenError(where, f"role is {_kind(role)}; a text was expected")
        text = self._text(record, where)
        if role in ("system", "developer"):
            return Turn("system", text, reads=False, instructs=agent or EVERYONE)
        if role == "assistant":
            return Turn(_name(record.get("name") or agent or role, where), text)
        return Turn(_name(record.get("name") or role, where), text, reads=False)

    def _text(self, message: Any, where: str) -> str:
        """All texts of a message, and the calls in it as a model reads them."""
        record = mapping(message)
        texts = self._parts(record.get("content"), where)
        for call in items(record.get("tool_calls")):
            function = mapping(mapping(call).get("function"))
            arguments = function.get("arguments", "")
            told = arguments if isinstance(arguments, str) else json.dumps(arguments)
            texts.append(f"{string(function.get('name'))}({told})")
        return "\n".join(texts)

    def _parts(self, content: Any, where: str) -> list[str]:
        match content:
            case None:
                return []
            case str():
                return [content]
            case list():
                parts = cast("list[Any]", content)
                found = [self._part(part, where) for part in parts]
                return [text for text in found if text is not None]
            case _:
                expected = "a text, a list of parts or null was expected"
                raise _BrokenError(where, f"content is {_kind(content)}; {expected}")

    def _part(self, part: Any, where: str) -> str | None:
        if isinstance(part, str):
            return part
        kind, text = _object(part, where).get("type"), mapping(part).get("text")
        if kind in _TEXTS and isinstance(text, str):
            return text
        self._log.not_counted[string(kind) or "part without a type"] += 1
        return None

    def _count(self, usage: Mapping[str, Any]) -> None:
        counted, before = normalise_usage(usage), self._log.usage
        if counted is not None and before is not None:
            counted = Usage(
                prompt=before.prompt + counted.prompt,
                completion=before.completion + counted.completion,
                cached=before.cached + counted.cached,
            )
        self._log.usage = counted or before

    def _see(self, known: str) -> None:
        if known not in self._log.formats:
            self._log.formats.append(known)

    def _skip(self, where: str, why: str) -> None:
        self._log.skipped.append(Skipped(where, why))


class _Record(NamedTuple):
    where: str
    value: Mapping[str, Any]
    request: Mapping[str, Any]
    messages: Any


class _Thread:
    """A conversation as its requests tell it. ``key`` stands for all that was said in it."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.model = ""
        self.key = b""
        self._turns: list[Turn] = []
        self._known: Counter[str] = Counter()
        self._instructed: set[tuple[str, str | None]] = set()
        self._waits = False

    def unknown(self, sent: Sequence[Turn], agent: str) -> list[Turn]:
        """Those of an agent's messages that nobody in the run has said before."""
        found: list[Turn] = []
        here: Counter[str] = Counter()
        for turn in sent:
            if turn.instructs is not None:
                new = (turn.text, agent) not in self._instructed
            else:
                here[turn.text] += 1
                new = here[turn.text] > self._known[turn.text]
            if new:
                found.append(turn)
        return found

    def hear(self, turns: Sequence[Turn]) -> None:
        """What came since; a reply that was not recorded with its request stands in the next."""
        if turns and self._waits and turns[0].reads:
            self._turns.pop()
        self._waits = False
        for turn in turns:
            self.say(turn)

    def say(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._waits = False
        self.key = _chained(self.key, turn)
        if turn.instructs is None:
            self._known[turn.text] += 1
        else:
            self._instructed.add((turn.text, turn.instructs))

    def wait(self, agent: str) -> None:
        """``agent`` was sent something, and what it wrote is not known yet."""
        self._turns.append(Turn(agent, ""))
        self._waits = True

    def conversation(self) -> Conversation | None:
        return Conversation(self.run, self._turns, self.model) if self._turns else None


def _is_said(record: Mapping[str, Any]) -> bool:
    return "content" in record and any(key in record for key in ("agent", "name", "role"))


def _writer(record: Mapping[str, Any], where: str) -> str:
    """Who wrote a message: by agent or name, else by role, of which ``(thought)`` is no part."""
    named = record.get("agent") or record.get("name")
    if named:
        return _name(named, where)
    return _name(record.get("role"), where).partition(" (")[0]


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _BrokenError(where, f"who wrote it is {_kind(value)}; a name was expected")
    return " ".join(value.split())


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise _BrokenError(where, f"{_kind(value)} stands where a message was expected")


def _in_time(records: list[_Record]) -> list[_Record]:
    """By time, if all have one; else as they stand."""
    times = [_moment(record.value.get("time")) for record in records]
    if None in times:
        return records
    order = sorted(range(len(records)), key=lambda index: times[index] or 0.0)
    return [records[index] for index in order]


def _moment(time: Any) -> float | None:
    if isinstance(time, int | float):
        return float(time)
    try:
        return datetime.fromisoformat(string(time)).timestamp()
    except (ValueError, OverflowError):
        return None


def _chained(key: bytes, turn: Turn) -> bytes:
    said = f"{turn.writer}\0{turn.text}".encode("utf-8", "surrogatepass")
    return sha256(key + said).digest()


def _seen(value: Any) -> str:
    """What a value is that holds no message."""
    keys = list(mapping(value))
    if not keys:
        return _kind(value)
    shown = ", ".join(key[:30] for key in keys[:8])
    return f"an object with {shown}{', …' if len(keys) > 8 else ''}"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text" if value.strip() else "an empty text"
        case list():
            return "an array"
        case _:
            return "an object"
