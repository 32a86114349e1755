"""What the slots of an engine hold, as llama.cpp has them: one at work shares nothing of it."""

from __future__ import annotations

from accord.engine.prefix import common_bytes


class Slots:
    """The prompts in ``count`` slots: those at work, and those that were left in idle ones."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._busy: list[bytes] = []
        self._idle: list[bytes] = []
        """The one left last is last."""

    def sent(self, prompt: bytes) -> None:
        """It takes the idle slot that holds most of it."""
        self._busy.append(prompt)
        while self._idle and len(self._busy) + len(self._idle) > self._count:
            self._idle.remove(max(self._idle, key=lambda each: common_bytes(each, prompt)))

    def ended(self, prompt: bytes) -> None:
        """It leaves its slot, where it stays."""
        if prompt in self._busy:
            self._busy.remove(prompt)
            self._idle.append(prompt)
            del self._idle[: max(0, len(self._busy) + len(self._idle) - self._count)]

    def held(self, prompt: bytes) -> tuple[int, int]:
        """How many bytes of it an idle slot holds, and one at work."""
        idle = max((common_bytes(prompt, each) for each in self._idle), default=0)
        busy = max((common_bytes(prompt, each) for each in self._busy), default=0)
        return idle, busy
