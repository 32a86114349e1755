"""When a chat is over: conditions that combine with ``|`` and ``&``.

``MaxMessages(12) | TextMention("APPROVED", by="reviewer")``. A condition is a pure function of the
messages so far, which carry times and tokens as they were recorded. So one object serves any number
of chats, and a replay stops where the run did. A condition once met stays met: ``a & b`` holds
when both have been.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from accord.agent.ending import Ending
from accord.errors import UsageError
from accord.team.transcript import ChatMessage

Messages = Sequence[ChatMessage]
Stops = Callable[[Messages], bool]


class Termination(ABC):
    """A condition. What is combined with one may also be a function of the messages."""

    @abstractmethod
    def met(self, messages: Messages) -> bool:
        """Whether it holds, or has held, after these messages."""

    @property
    def bounded(self) -> bool:
        """It comes true sooner or later, whatever is said."""
        return False

    @property
    def parts(self) -> tuple[Termination, ...]:
        """The conditions that it is made of."""
        return (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The members whose doing it waits for."""
        return ()

    def __or__(self, other: Termination | Ending | Stops) -> Termination:
        return AnyOf((self, as_termination(other)))

    def __ror__(self, other: Ending | Stops) -> Termination:
        return AnyOf((as_termination(other), self))

    def __and__(self, other: Termination | Ending | Stops) -> Termination:
        return AllOf((self, as_termination(other)))

    def __rand__(self, other: Ending | Stops) -> Termination:
        return AllOf((as_termination(other), self))


@dataclass(frozen=True)
class MaxMessages(Termination):
    """So many messages of members; the task is none."""

    most: int

    def __post_init__(self) -> None:
        _check_positive(self, self.most)

    def met(self, messages: Messages) -> bool:
        return len(messages) >= self.most

    @property
    def bounded(self) -> bool:
        return True


@dataclass(frozen=True)
class TextMention(Termination):
    """One of ``by`` (empty: anybody) ends a message with ``text`` as its last sentence.

    As :class:`accord.Ending`: "Well done. APPROVED", and not "NOT APPROVED". Each of them that is
    an agent without an ending of its own is told in its prompt to end its reply with ``text``.
    """

    text: str
    by: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", self.ending.by)

    @property
    def ending(self) -> Ending:
        """The same as an agent is told it."""
        return Ending(self.text, by=self.by)

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.by)

    def met(self, messages: Messages) -> bool:
        ending = self.ending
        return any(ending.reached(message.speaker, message.content) for message in messages)


@dataclass(frozen=True)
class TokenUsage(Termination):
    """The chat has used so many tokens: ``total``, ``prompt`` or ``completion``, the first met."""

    total: int | None = None
    prompt: int | None = None
    completion: int | None = None

    def __post_init__(self) -> None:
        bounds = [each for each in (self.total, self.prompt, self.completion) if each is not None]
        _check_positive(self, *bounds)
        if not bounds:
            raise UsageError("TokenUsage needs a bound: total, prompt or completion")

    def met(self, messages: Messages) -> bool:
        if not messages:
            return False
        usage = messages[-1].usage
        used = (usage.prompt + usage.completion, usage.prompt, usage.completion)
        bounds = (self.total, self.prompt, self.completion)
        return any(b is not None and u >= b for u, b in zip(used, bounds, strict=True))


@dataclass(frozen=True)
class Timeout(Termination):
    """So many seconds on the run's clock; the message during which they pass is the last."""

    seconds: float

    def __post_init__(self) -> None:
        _check_positive(self, self.seconds)

    def met(self, messages: Messages) -> bool:
        return bool(messages) and messages[-1].after_s >= self.seconds


@dataclass(frozen=True)
class SourceMatch(Termination):
    """One of ``by`` has spoken."""

    by: tuple[str, ...] | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", _names(self.by))

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.by)

    def met(self, messages: Messages) -> bool:
        return any(message.speaker in self.by for message in messages)


@dataclass(frozen=True)
class Handoff(Termination):
    """A member hands over to ``to``, such as a user who is no member of the chat."""

    to: str = "user"

    def met(self, messages: Messages) -> bool:
        wanted = self.to.casefold()
        return any((handoff_in(message.content) or "").casefold() == wanted for message in messages)


@dataclass(frozen=True)
class Condition(Termination):
    """A function of the messages: it must say the same given the same."""

    function: Stops

    def met(self, messages: Messages) -> bool:
        return bool(self.function(messages))

    def __str__(self) -> str:
        return f"Condition({getattr(self.function, '__name__', 'function')})"


@dataclass(frozen=True)
class AnyOf(Termination):
    """One of several."""

    of: tuple[Termination, ...]

    def met(self, messages: Messages) -> bool:
        return any(each.met(messages) for each in self.of)

    @property
    def bounded(self) -> bool:
        return any(each.bounded for each in self.of)

    @property
    def parts(self) -> tuple[Termination, ...]:
        return tuple(part for each in self.of for part in each.parts)


@dataclass(frozen=True)
class AllOf(Termination):
    """All of several, each at any time."""

    of: tuple[Termination, ...]

    def met(self, messages: Messages) -> bool:
        return all(each.met(messages) for each in self.of)

    @property
    def bounded(self) -> bool:
        return all(each.bounded for each in self.of)

    @property
    def parts(self) -> tuple[Termination, ...]:
        return tuple(part for each in self.of for part in each.parts)


def as_termination(condition: object) -> Termination:
    """``condition`` as a :class:`Termination`: an ``Ending`` or a function may stand for one."""
    if isinstance(condition, Termination):
        return condition
    if isinstance(condition, Ending):
        return TextMention(condition.word, by=condition.by)
    if callable(condition) and not isinstance(condition, type):
        return Condition(cast("Stops", condition))
    raise UsageError(
        f"a chat ends on a condition such as MaxMessages(10) or a function, not on {condition!r}"
    )


HANDOFF = "HANDOFF"


def handoff_in(content: Any) -> str | None:
    """Whom a message hands over to: a field ``handoff``, or a last line ``HANDOFF: name``."""
    if isinstance(content, str):
        last = content.rstrip().rpartition("\n")[2].strip(" *_`.")
        word, colon, name = last.partition(":")
        named = colon and word.strip(" *_`").upper() == HANDOFF
        return name.strip(" *_`\"'") or None if named else None
    name = getattr(content, "handoff", None)
    if isinstance(content, dict):
        name = cast("dict[str, Any]", content).get("handoff")
    return name.strip() or None if isinstance(name, str) else None


def _names(by: str | Iterable[str]) -> tuple[str, ...]:
    return (by,) if isinstance(by, str) else tuple(by)


def _check_positive(condition: object, *bounds: float) -> None:
    if not all(bound > 0 for bound in bounds):
        raise UsageError(f"{condition} never lets anybody speak; give it a bound above 0")
