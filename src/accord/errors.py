"""Every error that Accord raises, in one tree.

Catch a branch to handle together what you would handle together::

    AccordError
    ├── UsageError                 the caller asked for something that cannot be; nothing ran
    │   └── GraphError             a state graph that cannot work
    ├── LogError
    │   ├── LogWriteError          disk full, read-only, I/O; the run stops, what was durable stays
    │   ├── LogCorruptError        what was read back is not what was written
    │   ├── LogVersionError        written by a newer Accord
    │   ├── RunNotFoundError
    │   ├── RunLockedError         another process holds the run's lease
    │   ├── FencedError            this process lost the lease and must not write
    │   ├── UnserializableError    a value that the log cannot hold, with the path to it
    │   └── UnknownTypeError       a recorded class that cannot be imported; the payload is kept
    ├── EngineError
    │   ├── TransientEngineError   worth another attempt
    │   │   ├── RateLimitedError
    │   │   ├── EngineUnavailableError
    │   │   └── EngineTimeoutError
    │   ├── RejectedError          the same request would be refused again
    │   │   ├── AuthenticationError
    │   │   ├── ModelNotFoundError
    │   │   └── ContextTooLongError
    │   └── EngineProtocolError    the answer was not what the protocol says
    ├── CallError
    │   ├── OutputError            the reply never matched the declared output type
    │   ├── ToolError              a tool failed, or the model could not call it
    │   │   └── ToolLostError      its server was lost during a call, whose effect may have happened
    │   ├── CallTimeoutError
    │   ├── JoinError              fewer branches succeeded than a join waits for
    │   ├── StreamError            a reply that was read while it was written went otherwise
    │   ├── StateError             what was written to a graph's state does not fit it
    │   │   └── StateConflictError two branches wrote one key without knowing of each other
    │   ├── LoopLimitError         a graph went round more often than it may
    │   ├── BudgetExceededError    a call would use more tokens than it may
    │   ├── DeadlinePassedError    a request would have been sent too late to be of use
    │   ├── DelegationError        work was not done by whom it had to be done
    │   ├── UnknownOutcomeError    an effect began before a crash; if it happened is not recorded
    │   └── RecordedError          a failure answered from the log whose class could not be rebuilt
    ├── CommunicationError
    │   ├── ConflictError          two wrote one key without knowing of each other
    │   ├── MailboxFullError       nobody took messages in time
    │   └── EventsEndedError       a subscription has come to its end
    ├── RunSuspendedError          the run waits for a person's answer; it can be resumed
    ├── FlowChangedError           the flow no longer makes the calls that the log recorded
    └── DeadlockError              every task waits, and nothing can wake one

Cancellation is asyncio's own ``CancelledError``: nothing here can swallow it.
Each message says what happened, to which run, agent or key, and what to do next.
"""

from __future__ import annotations

from typing import Any


class AccordError(Exception):
    """Root of the tree."""


class UsageError(AccordError):
    """The caller asked for something that cannot be; nothing ran."""


class GraphError(UsageError):
    """A state graph that cannot work, as far as that can be known before it runs."""


class LogError(AccordError):
    """The log could not do what was asked."""


class LogWriteError(LogError):
    """The store refused a write (disk full, read-only, I/O error)."""


class LogCorruptError(LogError):
    """What was read back is not what was written."""


class LogVersionError(LogError):
    """The store was written by a newer Accord."""


class RunNotFoundError(LogError):
    """No run of that name in this store."""


class RunLockedError(LogError):
    """Another live process holds the run's lease."""


class FencedError(LogError):
    """This process lost the run's lease to another and must stop writing."""


class UnserializableError(LogError, TypeError):
    """A value that the log cannot hold; the message gives the path to it."""


class UnknownTypeError(LogError):
    """A recorded class that cannot be imported now.

    ``type_name`` is ``module:QualName``; ``payload`` is the recorded value in plain types.
    """

    def __init__(self, type_name: str, payload: object, reason: str) -> None:
        super().__init__(
            f"the log holds a value of {type_name}, which cannot be imported ({reason}); "
            "make the class importable again, or read the plain value from .payload"
        )
        self.type_name = type_name
        self.payload = payload


class EngineError(AccordError):
    """An inference engine failed. ``status`` is the HTTP status, if there was one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TransientEngineError(EngineError):
    """Worth another attempt: the same request may succeed later.

    ``retry_after_s`` is what the engine asked for, in seconds, or None.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class RateLimitedError(TransientEngineError):
    """Too many requests or tokens (HTTP 429)."""


