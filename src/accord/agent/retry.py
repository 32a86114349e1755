"""How often and how patiently to try again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from accord.errors import TransientEngineError, UsageError


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and how patiently to try again. Pauses are in seconds.

    ``attempts`` bounds a call over all processes that make it; a resumed run that had failed
    starts anew.

    Before attempt n + 1 the pause is ``base_s`` * 2**(n - 1), at most ``cap_s``, of which up to
    half is random. An engine's own ``retry-after`` wins, and gives up if above ``patience_s``.

    An attempt that has not begun to answer ``first_token_s`` after it was sent is given up, and the
    next goes out at once. Give it where requests hang now and then and the engine has no long queue
    of its own; what it reads of a prompt it keeps.
    """

    attempts: int = 5
    base_s: float = 0.5
    cap_s: float = 30.0
    patience_s: float = 300.0
    first_token_s: float | None = None

    def __post_init__(self) -> None:
        times = (self.base_s, self.cap_s, self.patience_s)
        if not (self.attempts >= 1 and all(each >= 0 for each in times)):
            msg = f"Retry needs at least one attempt and no negative time, not {self}"
            raise UsageError(msg)
        if self.first_token_s is not None and not self.first_token_s > 0:
            msg = f"Retry needs some time for a first token, not {self.first_token_s!r}"
            raise UsageError(msg)

    def pause_s(self, error: TransientEngineError, attempt: int, random: Random) -> float | None:
        """How long to wait after ``attempt`` (1 is the first) failed; None to give up."""
        if attempt >= self.attempts:
            return None
        asked_s = error.retry_after_s
        if asked_s is not None:
            return asked_s if asked_s <= self.patience_s else None
        return self.backoff_s(attempt, random)

    def backoff_s(self, attempt: int, random: Random) -> float | None:
        """The pause after ``attempt`` where nobody asked for another; None to give up."""
        if attempt >= self.attempts:
            return None
        pause_s = min(self.cap_s, self.base_s * 2 ** (attempt - 1))
        return pause_s * (0.5 + random.random() / 2)
