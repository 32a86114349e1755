"""From measured points to a profile: non-negative, least relative errors.

The cost model (:mod:`accord.engine.sim.profile`) is linear in its seven times but for one ``max``,
of which each step is on one side: that of the weights up to some number of tokens, that of
arithmetic beyond. So each number is tried. Weights make absolute values of the squares, so that a
point that a busy machine spoiled pulls no more than any other (iteratively reweighted least
squares). What takes long counts more, for it is what work takes.

Seven unknowns are few enough to try each set of those that are not zero: exact, and no library.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from accord.engine.sim.measure import Reading, Writing
from accord.engine.sim.profile import Batch, Fit, Profile
from accord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from accord.engine.sim.measure import Measured

Point = Reading | Writing

TIMES = (
    "request_s",
    "overhead_s",
    "weights_s",
    "token_s",
    "sequence_s",
    "kv_s",
    "attention_s",
)
"""What is fitted, in the order of the features."""

_SIDES = 3
"""How many of the best sides are gone into."""
_ROUNDS = 12
_SMALLEST_ERROR = 0.01
"""Below this an error counts no less: half a percent is as good as none."""
_FEWEST_POINTS = 4
_DEFAULT_WINDOW = 8192
_DOOR_S = 0.003


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a profile holds that no timing shows. None: as measured, or a guess that is said."""

    name: str
    source: str
    machine: str
    window: int | None = None
    kv_tokens: int | None = None
    batch_tokens: int = 2048
    aside_tokens: int | None = None
    """None: as much as the KV cache holds, which is a guess."""


def fit(measured: Measured, known: Known) -> Profile:
    """The profile that is least off, with its error on the points that were held out.

    Raises UsageError if there are too few points.
    """
    points: list[Point] = [*measured.readings, *measured.writings]
    fitted = [each for each in points if not each.held_out]
    held_out = [each for each in points if each.held_out]
    if len(measured.readings) < _FEWEST_POINTS or not measured.writings:
        raise UsageError(
            f"{measured.engine} gave {len(measured.readings)} timings of prompts and "
            f"{len(measured.writings)} of replies, which is too few to fit a profile to; its "
            "replies may be too short: name a model that writes on"
        )
    profile = _rounded(_fitted(_bare(measured, known), fitted))
    found = Fit(
        url=measured.engine,
        machine=known.machine,
        points=len(fitted),
        error=error_of(profile, fitted),
        held_out=len(held_out),
        held_out_error=error_of(profile, held_out or fitted),
        most_sequences=max(each.sequences for each in measured.writings),
        longest_prompt=max(each.tokens + each.before for each in measured.readings),
    )
    return msgspec.structs.replace(profile, fit=found)


def error_of(profile: Profile, points: Sequence[Point]) -> float:
    """The median relative error of ``profile`` on ``points``."""
    return median(abs(predicted(profile, each) / each.seconds - 1) for each in points)


def predicted(profile: Profile, point: Point) -> float:
    """What ``profile`` says that ``point`` takes, in seconds."""
    if isinstance(point, Writing):
        return profile.step_s(Batch(sequences=point.sequences, resident=point.context))
    return profile.request_s + sum(
        profile.step_s(Batch(prefill=tokens, before=before))
        for tokens, before in _chunks(point, profile.batch_tokens)
    )


def _bare(measured: Measured, known: Known) -> Profile:
    """All but the times."""
    window = known.window or measured.window or _DEFAULT_WINDOW
    kv_tokens = known.kv_tokens or measured.kv_tokens or window * measured.concurrency
    bytes_a_token, template_tokens = _text(measured.prompts)
    slots = measured.cache == "slots"
    aside_tokens = kv_tokens if known.aside_tokens is None else known.aside_tokens
    return Profile(
        name=known.name,
        source=known.source,
        token_s=1.0,
        window=window,
        kv_tokens=kv_tokens,
        block_tokens=min(measured.block_tokens or 16, kv_tokens),
        concurrency=measured.concurrency,
        batch_tokens=known.batch_tokens,
        cache=measured.cache,
        aside_tokens=aside_tokens if slots else 0,
        bytes_a_token=bytes_a_token,
        template_tokens=template_tokens,
        # llama.cpp takes in at once all that has come; vLLM's server hands one on after another,
        # and the first is at work before the second is there. How long that takes shows nowhere.
        door_s=0.0 if slots else _DOOR_S,
    )


def _text(prompts: Sequence[tuple[int, int]]) -> tuple[float, int]:
    """Bytes a token, and the tokens that a prompt has besides: a line through (bytes, tokens)."""
    count = len(prompts)
    size = sum(each for each, _ in prompts) / count
    tokens = sum(each for _, each in prompts) / count
    spread = sum((each - size) ** 2 for each, _ in prompts)
    rate = sum((each - size) * (n - tokens) for each, n in prompts) / spread if spread else 0.0
    template = max(0, round(tokens - size * rate))
    if rate <= 0 or not template:
        rate, template = tokens / size, 0
    return round(max(0.25, min(1 / rate, 64)), 3), template


