"""What every store of logs and every engine must do, as checks that any implementation can run.

In pytest, one test a promise::

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=check_name)
    def test_my_store(check, tmp_path):
        check(lambda now_s: MyStore(tmp_path, now_s=now_s))


    @pytest.mark.parametrize("check", ENGINE_CHECKS, ids=check_name)
    def test_my_engine(check):
        check(MyEngine)

Or all at once: ``check_store(make)``, ``check_engine(make)``. For a store, ``make`` is given a
clock (seconds since 1970) and returns a new, empty one; for an engine it takes nothing and returns
one that nobody has started. A broken promise raises ``AssertionError``, which says which.
"""

from __future__ import annotations

from collections.abc import Callable

from accord.testing.conformance.engines import ENGINE_CHECKS, MakeEngine
from accord.testing.conformance.holding import HOLDING
from accord.testing.conformance.kit import Check, Make
from accord.testing.conformance.leasing import LEASING

__all__ = ["ENGINE_CHECKS", "STORE_CHECKS", "check_engine", "check_name", "check_store"]

STORE_CHECKS: list[Check] = [*HOLDING, *LEASING]
"""One check a promise, in the order in which they build on each other."""


def check_store(make: Make) -> None:
    """Run every check, each on a new store."""
    for check in STORE_CHECKS:
        check(make)


def check_engine(make: MakeEngine) -> None:
    """Run every check, each on a new engine."""
    for check in ENGINE_CHECKS:
        check(make)


def check_name(check: Callable[..., None]) -> str:
    """The promise that ``check`` checks."""
    return check.__name__