class EngineUnavailableError(TransientEngineError):
    """No connection, a 5xx, or a connection lost in the middle of a reply."""


class EngineTimeoutError(TransientEngineError):
    """The engine did not answer, or stopped answering, within the given time."""


class RejectedError(EngineError):
    """The engine refused the request (4xx); the same request would be refused again."""


class AuthenticationError(RejectedError):
    """HTTP 401 or 403."""


class ModelNotFoundError(RejectedError):
    """The engine does not serve that model (HTTP 404)."""


class ContextTooLongError(RejectedError):
    """Prompt and reply together exceed the engine's context window."""


class EngineProtocolError(EngineError):
    """The engine's answer was not what the protocol says."""


class CallError(AccordError):
    """A call of the flow failed."""


class OutputError(CallError):
    """The reply never matched the declared output type.

    ``schema`` is the JSON schema that was asked for, ``text`` the last reply.
    """

    def __init__(self, message: str, *, schema: object, text: str) -> None:
        super().__init__(message)
        self.schema = schema
        self.text = text


class ToolError(CallError):
    """A tool failed in a way that its agent could not mend."""


class ToolLostError(ToolError):
    """A tool's server was lost during a call: the effect may have happened."""


class CallTimeoutError(CallError, TimeoutError):
    """A call took longer than its ``timeout_s``."""


class JoinError(CallError):
    """Fewer branches succeeded than the join waits for. The first failure is its cause."""


class StreamError(CallError):
    """A reply that was read while it was being written was begun anew, and went otherwise."""


class StateError(CallError):
    """What was written to the state of a graph does not fit it."""


class StateConflictError(StateError):
    """Branches wrote one key without knowing of each other.

    ``key``, ``nodes`` (who wrote it) and ``values``.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str = "",
        nodes: tuple[str, ...] = (),
        values: tuple[object, ...] = (),
    ) -> None:
        super().__init__(message)
        self.key = key
        self.nodes = nodes
        self.values = values


class LoopLimitError(CallError):
    """A graph went round more often than it may."""


class BudgetExceededError(CallError):
    """A call would use more tokens than it may. It was not made.

    ``left`` is what was left in tokens, ``resets_in_s`` when there will be room; None if unknown,
    or never.
    """

    def __init__(
        self, message: str, *, left: int | None = None, resets_in_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.left = left
        self.resets_in_s = resets_in_s


class DeadlinePassedError(CallError):
    """The deadline of a request passed before it was sent. It was not, and cost nothing."""


class DelegationError(CallError):
    """Work was not done by whom it had to be done. ``tools`` were required, and not used."""

    def __init__(self, message: str, *, tools: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.tools = tools


class UnknownOutcomeError(CallError):
    """An effect started before a crash, and whether it happened is not recorded.

    Accord never repeats such a call by itself. ``idempotency_key`` is the key the call had.
    """

    def __init__(self, message: str, *, idempotency_key: str = "") -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class RecordedError(CallError):
    """A failure answered from the log whose class could not be rebuilt."""


class CommunicationError(AccordError):
    """Something could not be written for others, or not be delivered."""


class ConflictError(CommunicationError):
    """A key holds what its writer did not expect. Nothing was written.

    ``key``, ``version`` (what it holds now), and ``writer`` (who wrote that; "" is the flow).
    """

    def __init__(self, message: str, *, key: str, version: int, writer: str) -> None:
        super().__init__(message)
        self.key = key
        self.version = version
        self.writer = writer


class MailboxFullError(CommunicationError):
    """A mailbox had no room for a message within the time given. It was not sent."""


class EventsEndedError(CommunicationError):
    """A subscription has come to its end: no event will come of it."""


class RunSuspendedError(AccordError):
    """The run waits for answers, and goes on when it is resumed with them.

    ``run_id``, and ``questions``: each with ``id``, ``question``.
    """

    def __init__(self, message: str, *, run_id: str, questions: tuple[Any, ...]) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.questions = questions


class FlowChangedError(AccordError):
    """The flow no longer makes the calls that the log recorded.

    ``recorded`` and ``now`` describe the first differing call on both sides.
    """

    def __init__(self, message: str, *, recorded: str, now: str) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.now = now


class DeadlockError(AccordError):
    """Every task waits, no timer is set and no thread is at work: nothing can wake one."""
