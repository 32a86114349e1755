"""What every test stands on: repeatable properties, and no real engine unless a test asks."""

import pytest
from hypothesis import settings

# Deadlines measure the machine, not the code; a failure prints what repeats it.
settings.register_profile("accord", deadline=None, print_blob=True)
settings.load_profile("accord")


@pytest.fixture(autouse=True)
def no_engine_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own server and key are never used by accident."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
