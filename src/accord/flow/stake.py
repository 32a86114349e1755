"""What may be used up on guesses that are still open."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext

from accord.flow.hold import Hold
from accord.log.log import Log
from accord.observe.guesses import Guesses
from accord.schedule.budget import Budget


class Stake(Budget):
    """The tokens that the branch at ``path`` may use on a guess at ``site``.

    ``others`` are the stakes of all open guesses at that site in the run, itself included: together
    with what wrong ones have used, they stay within ``tokens``. Where there is no more, the branch
    ends as :class:`accord.flow.hold.Premature`, and no run fails.
    """

    def __init__(
        self,
        tokens: int,
        site: str,
        path: str,
        others: list[Stake],
        *,
        hold: Hold,
        log: Log,
        outer: Budget | None,
    ) -> None:
        super().__init__(tokens, f"guesses of {site!r}", outer)
        self._site = site
        self._path = path
        self._others = others
        self._hold = hold
        self._log = log
        self.is_open = True
        others.append(self)

    def close(self) -> None:
        """It is known whether the guess was right: nothing is at stake any more."""
        if self.is_open:
            self.is_open = False
            self._others.remove(self)

    @property
    def left(self) -> int:
        wasted = self._log.fold(Guesses).wasted(self._site)
        return self.tokens - wasted - sum(each.at_stake for each in self._others)

    @property
    def at_stake(self) -> int:
        """What has been used on the guess, and what requests under way may use."""
        return self._log.fold(Guesses).tokens(self._path) + self._reserved

    @contextmanager
    def reserved(self, tokens: int, who: str) -> Generator[None]:
        if self.is_open and tokens > self.left:
            raise self._hold.stop()
        outer = nullcontext() if self._outer is None else self._outer.reserved(tokens, who)
        with super().reserved(tokens, who) if self.is_open else outer:
            yield
