"""Members: a team's copies of agents, which are the same but for what the team adds."""

from __future__ import annotations

from accord import Agent
from accord.agent.options import AgentOptions
from accord.team.member import SAME, SPELLED_OUT, derived


def test_every_option_of_an_agent_is_carried_over() -> None:
    """A new option fails here until it is copied."""
    assert not set(SAME) & set(SPELLED_OUT)
    assert {*SAME, *SPELLED_OUT} == set(AgentOptions.__annotations__)


def test_a_copy_is_like_its_agent() -> None:
    spelled_out: AgentOptions = {
        "shares": "b",
        "reads": {"a/*": "full", "@ann": "last"},
        "sees": "summary",
        "writes": {"c": "append"},
        "expected_calls": 3,
        "summary_tokens": 50,
        "memory_items": 2,
    }
    assert set(spelled_out) == set(SPELLED_OUT)
    options: AgentOptions = {"model": "m", "stop": ["x"], **spelled_out}
    agent = Agent("ann", "Be brief.", **options)
    assert derived(agent) == agent
    assert derived(agent, model="n").model == "n"