def _fitted(bare: Profile, points: Sequence[Point]) -> Profile:
    """``bare`` with the times that are least off."""
    sides = sorted({0, *(work for each in points for work in _work(bare, each))})
    begun = [
        _solution(bare, points, side, [1 / each.seconds**2 for each in points]) for side in sides
    ]
    begun.sort(key=lambda found: _absolute(found[0], points))
    best = begun[0][0]
    for profile, side in begun[:_SIDES]:
        found = profile
        for _ in range(_ROUNDS):
            weights = [_weight(found, each) for each in points]
            found, _ = _solution(bare, points, side, weights)
            best = min(best, found, key=lambda each: _absolute(each, points))
    return best


def _rounded(profile: Profile) -> Profile:
    """Four digits, which is more than is known."""
    times = {name: float(f"{getattr(profile, name):.4g}") for name in TIMES}
    return msgspec.structs.replace(profile, **times)


def _solution(
    bare: Profile, points: Sequence[Point], side: int, weights: Sequence[float]
) -> tuple[Profile, int]:
    """Times by least squares, if steps of more tokens than ``side`` wait for arithmetic.

    Reading the weights then takes as long as the arithmetic of ``side`` tokens, or longer: that
    excess is what is solved for.
    """
    rows = [_features(bare, each, side) for each in points]
    times = _solved(rows, [each.seconds for each in points], weights)
    named = dict(zip(TIMES, times, strict=True))
    named["token_s"] = max(named["token_s"], 1e-9)
    named["weights_s"] += named["token_s"] * side
    return msgspec.structs.replace(bare, **named), side


def _absolute(profile: Profile, points: Sequence[Point]) -> float:
    """Relative errors; one of a point that takes four times as long counts twice."""
    return sum(
        abs(predicted(profile, each) / each.seconds - 1) * each.seconds**0.5 for each in points
    )


def _weight(profile: Profile, point: Point) -> float:
    error = abs(predicted(profile, point) / point.seconds - 1)
    return point.seconds**0.5 / (point.seconds**2 * max(error, _SMALLEST_ERROR))


def _work(bare: Profile, point: Point) -> list[int]:
    """The tokens of each of its steps."""
    if isinstance(point, Writing):
        return [point.sequences]
    return [tokens for tokens, _ in _chunks(point, bare.batch_tokens)]


def _features(bare: Profile, point: Point, side: int) -> list[float]:
    """What each of the times is multiplied with."""
    if isinstance(point, Writing):
        row = [0.0, *_step(0, 0, point.sequences, side)]
        row[5] = point.context
        return row
    steps = [_step(*chunk, 0, side) for chunk in _chunks(point, bare.batch_tokens)]
    return [1.0, *(sum(column) for column in zip(*steps, strict=True))]


def _step(tokens: int, before: int, sequences: int, side: int) -> list[float]:
    """Without the first, the request's."""
    work = tokens + sequences
    arithmetic = work > side
    return [
        1.0,
        0.0 if arithmetic else 1.0,
        float(work if arithmetic else side),
        float(sequences),
        0.0,
        tokens * (before + tokens / 2),
    ]


def _chunks(point: Reading, most: int) -> Iterator[tuple[int, int]]:
    """The steps that read a prompt, as (tokens, tokens before them)."""
    for done in range(0, point.tokens, most):
        yield min(most, point.tokens - done), point.before + done


def _solved(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The x of at least 0 with the least weighted squares of ``rows`` x - ``values``."""
    width = len(rows[0])
    # Columns of like size: times from 1e-8 to 1 would lose each other's digits.
    scales = [
        sum(w * row[i] ** 2 for row, w in zip(rows, weights, strict=True)) ** 0.5 or 1.0
        for i in range(width)
    ]
    squares = [
        [
            sum(w * row[i] * row[j] for row, w in zip(rows, weights, strict=True))
            / (scales[i] * scales[j])
            for j in range(width)
        ]
        for i in range(width)
    ]
    products = [
        sum(w * row[i] * v for row, v, w in zip(rows, values, weights, strict=True)) / scales[i]
        for i in range(width)
    ]
    best, gained = [0.0] * width, 0.0
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            x = _solved_square([[squares[i][j] for j in chosen] + [products[i]] for i in chosen])
            if x is None or min(x) < 0:
                continue
            # The squares that a solution takes off: x·b, as the gradient is zero there.
            gain = sum(products[i] * each for i, each in zip(chosen, x, strict=True))
            if gain > gained * (1 + 1e-12):
                gained = gain
                best = [0.0] * width
                for i, each in zip(chosen, x, strict=True):
                    best[i] = each / scales[i]
    return best


def _solved_square(matrix: list[list[float]]) -> list[float] | None:
    """Gauss's elimination; the last column is the right side. None if it has no one solution."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < 1e-10:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(size):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
