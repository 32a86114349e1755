"""Who may end a conversation, and on which word: told to those agents, checked in replies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from accord.errors import UsageError

_SENTENCES = re.compile(r"[.!?:\n。！？：]")  # CJK punctuation is meant
_AROUND = " \t\r\n.!*_`\"'”’)]}。！"  # CJK punctuation is meant


@dataclass(frozen=True)
class Ending:
    """The conversation is over when one of ``by`` (empty: anybody) ends a reply with ``word``.

    The word has to be the reply's last sentence: "Well done. APPROVED", and not "NOT APPROVED".

    Give it to every agent of the conversation, and ask :meth:`reached` after each reply::

        ending = Ending("APPROVED", by=("reviewer",))
        for _ in range(8):
            draft = await writer(draft)
            if ending.reached("reviewer", await reviewer(draft)):
                break
    """

    word: str = "DONE"
    by: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        if not self.word.strip() or self.word != self.word.strip(_AROUND):
            raise UsageError(f"an ending is a word without signs around it, not {self.word!r}")
        if isinstance(self.by, str):
            object.__setattr__(self, "by", (self.by,))

    def instruction(self, agent: str) -> str:
        """The line for the instructions of ``agent``; empty if it may not end anything."""
        if not self._may_end(agent):
            return ""
        return (
            f"When nothing is left to do, end your reply with {self.word} alone on the last line."
        )

    def reached(self, agent: str, reply: Any) -> bool:
        """Whether this reply of ``agent`` ends the conversation."""
        if not isinstance(reply, str) or not self._may_end(agent):
            return False
        last = _SENTENCES.split(reply.rstrip(_AROUND))[-1]
        return last.strip(_AROUND) == self.word

    def _may_end(self, agent: str) -> bool:
        return not self.by or agent in self.by
