"""Tasks of a crew: what is to be done, by whom, on what; with placeholders, and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from accord.agent.tool import Tool
from accord.errors import UsageError
from accord.team.member import Member
from accord.tokens.encode import encode

_PLACEHOLDERS = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, eq=False)
class Task:
    """One piece of work.

    ``expected_output``  what the answer should look like, in words
    ``agent``            who does it: a member of the crew, or its name; in a hierarchical crew
                         the managers decide, unless it is given
    ``context``          the tasks whose outputs it needs. None: in order, all before it, the last
                         in full and the others in short; in a parallel crew, none
    ``output``           the type of the answer
    ``requires``         tools that have to be used for it, each by a member that has it
    """

    description: str
    expected_output: str = ""
    _: KW_ONLY
    agent: Member | str | None = None
    context: Sequence[Task] | None = None
    output: Any = str
    requires: Sequence[Tool[..., Any] | str] = ()
    name: str = ""

    def text(self, inputs: Mapping[str, Any]) -> str:
        """What is asked, with its placeholders filled in."""
        parts = [self.description]
        if self.expected_output:
            parts.append(f"Expected output: {self.expected_output}")
        return filled("\n\n".join(parts), inputs, f"task {self.name or self.description[:40]!r}")

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the tools that have to be used."""
        return tuple(each if isinstance(each, str) else each.name for each in self.requires)


def filled(text: str, inputs: Mapping[str, Any], who: str) -> str:
    """``text`` with ``{name}`` replaced; ``{{name}}`` stands for itself.

    Raises ``UsageError`` if ``inputs`` lack a name.
    """

    def value(found: re.Match[str]) -> str:
        literal, name = found.groups()
        if literal:
            return f"{{{literal}}}"
        if name not in inputs:
            raise UsageError(
                f"{who} has the placeholder {{{name}}}, and the inputs are "
                f"{sorted(inputs) or 'none'}; give it, or write {{{{{name}}}}} for the word itself"
            )
        return encode(inputs[name])

    return _PLACEHOLDERS.sub(value, text)


def filled_if_known(text: str, inputs: Mapping[str, Any]) -> str:
    """``text`` with those placeholders replaced that are in ``inputs``."""
    known = _PLACEHOLDERS.sub(
        lambda found: encode(inputs[found[2]]) if found[2] in inputs else found[0], text
    )
    return known if inputs else text


def named(tasks: Sequence[Task], who: str) -> dict[Task, str]:
    """Each task with its name, ``task-1`` and so on if it has none."""
    names = {task: task.name or f"task-{index + 1}" for index, task in enumerate(tasks)}
    for task, name in names.items():
        if not name.isprintable() or "*" in name:
            raise UsageError(f"{who}: a task is named by printable text without *, not {name!r}")
        if not task.description.strip():
            raise UsageError(f"{who}: {name} has no description; say what is to be done")
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    if twice or len(names) < len(tasks):
        raise UsageError(f"{who}: two tasks are one, or are called {twice or 'the same'}")
    return names


def in_order(names: Mapping[Task, str], who: str) -> tuple[Task, ...]:
    """The tasks, each after those of its context, else as given.

    Raises ``UsageError`` that names the tasks if one waits for another crew's, or for itself.
    """
    left = list(names)
    for task in left:
        for other in task.context or ():
            if other not in names:
                wanted = other.name or other.description
                raise UsageError(
                    f"{who}: {names[task]} needs the output of {wanted!r}, which is none of its "
                    "tasks; add it"
                )
    ordered: list[Task] = []
    while left:
        ready = next((t for t in left if all(c in ordered for c in t.context or ())), None)
        if ready is None:
            raise UsageError(
                f"{who}: {', '.join(names[task] for task in left)} wait for each other's outputs; "
                "take one out of a context"
            )
        ordered.append(ready)
        left.remove(ready)
    return tuple(ordered)
