"""One call, and what follows from it on a guess: a fork whose join says whether that was right.

Branches: the call itself; what runs ahead on the guess, held and within its stake; what is run on
what the call really gave, if the guess was wrong or of no use; whether the guess is accepted. What
is on record is gone by on a replay: a guess that was followed is followed again.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from accord.clock import NANOSECONDS
from accord.errors import UsageError
from accord.flow.call import preview_of
from accord.flow.fork import Fork
from accord.flow.hold import Hold
from accord.flow.note import note
from accord.flow.scope import Scope, enter, leave
from accord.flow.stake import Stake
from accord.flow.suspend import Suspended
from accord.log.events import Guessed, MailboxClosed, MailboxOpened, MessageTaken, Value, Written
from accord.log.fold import is_within
from accord.observe.guesses import AGAIN, AHEAD, JUDGE, STEP, Guesses
from accord.sync.gather import Group

T = TypeVar("T")
R = TypeVar("R")

WASTE_TOKENS = 20_000
"""The most that wrong guesses at one site may cost in a run, unless it says otherwise."""
SEEN = (Written, MessageTaken, MailboxOpened, MailboxClosed)
"""What others see of a call, beside its result."""
NO_GUESS: Any = object()
"""Nothing is known that could be a guess."""


class Speculation(Generic[T, R]):
    """One call, and what follows from it.

    ``guess`` is given the scope of the branch that runs ahead. ``is_free`` says that guessing costs
    nothing, so that it is also done to be scored.
    """

    def __init__(
        self,
        *,
        site: str,
        step: Callable[[], Awaitable[T]],
        then: Callable[[Any], Awaitable[R]],
        guess: Callable[[Scope], Awaitable[Any]],
        by: str = "",
        accept: Callable[[Any, T], object] | None = None,
        waste_tokens: int = WASTE_TOKENS,
        is_free: bool = True,
    ) -> None:
        self._site = site
        self._step = step
        self._then = then
        self._guess = guess
        self._by = by
        self._accept = accept
        self._waste_tokens = waste_tokens
        self._is_free = is_free
        self._fork = Fork("speculate", 4)
        self._scope = self._fork.scope(AHEAD)
        self._execution = self._scope.execution
        self._recorded = self._execution.log.fold(Guesses).by_branch.get(self._scope.path)
        """The guess on record, if there is one, and what was done on it."""
        self._value: Value | None = None if self._recorded is None else self._recorded.value
        """The guess, as the log holds it: whoever gets it gets a copy."""
        self._first = max(self._scope.take_causes(), default=0)
        """The event that all of this follows from."""
        self._began_ns = self._ended_ns = 0
        """When the branch ahead began on the guess, and was of no more use."""
        self._failure: BaseException | None = None
        self._result: Any = None

    async def run(self) -> tuple[T, R]:
        """What the call gave, and what followed from it."""
        with self._fork:
            follows = self._follows()
            if follows is None:
                given = await self._given()
                return given, await self._again(given)
            hold = self._hold_ahead() if follows else None
            try:
                given, right = await self._at_once(hold)
                self._score(right=right, follows=follows)
                if follows and right:
                    return given, self._outcome()
                return given, await self._again(given)
            finally:
                if isinstance(self._scope.budget, Stake):
                    self._scope.budget.close()

    def _follows(self) -> bool | None:
        """Whether a guess is followed, or False if it is only scored; None if none is made."""
        replay = self._execution.replay
        is_over = self._fork.was_dropped(AHEAD) or replay.is_recorded_below(self._fork.place(AGAIN))
        if self._recorded is not None and not is_over:
            return True if self._recorded.followed else None  # nothing must be done twice
        if is_over or not self._execution.speculates:
            return None
        site = self._execution.site(self._site)
        if site.pays and self._waste_tokens > 0:
            return True
        if self._is_free:
            return False
        site.rest()
        return None

    async def _at_once(self, hold: Hold | None) -> tuple[T, bool]:
        """What the call gave, and whether the guess was right and of use; its branch has ended."""
        with self._failing(AHEAD):
            failure: BaseException | None = None
            given: Any = None
            right = False
            context = self._fork.context(AHEAD)
            async with Group() as group:
                ahead = group.start(self._run_ahead(follows=hold is not None), context)
                try:
                    given = await self._in_branch(STEP, self._step)
                    right = await self._is_right(given)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:  # noqa: BLE001  # raised outside of the group
                    failure = error
                self._ended_ns = self._ended_ns or self._execution.log.now()
                if hold is not None and right and not (hold.is_stopped or self._wrote()):
                    self._commit(hold)
                else:
                    right = right and hold is None
                    ahead.cancel()
                    if hold is not None:
                        hold.drop()
            if failure is not None:
                raise failure
            return given, right

    def _hold_ahead(self) -> Hold:
        """The branch ahead is held, goes after others, and uses no more than may be wasted."""
        scope, execution = self._scope, self._execution
        hold = scope.hold = Hold(self._fork.place(STEP), scope.hold)
        scope.budget = Stake(
            self._waste_tokens,
            self._site,
            scope.path,
            execution.stakes.setdefault(self._site, []),
            hold=hold,
            log=execution.log,
            outer=scope.budget,
        )
        return hold

    async def _run_ahead(self, *, follows: bool) -> None:
        self._fork.begin(AHEAD)
        try:
            await self._foretell(follows=follows)
            if self._value is not None and follows:
                self._result = await self._following(self._execution.log.values.decode(self._value))
                self._fork.check_complete(AHEAD)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # raised if the guess proves right
            self._failure = error
        finally:
            self._ended_ns = self._ended_ns or self._execution.log.now()

    async def _foretell(self, *, follows: bool) -> None:
        """Guess, unless it is on record what was guessed; put it there, if it is followed."""
        what = f"the guess of {self._site!r}"
        values = self._execution.log.values
        try:
            guessed = await self._guess(self._scope)
            if self._recorded is None and guessed is not NO_GUESS:
                self._value = values.encode(guessed, what)
        except Exception as error:  # noqa: BLE001  # of the user's own code
            if self._recorded is None:
                warnings.warn(f"{what} failed ({error!r}): nothing is done ahead", stacklevel=2)
        self._began_ns = self._execution.log.now()
        if follows and self._value is not None:
            self._note(self._value, followed=True)

    def _note(self, value: Value, *, followed: bool, right: bool | None = None) -> None:
        noted = Guessed(
            site=self._site,
            value=value,
            preview=preview_of([self._execution.log.values.decode(value)], {}, b"[%b]" % value),
            by=self._by,
            followed=followed,
            right=right,
            record=self._execution.site(self._site).record,
        )
        note(f"the guess of {self._site!r}", lambda _scope, _position: noted, self._scope)

    async def _given(self) -> T:
        with self._failing(AHEAD):
            return await self._in_branch(STEP, self._step)

    @contextmanager
    def _failing(self, dropped: int, *, is_known: bool = False) -> Generator[None]:
        """Where the branches meet if one fails, but for ``dropped``, unless one waits for a person.

        What ended the run or the code around it leaves open whether the guess was right, but if
        that ``is_known``.
        """
        try:
            yield
        except Suspended as error:
            raise self._fork.suspended([error]) from None
        except BaseException as error:
            is_settled = is_known or isinstance(error, Exception)
            self._fork.join("fail_fast", dropped=(dropped,) if is_settled else ())
            raise

    async def _again(self, given: T) -> R:
        """What follows from what was really given."""
        again, step = self._fork.scope(AGAIN), self._fork.scope(STEP)
        again.frontier, again.after = step.take_causes(), step.path
        with self._meeting(AHEAD):
            return await self._in_branch(AGAIN, lambda: self._following(given))

    def _following(self, given: Any) -> Awaitable[R]:
        following = self._then(given)
        if not isawaitable(following):
            raise UsageError(f"speculate: then is an async function, and {self._then!r} is none")
        return following

    def _outcome(self) -> R:
        """What followed from the guess, which was right."""
        with self._meeting(AGAIN):
            if self._failure is not None:
                self._fork.failed(self._failure)
                raise self._failure
            return cast("R", self._result)

    @contextmanager
    def _meeting(self, dropped: int) -> Generator[None]:
        """Where the branches meet, but for one, now that it is known if the guess was right."""
        with self._failing(dropped, is_known=True):
            yield
        self._fork.join("fail_fast", dropped=(dropped,))

    def _wrote(self) -> bool:
        """The call did what others see, and what ran ahead may have looked before."""
        log, step = self._execution.log, self._fork.place(STEP)
        done = log.envelopes[self._first :]
        return any(isinstance(e.event, SEEN) and is_within(e.scope, step) for e in done)

    async def _is_right(self, given: T) -> bool:
        if self._value is None:
            return False
        if self._fork.was_dropped(AGAIN):
            return True  # as it was found to be
        values = self._execution.log.values
        if self._accept is None:
            return bytes(self._value) == values.digest(given, "a result")
        accept, guessed = self._accept, values.decode(self._value)

        async def judge() -> bool:
            agreed = accept(guessed, given)
            return bool(await agreed if isawaitable(agreed) else agreed)

        return await self._in_branch(JUDGE, judge)

    def _commit(self, hold: Hold) -> None:
        """The guess was right: what ran ahead is as good as any other code, from now on."""
        assert isinstance(self._scope.budget, Stake)
        self._scope.budget.close()
        self._scope.after = self._fork.place(STEP)
        hold.release(self._fork.scope(STEP).take_causes())
        self._execution.schedulers.lift()

    def _score(self, *, right: bool, follows: bool) -> None:
        if self._value is None or self._fork.has_met:
            return
        if not follows:
            self._note(self._value, followed=False, right=right)
        worked_s = max(0, self._ended_ns - self._began_ns) / NANOSECONDS if follows else None
        self._execution.site(self._site).score(right=right, worked_s=worked_s)

    async def _in_branch(self, index: int, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do ``work`` here, as a branch."""
        with _inside(self._fork, index):
            try:
                result = await work()
                self._fork.check_complete(index)
            except BaseException as error:
                self._fork.failed(error)
                raise
            return result


@contextmanager
def _inside(fork: Fork, index: int) -> Generator[None]:
    fork.begin(index)
    token = enter(fork.scope(index))
    try:
        yield
    finally:
        leave(token)
