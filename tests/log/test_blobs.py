"""What a run remembers of the texts that it has hashed."""

from __future__ import annotations

import pytest

from accord.log import blobs
from accord.log.blobs import INTERNED_TEXTS, Blobs, digest_of


def test_a_text_in_use_is_hashed_once_however_many_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> str:
        hashed.append(data)
        return digest_of(data)

    monkeypatch.setattr(blobs, "digest_of", counted)
    kept = Blobs({}.__getitem__)
    for number in range(3 * INTERNED_TEXTS):
        kept.put_text("the document")
        kept.digest_text("the question")
        kept.put_text(f"note {number}")
    assert hashed.count(b"the document") == hashed.count(b"the question") == 1
    assert len(kept._interned) == INTERNED_TEXTS
