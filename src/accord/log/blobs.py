"""Content-addressed pieces: each stored once, under a digest of its bytes.

A run's :class:`Blobs` remembers what it has already handed to the store and which text it
has already hashed, so passing the same megabyte along a thousand steps costs a look-up each.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from hashlib import blake2b

from accord.errors import LogCorruptError

INTERNED_TEXTS = 256


def digest_of(data: bytes) -> str:
    """144 bits of BLAKE2b, as 24 URL-safe characters."""
    plain = b2a_base64(blake2b(data, digest_size=18).digest(), newline=False)
    return plain.translate(_URL_SAFE).decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Blobs:
    """The blobs of one run: those pending, and a way to fetch the rest.

    ``fetch`` raises :class:`accord.errors.LogCorruptError` for a digest that is not there.
    """

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch
        self._known: set[str] = set()
        self._interned: dict[str, str] = {}
        self.pending: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        """Store ``data`` with the next write, unless this run has stored it already."""
        digest = digest_of(data)
        if digest not in self._known:
            self._known.add(digest)
            self.pending[digest] = data
        return digest

    def put_text(self, text: str) -> str:
        """As :meth:`put`, and hash a text only once while it stays in use."""
        digest = self._interned.pop(text, None)
        if digest is None or digest not in self._known:
            digest = self.put(text.encode())
        self._intern(text, digest)
        return digest

    def digest_text(self, text: str) -> str:
        """The digest of ``text``, without storing it."""
        digest = self._interned.pop(text, None) or digest_of(text.encode())
        self._intern(text, digest)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes behind ``digest``."""
        pending = self.pending.get(digest)
        if pending is not None:
            return pending
        data = self._fetch(digest)
        if digest_of(data) != digest:
            raise LogCorruptError(f"blob {digest} is not what was written; run `accord doctor`")
        return data

    def _intern(self, text: str, digest: str) -> None:
        """Remember ``text`` as the one used last, in place of the one used longest ago."""
        if len(self._interned) >= INTERNED_TEXTS:
            del self._interned[next(iter(self._interned))]
        self._interned[text] = digest
