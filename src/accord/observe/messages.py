"""Message logs of other systems, read as conversations: who wrote what, in what order.

Three formats are known, and told apart by what is in them: runs as Who&When publishes them, OpenAI
chat (a request or a conversation a line), and records that name a run and an agent. A request is
sent all that was said before, so of its messages only those count as written that the conversation
did not hold yet; one without a run goes on with the conversation that it begins with.

Nothing is lost in silence: what is no message is counted with its reason, and anything broken is a
:class:`accord.errors.UsageError` that names file and line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from accord.engine.base import Usage
from accord.engine.shapes import items, mapping, string
from accord.engine.usage import normalise_usage
from accord.errors import UsageError
from accord.observe.records import (
    KNOWN,
    BrokenError,
    described,
    kind_of,
    moment_of,
    name_of,
    object_of,
    text_of,
    values_in,
    writer_of,
)
from accord.observe.whatif import EVERYONE, Conversation, Utterance

NO_AGENTS = frozenset({"", "human", "user", "system", "developer", "tool", "function"})
"""Roles and names of those who are sent no prompt."""


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
        for where, value in values_in(path):
            reading.take(where, value)
        log = reading.ended()
    except BrokenError as error:
        place = f"{path}, {error.where}" if error.where else str(path)
        raise UsageError(f"{place}: {error.what}") from error
    if not log.conversations:
        where, why = log.skipped[0]
        raise UsageError(f"{path} holds no messages: {where or 'it'} is {why}. {KNOWN}")
    return log


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
        said = "content" in record and not {"agent", "name", "role"}.isdisjoint(record)
        if isinstance(record.get("history"), list):
            self._take_history(where, record)
        elif isinstance(messages, list) or said:
            self._take_record(_Record(where, record, request, messages))
        else:
            self._skip(where, described(value))

    def ended(self) -> MessageLog:
        """What was read."""
        for run in self._runs.values():
            thread = self._begin()
            for record in _in_time(run):
                self._add(record, thread)
        self._log.conversations += [thread.conversation() for thread in self._all]
        return self._log

    def _take_history(self, where: str, record: Mapping[str, Any]) -> None:
        said = items(record["history"])
        if not said:
            self._skip(where, "an object with an empty history")
            return
        self._see("Who&When")
        utterances: list[Utterance] = []
        for number, message in enumerate(said):
            at = f"{where}, history[{number}]" if where else f"history[{number}]"
            writer = writer_of(object_of(message, at), at)
            text = self._text(message, at)
            utterances.append(Utterance(writer, text, reads=writer not in NO_AGENTS))
        self._log.conversations.append(Conversation(utterances))

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
        agent = writer_of(value, where) if "agent" in value or record.messages is None else ""
        waits = False
        if record.messages is not None:
            at = f"{where}, messages" if where else "messages"
            sent = [self._message(m, f"{at}[{n}]", agent) for n, m in enumerate(record.messages)]
            thread = self._go_on(sent, thread, agent)
            waits = not sent[-1].reads  # else the reply is the last message
        assert thread is not None
        reply, model = self._reply(record)
        if reply is not None:
            thread.say(Utterance(agent or "assistant", reply, agent not in NO_AGENTS - {""}))
        elif waits:
            thread.wait(agent or "assistant")
        thread.model = model or thread.model
        self._threads[thread.key] = thread

    def _go_on(self, sent: list[Utterance], thread: _Thread | None, agent: str) -> _Thread:
        """Adds what is new in a request's messages to the conversation that it belongs to."""
        if thread is not None:
            thread.hear(thread.unknown(sent, agent))
            return thread
        ends = list(accumulate(sent, _chained, initial=b""))
        for known in range(len(sent), 0, -1):
            if (found := self._threads.pop(ends[known], None)) is not None:
                found.hear(sent[known:])
                return found
        begun = self._begin()
        begun.hear(sent)
        return begun

    def _begin(self) -> _Thread:
        self._all.append(_Thread())
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

    def _message(self, message: Any, where: str, agent: str) -> Utterance:
        record = object_of(message, where)
        role = record.get("role")
        if not isinstance(role, str):
            raise BrokenError(where, f"role is {kind_of(role)}; a text was expected")
        text = self._text(record, where)
        if role in ("system", "developer"):
            return Utterance("system", text, reads=False, instructs=agent or EVERYONE)
        if role == "assistant":
            return Utterance(name_of(record.get("name") or agent or role, where), text)
        return Utterance(name_of(record.get("name") or role, where), text, reads=False)

    def _text(self, message: Any, where: str) -> str:
        return text_of(message, where, self._log.not_counted)

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

    def __init__(self) -> None:
        self.model = ""
        self.key = b""
        self._said: list[Utterance] = []
        self._known: Counter[str] = Counter()
        self._instructed: set[tuple[str, str | None]] = set()
        self._waits = False

    def unknown(self, sent: Sequence[Utterance], agent: str) -> list[Utterance]:
        """Those of an agent's messages that nobody in the run has said before."""
        found: list[Utterance] = []
        here: Counter[str] = Counter()
        for utterance in sent:
            if utterance.instructs is not None:
                new = (utterance.text, agent) not in self._instructed
            else:
                here[utterance.text] += 1
                new = here[utterance.text] > self._known[utterance.text]
            if new:
                found.append(utterance)
        return found

    def hear(self, utterances: Sequence[Utterance]) -> None:
        """What came since; a reply that was not recorded with its request stands in the next."""
        if utterances and self._waits and utterances[0].reads:
            self._said.pop()
        self._waits = False
        for utterance in utterances:
            self.say(utterance)

    def say(self, utterance: Utterance) -> None:
        self._said.append(utterance)
        self._waits = False
        self.key = _chained(self.key, utterance)
        if utterance.instructs is None:
            self._known[utterance.text] += 1
        else:
            self._instructed.add((utterance.text, utterance.instructs))

    def wait(self, agent: str) -> None:
        """``agent`` was sent something, and what it wrote is not known yet."""
        self._said.append(Utterance(agent, ""))
        self._waits = True

    def conversation(self) -> Conversation:
        return Conversation(self._said, self.model)


def _in_time(records: list[_Record]) -> list[_Record]:
    """By time, if all have one; else as they stand."""
    times = [moment_of(record.value.get("time")) for record in records]
    if None in times:
        return records
    order = sorted(range(len(records)), key=lambda index: times[index] or 0.0)
    return [records[index] for index in order]


def _chained(key: bytes, utterance: Utterance) -> bytes:
    said = f"{utterance.writer}\0{utterance.text}"
    return sha256(key + said.encode("utf-8", "surrogatepass")).digest()
