"""Whether it pays to guess, at each place of a program where one may.

A right guess gains the time that was worked ahead; a wrong one has worked in vain, which counts
:data:`IN_VAIN` as much, for an engine that does that does less for others. Guesses are scored
also while a site rests, so one that has become predictable begins again.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_VAIN = 0.25
"""What a second of work in vain counts of a second gained."""
FORGETS = 0.95
"""What a guess counts when another has been made."""


EVEN = (1.0, 2.0)
DRIFTS = 0.005
"""How much nearer to even odds an occasion brings them at which nobody guesses."""


@dataclass
class Site:
    """The guesses made at one place, the recent ones counting more. Begins with even odds."""

    right: float = EVEN[0]
    seen: float = EVEN[1]
    gained_s: float = 0.0
    lost_s: float = 0.0

    @property
    def record(self) -> tuple[float, ...]:
        """All of it: ``Site(*record)`` goes on from there."""
        return self.right, self.seen, self.gained_s, self.lost_s

    @property
    def odds(self) -> float:
        """How likely the next guess is right."""
        return self.right / self.seen

    @property
    def pays(self) -> bool:
        """Whether the next guess is worth following."""
        gain_s, loss_s = self.gained_s or self.lost_s, self.lost_s or self.gained_s
        if not gain_s:
            return True  # nothing is known yet
        return self.odds * gain_s > (1 - self.odds) * IN_VAIN * loss_s

    def rest(self) -> None:
        """An occasion has passed at which nobody guessed: what is known of it fades."""
        self.right += (EVEN[0] - self.right) * DRIFTS
        self.seen += (EVEN[1] - self.seen) * DRIFTS

    def score(self, *, right: bool, worked_s: float | None) -> None:
        """A guess was ``right`` or wrong; it was followed for ``worked_s``, or not at all."""
        self.right = FORGETS * self.right + right
        self.seen = FORGETS * self.seen + 1
        if worked_s is None:
            return
        if right:
            self.gained_s = _blend(self.gained_s, worked_s)
        else:
            self.lost_s = _blend(self.lost_s, worked_s)


def _blend(before: float, now: float) -> float:
    return now if not before else FORGETS * before + (1 - FORGETS) * now
