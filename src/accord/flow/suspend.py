"""A run that waits for a person: it stops, and goes on when the answer is there.

What asks raises :class:`Suspended`. Branches beside it go on to their end; then the run is
interrupted, with its questions in the log. On a resume, what was suspended is made again, and finds
the answer. Code before the question runs again, calls before it answer from the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from accord.errors import RunSuspendedError, UsageError
from accord.log.codec import ValueCodec, printable
from accord.log.events import CallFinished, Envelope, RunFinished, Written
from accord.log.fold import Calls, index_calls, is_within
from accord.log.log import Log

SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to a person. ``id`` is its place in the flow, to answer it by.

    ``event`` is the number of the event with which it was asked.
    """

    id: str
    question: Any
    event: int


class Suspended(BaseException):
    """Code waits for answers. No error, so nothing may swallow it."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(dict.fromkeys(ids))
        super().__init__(*self.ids)


def suspension_in(error: BaseException) -> BaseException:
    """``error``, or the suspension that it is a group of, as a ``TaskGroup`` raises it."""
    found = list(_leaves(error))
    if len(found) > 1 or found[0] is not error:
        asked = [each for each in found if isinstance(each, Suspended)]
        if len(asked) == len(found):
            return merged(asked)
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(each)


def merged(suspensions: Iterable[Suspended]) -> Suspended:
    """One for all questions of several branches."""
    return Suspended(place for each in suspensions for place in each.ids)


def asked_below(calls: Calls, path: str = "") -> list[str]:
    """The questions at or below a place that have not been answered in a finished call."""
    return [
        place
        for place, call in calls.by_scope.items()
        if call.started.kind == "interrupt"
        and is_within(place, path)
        and not isinstance(call.ended, CallFinished)
    ]


def questions_of(envelopes: Iterable[Envelope], calls: Calls, values: ValueCodec) -> list[Question]:
    """What the run waits for, oldest question first."""
    answered = answers_in(envelopes)
    return [
        Question(id=place, question=values.decode(call.started.input)[0], event=call.start.seq)
        for place in asked_below(calls)
        if place not in answered and (call := calls.by_scope[place])
    ]


def check_answer(log: Log, calls: Calls, name: str, sent: Collection[str] = ()) -> None:
    """Raise ``UsageError`` if ``name`` is no open question; ``sent`` is what waits in the post."""
    open_ones = [each.id for each in questions_of(log.envelopes, calls, log.values)]
    open_ones = [each for each in open_ones if each not in sent]
    if name in open_ones:
        return
    asked = calls.by_scope.get(name)
    known = asked is not None and asked.started.kind == "interrupt"
    why = "has been answered already" if known else "is no question of it"
    raise UsageError(
        f"run {log.run!r}: {name!r} {why}; it waits for {open_ones or 'no answer'}, and nothing "
        "has been changed"
    )


def check_signal(log: Log, name: str, sent: Collection[str]) -> None:
    """Raise ``UsageError`` if nothing can be sent to ``name`` of a run from outside."""
    calls = index_calls(log.envelopes)
    if name in calls.by_scope and calls.by_scope[name].started.kind == "interrupt":
        check_answer(log, calls, name, sent)
    if isinstance(calls.ended, RunFinished):
        raise UsageError(f"run {log.run!r} has finished: nobody takes messages there any more")


def answers_as_sent(
    log: Log, calls: Calls, answers: Mapping[str, Any], sent: Collection[str]
) -> dict[str, bytes]:
    """The answers as JSON, all of them checked before anything is changed."""
    for name in answers:
        check_answer(log, calls, name, sent)
    return {name: plain_json(value, f"the answer to {name!r}") for name, value in answers.items()}


def plain_json(value: Any, what: str) -> bytes:
    """``value`` as JSON; raises ``UsageError`` if it would come back as anything else."""
    try:
        body = msgspec.json.encode(value)
        if msgspec.json.decode(body) == value:
            return body
    except (TypeError, ValueError, RecursionError):
        pass
    kind = type(value).__name__
    raise UsageError(f"{what} is plain JSON data (text, numbers, lists, dicts), not this {kind}")


def answers_in(envelopes: Iterable[Envelope]) -> set[str]:
    """The names that messages from outside were sent to, which is how answers come."""
    return {
        each.event.key for each in envelopes if isinstance(each.event, Written) and each.event.post
    }


def suspended_error(run: str, questions: list[Question]) -> RunSuspendedError:
    """What the caller of a run gets that waits for answers."""
    asked = "".join(f"\n  {each.id}: {shown(each, run)}" for each in questions)
    first = questions[0].id if questions else "ID"
    return RunSuspendedError(
        f"run {run} waits for answers:{asked}\n"
        f"`accord resume {run} --answer {first}=VALUE` goes on; in Python: "
        f"resume({run!r}, answers={{{first!r}: value}})",
        run_id=run,
        questions=tuple(questions),
    )


def shown(asked: Question, run: str) -> str:
    """The question as text: all of it, unless it is very long."""
    question = asked.question
    text = printable(question if isinstance(question, str) else repr(question))
    more = len(text) - SHOWN_CHARACTERS
    if more <= 0:
        return text
    rest = f"… ({more:,} characters more: `accord show {run} {asked.event}`)"
    return f"{text[:SHOWN_CHARACTERS]}{rest}"
