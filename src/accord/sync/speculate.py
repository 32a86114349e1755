"""Speculation: what follows from a call begins on a guess of what the call will give.

Choose it where a slow call mostly gives what can be foretold (a router, a classifier, a lookup) and
what follows has no effects up to then. A right guess saves the time that was worked ahead; a wrong
one costs what its work had cost up to then, which is bounded and accounted for.

What runs ahead is held at whatever others can see (effects, messages, questions to people), until
the guess has proved right; a write to the board, which cannot be held, stops it. If the guess
proves wrong, it is cancelled, and what follows is run on what the call really gave. What runs ahead
must not hold a lock that the call needs.

A site (the name of the call) at which guesses do not pay rests, and is scored all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar

from accord.errors import UsageError
from accord.flow.scope import Scope
from accord.log.events import Value
from accord.observe.earlier import Outputs
from accord.observe.guesses import STEP
from accord.observe.places import above
from accord.sync.speculation import NO_GUESS, WASTE_TOKENS, Speculation

T = TypeVar("T")
R = TypeVar("R")


async def speculate(
    function: Callable[..., Awaitable[T]],
    /,
    *inputs: Any,
    then: Callable[[T], Awaitable[R]],
    guess: Callable[..., Any] | None = None,
    accept: Callable[[Any, T], Any] | None = None,
    waste_tokens: int = WASTE_TOKENS,
) -> R:
    """``await then(await function(*inputs))``, begun early on a guess of what ``function`` gives.

    ``function`` is an agent without effects or a pure step. ``guess(*inputs)`` foretells its
    result: a rule, a step, a cheaper agent. Without one, a result of before is taken: of the same
    inputs, else at this place in the last run of the flow. The guess is right if it equals the
    result, or where ``accept(guess, result)`` says so. ``waste_tokens`` bounds what wrong guesses
    here may use in a run. Where there is nothing to guess, a guess is
    :data:`accord.sync.speculation.NO_GUESS`. On a resume it is asked for again, and the one on
    record is followed.

    Raises what ``function`` raises, or ``then`` on what it gave; ``UsageError`` for what cannot be
    foretold or followed.
    """
    name = _checked(function, then, guess, accept, waste_tokens)

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
        waste_tokens=waste_tokens,
        is_free=not hasattr(guess, "name"),
    )
    return (await ahead.run())[1]


def _checked(function: Any, then: Any, guess: Any, accept: Any, waste_tokens: Any) -> str:
    """The name of ``function``, which can be foretold."""
    name, has_effects = getattr(function, "name", ""), getattr(function, "has_effects", None)
    if not name or has_effects is None:
        raise UsageError(f"speculate takes an agent or a step, not {function!r}; put @step on it")
    if has_effects:
        why = (
            "has tools with effects, or writes its answer: let what follows do that"
            if hasattr(function, "tools")
            else "is a step with effects: mark it pure=True if it has none"
        )
        raise UsageError(f"{name!r} {why}; else what follows would begin before them")
    if not callable(then):
        raise UsageError(f"speculate: then is an async function of the result, not {then!r}")
    for what, given in (("guess", guess), ("accept", accept)):
        if given is not None and not callable(given):
            raise UsageError(f"speculate: {what} is a function or None, not {given!r}")
    if type(waste_tokens) is not int or waste_tokens < 0:
        raise UsageError(f"speculate: waste_tokens is a whole number, not {waste_tokens!r}")
    return str(name)


def of_before(scope: Scope, name: str) -> Any:
    """What the call of ``name`` gave before that is now at work beside ``scope``, if anything.

    Of the same input, here or in the last run of the flow; else at the same place in that.
    """
    execution = scope.execution
    earlier, now = execution.earlier(), execution.log.fold(Outputs)
    place = f"{above(scope.path)}/{STEP}/0"
    key = name, now.keys.get(place, "")
    logs = [(execution.log, now)]
    if earlier is not None:
        logs.append((earlier, earlier.fold(Outputs)))
    finds: list[Callable[[Outputs], Value | None]] = [
        lambda outputs: outputs.by_key.get(key),
        lambda outputs: outputs.by_place.get((place, name)),
    ]
    for find in finds:
        for log, outputs in logs:
            if (given := find(outputs)) is not None:
                return log.values.decode(given)
    return NO_GUESS
