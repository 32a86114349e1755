"""The vocabulary: what can happen in a run.

A closed union of frozen facts in the past tense. A fact that takes time is two events, one
when it started and one when it ended, never one edited later. Everything that Accord shows
(state, reports, progress) is read off a sequence of these.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from accord.engine.base import Timings, Usage

CallKind = Literal[
    "agent",
    "request",
    "step",
    "tool",
    "graph",
    "node",
    "handle",
    "sleep",
    "send",
    "receive",
    "watch",
    "search",
    "interrupt",
]
"""What a call is. ``request`` is one logical model request, whatever attempts it took; ``handle``
is what an actor does about one message; ``send``, ``receive`` and ``watch`` wait for others of the
run, ``search`` looks in a memory, ``interrupt`` asks a person."""

PAST_DEADLINE = "past its deadline"
"""The preview of a node that went on without inputs, for it had waited long enough."""

Space = Literal["board", "mail", "memory", "events"]
"""Where things are written for others to read: folds of the same facts."""

Reducer = Literal["replace", "append", "merge", "union", "maximum", "remove"]
"""How what is written meets what was there."""

Rung = Literal["", "shorter", "cheaper"]
"""What a request was made with to stay within its agent's budget: a shorter reply than asked for,
a cheaper model; empty for what was asked for."""

Value = msgspec.Raw
"""A recorded value: JSON as :mod:`accord.log.codec` writes it."""

NOTHING = Value(b"null")
"""Stands where no value was recorded."""


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="is"):
    """Root of the vocabulary."""


class ErrorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as recorded.

    ``type`` is the ``module:QualName`` of its class, or of the nearest one above it that can be
    found again; ``state`` is what it takes to make it again, ``[args, attributes]``.
    """

    type: str
    message: str
    state: Value = NOTHING


class RunStarted(Fact, frozen=True, kw_only=True):
    """Event 0: all that is needed to run again from nothing."""

    run: str
    flow: str
    """``path/to/file.py:name`` or ``module:name``."""
    input: Value
    began_s: float
    """Seconds since 1970. With the run's name, tells it from all others."""
    engine: str
    """As ``--engine`` takes it."""
    model: str = ""
    """As it was asked for; empty for the engine's own choice."""
    seed: int
    version: str
    forked_from: str = ""
    """The run that this one shares its beginning with, and goes on from otherwise."""
    forked_at: tuple[int, ...] = ()
    """The ends of the calls whose outputs are others here, by their numbers in that run."""
    baseline_tokens: int | None = None
    """What one agent needs for the same task, where it was measured or given."""


class RunResumed(Fact, frozen=True, kw_only=True):
    """The run goes on in another process. The time between is not the run's."""

    version: str


class RunFinished(Fact, frozen=True, kw_only=True):
    """The flow returned."""

    output: Value


class RunFailed(Fact, frozen=True, kw_only=True):
    """The flow raised."""

    error: ErrorRecord
    because: tuple[int, ...] = ()
    """The ends of calls whose failure or cancellation came through here."""


class RunInterrupted(Fact, frozen=True, kw_only=True):
    """The run was cancelled from outside, or waits for answers; it can be resumed."""

    because: tuple[int, ...] = ()
    waits_for: tuple[str, ...] = ()
    """The places of the questions that it waits for."""


class CallStarted(Fact, frozen=True, kw_only=True):
    """A call began. ``key`` hashes kind, name and input.

    ``preview`` is the input's beginning, for people; a request has its whole input.
    """

    name: str
    key: str
    kind: CallKind = "step"
    """The most frequent kind is left out of the record."""
    preview: str = ""
    input: Value = NOTHING
    """Kept for requests (the prompt) and tools; other inputs are outputs kept elsewhere."""
    pure: bool = False
    coordination: bool = False
    handling: tuple[int, ...] = ()
    """Made in an ``except`` or ``finally``: the ends of calls whose failure was in flight."""

    @property
    def has_effects(self) -> bool:
        """Making it twice may do harm."""
        return not self.pure and self.kind in ("step", "tool")


class CallFinished(Fact, frozen=True, kw_only=True):
    """A call succeeded. A request also says what its last attempt cost and how time went."""

    call: int
    output: Value
    usage: Usage | None = None
    timings: Timings | None = None
    spent: Spent | None = None
    cost: float | None = None
    rung: Rung = ""
    saved: Saved | None = None
    """It was not made: an equal call had been."""


class CallFailed(Fact, frozen=True, kw_only=True):
    """A call failed for good."""

    call: int
    error: ErrorRecord
    because: tuple[int, ...] = ()
    """The ends of calls whose failure or cancellation came through here."""
    unknown: bool = False
    """It was cut off, or its outcome could not be recorded: an effect may have happened."""
    thread_left_running: bool = False


class CallCancelled(Fact, frozen=True, kw_only=True):
    """A call was cancelled, or suspended by a question. What a request had cost is counted."""

    call: int
    because: tuple[int, ...] = ()
    usage: Usage | None = None
    thread_left_running: bool = False
    cost: float | None = None
    rung: Rung = ""
    suspended: bool = False
    """It waits for a person's answer, and is made again when that is there."""


class AttemptFailed(Fact, frozen=True, kw_only=True):
    """One attempt of a request, a node or a handler failed; the next comes in ``retry_in_s``."""

    call: int
    attempt: int
    error: ErrorRecord
    retry_in_s: float
    usage: Usage | None = None
    """What the engine billed for it, as far as it is known."""
    cost: float | None = None
    rung: Rung = ""


class Joined(Fact, frozen=True, kw_only=True):
    """Branches met again. Its causes are their last events."""

    branches: int
    policy: Literal["fail_fast", "isolate"]
    dropped: tuple[int, ...] = ()
    """The branches that it did not wait for, by their place among all."""


