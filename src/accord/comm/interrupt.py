"""``interrupt``: a question to a person, whose answer may take days.

Choose it where a person decides. It costs nothing while it waits: the branch that asks is
suspended, the others go on, and then the run stops. ``resume(run, answers={id: answer})`` or
``accord resume RUN --answer ID=VALUE`` goes on. The answer is a message from outside to the
question's place.
"""

from __future__ import annotations

from typing import Any

from accord.comm.mailbox import open_mailbox, take
from accord.flow.call import call
from accord.flow.scope import CallScope
from accord.flow.suspend import Suspended


async def interrupt(question: Any, *, name: str = "question") -> Any:
    """The answer to ``question``, once there is one; until then the code here is suspended.

    Each question has its own id, its place in the flow. What is asked side by side may be
    answered in any order. Code before it runs again when the answer is there: effects belong in
    steps of their own, which do not.
    """

    async def body(scope: CallScope) -> Any:
        box = open_mailbox(scope.path)
        if not box.waiting and scope.place not in scope.execution.replay.notes:
            raise Suspended([scope.path])
        return take(scope.path).body

    return await call("interrupt", name, [question], body, pure=True, keep_input=True)
