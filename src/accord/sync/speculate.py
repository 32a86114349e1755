"""Speculation: what follows from a call begins on a guess of what the call will give.

Choose it where a slow call mostly gives what can be foretold (a router, a classifier, a lookup) and
what follows has no effects up to then. A right guess saves the time that was worked ahead; a wrong
one costs what its work had cost up to then, which is bounded and accounted for.

What runs ahead is held at whatever others can see (effects, messages, questions to people), until
the guess has proved right; a write to the board, which cannot be held, stops it. If the guess
proves wrong, it is cancelled, and what follows is run on what the call really gave.

A site (the name of the call) at which guesses do not pay rests, and is scored all the same.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from accord.clock import NANOSECONDS
from accord.errors import UsageError
from accord.flow.fork import Fork
from accord.flow.hold import Hold, Premature, is_premature
from accord.flow.note import note
from accord.flow.scope import Scope, enter, leave
from accord.flow.suspend import Suspended
from accord.log.events import Guessed
from accord.observe.earlier import Given, Results
from accord.observe.guesses import AGAIN, AHEAD, STEP, Guesses
from accord.observe.places import above
from accord.reuse.site import Site
from accord.schedule.budget import Budget
from accord.sync.gather import Group

T = TypeVar("T")
R = TypeVar("R")

WASTE_TOKENS = 20_000
"""The most that wrong guesses at one site may cost in a run, unless it says otherwise."""
NO_GUESS: Any = object()
"""Nothing is known that could be a guess."""
UNBOUNDED = sys.maxsize // 2
AFTER_OTHERS = -1
"""The priority of what runs ahead."""


async def speculate(
    function: Callable[..., Awaitable[T]],
    /,
    *inputs: Any,
    then: Callable[[T], Awaitable[R]],
    guess: Callable[..., Any] | None = None,
    accept: Callable[[Any, T], object] | None = None,
    waste: int = WASTE_TOKENS,
) -> R:
    """``await then(await function(*inputs))``, begun early on a guess of what ``function`` gives.

    ``function`` is an agent or a step. ``guess(*inputs)`` foretells its result: a rule, a step, a
    cheaper agent. Without one, a result of before is taken: of the same inputs, else at this place
    in the last run of the flow. The guess is right if it equals the result, or where
    ``accept(guess, result)`` says so. ``waste`` bounds the tokens that wrong guesses here may cost
    in a run.

    Raises what ``function`` raises, or ``then`` on what it gave.
    """
    name = str(getattr(function, "name", ""))
    if not name or getattr(function, "has_effects", None) is None:
        raise UsageError(f"speculate takes an agent or a step, not {function!r}; put @step on it")
    if type(waste) is not int or waste < 0:
        raise UsageError(f"speculate: waste is a whole number of tokens, not {waste!r}")

    async def guessed(scope: Scope) -> Any:
        if guess is None:
            return of_before(scope, name)
        found = guess(*inputs)
        return await found if isawaitable(found) else found

    ahead = Speculation[T, R](
        site=name,
        step=lambda: function(*inputs),
        then=then,
        guess=guessed,
        by=str(getattr(guess, "name", None) or getattr(guess, "__name__", "")) if guess else "",
        accept=accept,
        waste=waste,
        is_free=not hasattr(guess, "name"),
    )
    return (await ahead.run())[1]


def of_before(scope: Scope, name: str) -> Any:
    """What the call of ``name`` gave before that is now at work beside ``scope``, if anything.

    Of the same input, here or in the last run of the flow; else at the same place in that.
    """
    execution = scope.execution
    earlier, now = execution.earlier(), execution.log.fold(Results)
    place = f"{above(scope.path)}/{STEP}/0"
    key = name, now.keys.get(place, "")
    logs = [(execution.log, now)]
    if earlier is not None:
        logs.append((earlier, earlier.fold(Results)))
    finds: list[Callable[[Results], Given | None]] = [
        lambda results: results.by_key.get(key),
        lambda results: results.by_place.get((place, name)),
    ]
    for find in finds:
        for log, results in logs:
            if (given := find(results)) is not None:
                return log.values.decode(given.value)
    return NO_GUESS


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
        waste: int = WASTE_TOKENS,
        is_free: bool = True,
    ) -> None:
        self._site = site
        self._step = step
        self._then = then
        self._guess = guess
        self._by = by
        self._accept = accept
        self._is_free = is_free
        self._fork = Fork("speculate", 3)
        self._scope = self._fork.scope(AHEAD)
        self._execution = self._scope.execution
        left = waste - self._execution.log.fold(Guesses).wasted(site)
        self._stake = _Stake(left, f"guesses of {site!r}", self._scope.budget)
        self._recorded = self._recorded_guess()
        self._guessed: Any = self._recorded
        self._began_ns = self._ended_ns = 0
        """When the branch ahead began on the guess, and ended."""
        self._failure: BaseException | None = None
        self._result: Any = None

    async def run(self) -> tuple[T, R]:
        """What the call gave, and what followed from it."""
        with self._fork:
            execution = self._execution
            if self._fork.was_dropped(AHEAD) or not (execution.speculates or self._is_recorded):
                given = await self._given()
                return given, await self._again(given)
            score = execution.site(self._site)
            follows = self._is_recorded or (score.pays and self._stake.left > 0)
            if not follows and not self._is_free:
                given = await self._given()
                return given, await self._again(given)
            given, right = await self._at_once(follows=follows)
            if self._failure is not None and is_premature(self._failure):
                right = False  # it was, and was of no use
            self._score(score, right=right, follows=follows)
            if follows and right:
                return given, self._outcome()
            return given, await self._again(given)

    async def _at_once(self, *, follows: bool) -> tuple[T, bool]:
        """What the call gave, and whether the guess was right; its branch has ended."""
        if follows:
            self._scope.hold = Hold(self._scope.hold)
            self._scope.budget = self._stake
            self._scope.priority = AFTER_OTHERS
        given: Any = None
        right, failure = False, None
        async with Group() as group:
            ahead = group.start(self._run_ahead(follows=follows), self._fork.context(AHEAD))
            try:
                given = await self._given()
                right = self._is_right(given)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001  # raised outside of the group
                failure = error
            if follows and right:
                self._commit()
            else:
                ahead.cancel()
        if failure is not None:
            raise failure
        return given, right

    async def _run_ahead(self, *, follows: bool) -> None:
        self._fork.begin(AHEAD)
        log = self._execution.log
        try:
            guessed = await self._guess(self._scope)
            if guessed is NO_GUESS:
                return
            self._guessed = self._noted(guessed) if follows else guessed
            self._began_ns = log.now()
            if follows:
                self._result = await self._then(self._guessed)
                self._fork.check_complete(AHEAD)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # raised if the guess proves right
            self._failure = error
            if self._guessed is NO_GUESS:
                told = f"the guess of {self._site!r} failed ({error!r}): nothing is done ahead"
                warnings.warn(told, stacklevel=2)
        finally:
            self._ended_ns = log.now()

    async def _given(self) -> T:
        with self._meeting(or_goes_on=True):
            return await self._in_branch(STEP, self._step)

    async def _again(self, given: T) -> R:
        """What follows from what was really given."""
        self._fork.scope(AGAIN).frontier = self._fork.scope(STEP).take_causes()
        with self._meeting(AHEAD):
            return await self._in_branch(AGAIN, lambda: self._then(given))

    def _outcome(self) -> R:
        """What followed from the guess, which was right."""
        with self._meeting(AGAIN):
            if self._failure is not None:
                self._fork.failed(self._failure)
                raise self._failure
            return cast("R", self._result)

    @contextmanager
    def _meeting(self, *dropped: int, or_goes_on: bool = False) -> Generator[None]:
        """Where the branches meet, unless one waits for a person, or goes on."""
        try:
            yield
        except Suspended as error:
            raise self._fork.suspended([error]) from None
        except BaseException:
            self._fork.join("fail_fast", dropped=dropped)
            raise
        if not or_goes_on:
            self._fork.join("fail_fast", dropped=dropped)

    @property
    def _is_recorded(self) -> bool:
        """A guess is on record, and what was done on it."""
        return self._recorded is not NO_GUESS

    def _recorded_guess(self) -> Any:
        replay, ahead = self._execution.replay, self._scope.path
        if replay.is_recorded_below(ahead):
            for path, envelope in replay.notes.items():
                if above(path) == ahead and isinstance(envelope.event, Guessed):
                    return self._execution.log.values.decode(envelope.event.value)
        return NO_GUESS

    def _noted(self, guessed: Any) -> Any:
        """The guess, on record: on a replay, the one that was recorded."""
        values, what = self._execution.log.values, f"the guess of {self._site}"
        if self._is_recorded:
            guessed = self._recorded
        noted = Guessed(site=self._site, value=values.encode(guessed, what), by=self._by)
        note(what, lambda _scope, _position: noted, self._scope)
        return guessed

    def _is_right(self, given: T) -> bool:
        if self._guessed is NO_GUESS:
            return False
        if self._fork.was_dropped(AGAIN):
            return True  # as it was found to be
        if self._accept is not None:
            return bool(self._accept(self._guessed, given))
        values = self._execution.log.values
        return values.digest(self._guessed, "a guess") == values.digest(given, "a result")

    def _commit(self) -> None:
        """The guess was right: what ran ahead is as good as any other code, from now on."""
        scope = self._scope
        for seq in self._fork.scope(STEP).take_causes():
            scope.follow(seq)
        self._stake.tokens = UNBOUNDED
        scope.priority = 0
        self._execution.schedulers.lift()
        assert scope.hold is not None
        scope.hold.release()

    def _score(self, score: Site, *, right: bool, follows: bool) -> None:
        if self._guessed is not NO_GUESS and not self._fork.has_met:
            worked_ns = max(0, self._ended_ns - self._began_ns)
            score.score(right=right, worked_s=worked_ns / NANOSECONDS if follows else None)

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


class _Stake(Budget):
    """What may be used on a guess: when there is no more, that ends what ran ahead, and no run."""

    @contextmanager
    def reserved(self, tokens: int, who: str) -> Generator[None]:
        if tokens > self.left:
            raise Premature
        with super().reserved(tokens, who):
            yield
