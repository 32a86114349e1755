"""What checks are made of: a clock by hand, small records, words for what must hold."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from accord.log.blobs import digest_of
from accord.log.codec import encode_envelope
from accord.log.events import Envelope, RunResumed
from accord.log.store.base import LEASE_S, Store

Make = Callable[[Callable[[], float]], Store]
Check = Callable[[Make], None]
AnyCheck = TypeVar("AnyCheck", bound=Callable[..., None])

ELSEWHERE = "elsewhere/1/1"
OTHER = "other-host/2/2"
"""Holders of which nobody here can say whether they live: only time ends their leases."""


def added_to(checks: list[AnyCheck]) -> Callable[[AnyCheck], AnyCheck]:
    """A decorator that adds a check to ``checks``."""

    def add(check: AnyCheck) -> AnyCheck:
        checks.append(check)
        return check

    return add


class Now:
    """Seconds since 1970, moved by hand."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds

    def pass_lease(self) -> None:
        """Let every lease that was not renewed run out."""
        self.seconds += LEASE_S + 1


def record(seq: int, text: str = "") -> bytes:
    """A record that any store may hold and read: an envelope."""
    return encode_envelope(Envelope(seq, seq, "", (), RunResumed(version=text)))


def records(count: int, first: int = 0) -> list[bytes]:
    """``count`` records, numbered from ``first``."""
    return [record(seq) for seq in range(first, first + count)]


def blobs(*bodies: bytes) -> dict[str, bytes]:
    """Blobs under their digests."""
    return {digest_of(body): body for body in bodies}


@contextmanager
def refused(kind: type[Exception], *words: str) -> Generator[None]:
    """The block must raise ``kind``, and its message must hold each of ``words``."""
    try:
        yield
    except kind as error:
        same(f"unsaid in {error!r}", [word for word in words if word not in str(error)], [])
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def same(what: str, got: object, wanted: object) -> None:
    """``got`` must equal ``wanted``."""
    assert got == wanted, f"{what}: got {got!r}, wanted {wanted!r}"


def new_run(
    store: Store, run: str | None = None, *, count: int = 0, bodies: Sequence[bytes] = ()
) -> str:
    """A run with ``count`` records and blobs of ``bodies``, held by nobody."""
    name = store.create(run, "flow")
    lease = store.acquire(name, ELSEWHERE)
    store.append(lease, 0, records(count), blobs(*bodies))
    store.release(lease)
    return name
