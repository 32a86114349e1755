"""Who asks again: the agent, and nobody below it. The server counts."""

from __future__ import annotations

import pytest

from accord import Agent, Retry, run
from accord.engine.openai import OpenAIEngine
from accord.errors import (
    AuthenticationError,
    ContextTooLongError,
    EngineError,
    ModelNotFoundError,
    RateLimitedError,
)
from accord.testing.stub import Script, StubServer, error

ATTEMPTS = 4


@pytest.mark.parametrize(
    ("answer", "kind", "hits"),
    [
        (error(429, "slow down", headers={"retry-after": "0"}), RateLimitedError, ATTEMPTS),
        (error(401, "who are you"), AuthenticationError, 1),
        (error(404, "no such model"), ModelNotFoundError, 1),
        (error(400, "too long", code="context_length_exceeded"), ContextTooLongError, 1),
    ],
    ids=["429", "401", "404", "context length"],
)
def test_a_server_is_asked_as_often_as_the_agent_was_told(
    answer: Script, kind: type[EngineError], hits: int
) -> None:
    """RTL-3, RTL-5."""
    agent = Agent("a", retry=Retry(attempts=ATTEMPTS, base_s=0.0))
    with StubServer() as stub:
        stub.always(answer)
        with pytest.raises(kind):
            run(agent, "go", engine=OpenAIEngine(stub.url), log="memory")
        assert len(stub.requests) == hits
