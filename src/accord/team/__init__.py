"""Teams: a group chat whose members take turns, and a crew that divides tasks among its members.

:mod:`accord.team.chat` and :mod:`accord.team.crew` explain, and say when to choose which.
"""

from accord.team.chat import ChatResult, GroupChat
from accord.team.crew import Crew, CrewResult, TaskOutput, member
from accord.team.hierarchy import Delegation, ManagerOptions
from accord.team.manager import Manager
from accord.team.speakers import Bids, RoundRobin, Rule, Speakers, Swarm
from accord.team.task import Task
from accord.team.termination import (
    Condition,
    Handoff,
    MaxMessages,
    SourceMatch,
    Termination,
    TextMention,
    Timeout,
    TokenUsage,
)
from accord.team.transcript import ChatMessage

__all__ = [
    "Bids",
    "ChatMessage",
    "ChatResult",
    "Condition",
    "Crew",
    "CrewResult",
    "Delegation",
    "GroupChat",
    "Handoff",
    "Manager",
    "ManagerOptions",
    "MaxMessages",
    "RoundRobin",
    "Rule",
    "SourceMatch",
    "Speakers",
    "Swarm",
    "Task",
    "TaskOutput",
    "Termination",
    "TextMention",
    "Timeout",
    "TokenUsage",
    "member",
]