class Note(Fact, frozen=True, kw_only=True):
    """What takes no time: one event, at a place of its own."""

    handling: tuple[int, ...] = ()
    """As for a call."""


class Written(Note, frozen=True, kw_only=True):
    """Something was put where others can read it. The number of this event is its version.

    ``value`` is what was added, not what there is now: an appended item, a merged part.
    """

    key: str
    value: Value = NOTHING
    space: Space = "board"
    how: Reducer = "replace"
    by: str = ""
    """The agent that wrote it; empty for the flow's own code."""
    post: int = 0
    """Its number in the run's post, if it came from outside of the run."""
    asks: bool = False
    """A message whose sender waits for an answer."""


class Looked(Note, frozen=True, kw_only=True):
    """Code looked at what had been written up to here: what it saw is a fold of the log so far."""

    what: str
    by: str = ""
    views: tuple[View, ...] = ()
    """What an agent was shown, by whose and under which policy."""
    took: tuple[int, ...] = ()
    """The messages or events that were seen by it and count as taken, by number."""


class Guessed(Note, frozen=True, kw_only=True):
    """What a call would give was guessed, and what follows from it has begun, if ``followed``."""

    site: str
    """The name of the call, in :func:`accord.sync.speculate.speculate` or in an agent."""
    value: Value
    preview: str = ""
    """The guess, for people."""
    by: str = ""
    """Who guessed; empty for an earlier result."""
    followed: bool = True
    right: bool | None = None
    """Of one that was not followed, but scored: whether it would have been right."""
    record: tuple[float, ...] = ()
    """How guesses at that site had gone before: see :class:`accord.reuse.site.Site`."""


class MailboxOpened(Note, frozen=True, kw_only=True):
    """A mailbox takes what is sent to ``name``, and to the ``topics`` that it follows."""

    name: str
    topics: tuple[str, ...] = ()
    capacity: int
    """The most messages that may wait in it."""
    broadcasts: bool = True
    """It also takes what is sent to everybody."""


class MailboxClosed(Note, frozen=True, kw_only=True):
    """Whoever took messages from ``name`` has ended; what comes from now on waits for nobody."""

    name: str


class MessageTaken(Note, frozen=True, kw_only=True):
    """A message went from a mailbox to its recipient."""

    mailbox: str
    message: int
    """The number of the event that sent it."""


class PrefetchStarted(Fact, frozen=True, kw_only=True):
    """The engine is given what is known of the next prompt of ``agent``, in spare capacity.

    It is at no place of the flow, and nothing follows from it.
    """

    agent: str
    tokens: int
    """Of that beginning, by estimate."""


class PrefetchEnded(Fact, frozen=True, kw_only=True):
    """The engine has it, or was asked by somebody else meanwhile and has a part of it."""

    prefetch: int
    """The number of the event with which it started."""
    usage: Usage | None = None
    cost: float | None = None
    preempted: bool = False


class CheckpointSaved(Fact, frozen=True, kw_only=True):
    """Another framework saved where one of its threads stands.

    What a thread is, and how a value is put down, is told in :mod:`accord.langgraph`.
    """

    id: str
    namespace: str = ""
    parent: str = ""
    """The checkpoint that it came from; empty for none."""
    whole: bool = False
    """``changes`` are from nothing, not from the parent."""
    changes: Value
    """Versions and values of channels, and versions that nodes have seen."""
    rest: Value
    """The other fields of the checkpoint."""
    metadata: Value


class WritesSaved(Fact, frozen=True, kw_only=True):
    """A task of another framework's thread ended, or paused: what it adds to a checkpoint."""

    checkpoint: str
    namespace: str = ""
    task: str
    path: str = ""
    """The place of the task among those of its step."""
    writes: tuple[SavedWrite, ...]


class SavedWrite(msgspec.Struct, frozen=True, array_like=True):
    """One value for one channel. A negative ``index`` replaces what was there, others do not."""

    index: int
    channel: str
    value: Value


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one agent was shown of another's writing, in estimated tokens.

    ``full`` is what all of it takes, ``sent`` what was in the prompt under ``policy``, history
    included, ``new`` what of that had not been sent to this agent before.
    """

    writer: str
    policy: str
    full: int
    sent: int = 0
    new: int = 0


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call would have cost, as it cost whoever made it; ``took_ns`` in nanoseconds."""

    usage: Usage | None = None
    cost: float | None = None
    took_ns: int = 0


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the client saw a request's time go, in nanoseconds; the engine's view is Timings."""

    queued_ns: int = 0
    """Waiting for a free place or a cool-down, and in attempts that failed."""
    first_token_ns: int | None = None
    """From sending to the first delta; None if the reply came whole."""
    total_ns: int = 0
    """From sending to the end of the last attempt."""


Event = (
    RunStarted
    | RunResumed
    | RunFinished
    | RunFailed
    | RunInterrupted
    | CallStarted
    | CallFinished
    | CallFailed
    | CallCancelled
    | AttemptFailed
    | Joined
    | Written
    | Looked
    | Guessed
    | MailboxOpened
    | MailboxClosed
    | MessageTaken
    | PrefetchStarted
    | PrefetchEnded
    | CheckpointSaved
    | WritesSaved
)


Noted = Written | Looked | Guessed | MailboxOpened | MailboxClosed | MessageTaken
CallEnded = CallFinished | CallFailed | CallCancelled
RunEnded = RunFinished | RunFailed | RunInterrupted


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """An event with its place: in the log, in time, in the flow, and in what caused it."""

    seq: int
    at: int
    """Nanoseconds on the run's clock, which stands still while no process runs it."""
    scope: str
    """The place in the flow: a path such as ``0/2/1``; the run itself is the empty path."""
    causes: tuple[int, ...]
    event: Event
