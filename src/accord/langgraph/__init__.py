"""LangGraph's state on Accord's log: ``graph.compile(checkpointer=AccordSaver("log.sqlite3"))``.

A thread is a run of the store, named ``thread:ID``; it never ends. Saving a checkpoint appends
``CheckpointSaved``, what changed against its parent; a task's result appends ``WritesSaved``. The
order of the two is the log's. A checkpoint is found by folding the thread's log, which is read
once and then followed. Removing checkpoints writes the thread's log anew, without them.

Values go through LangGraph's own serializer, so what it encrypts or refuses, it does here too.
What it cannot tell apart is kept from it: plain lists and dicts are taken apart first, so that a
list that grows writes its new items, not itself (:mod:`accord.langgraph.pieces`).
"""

from __future__ import annotations

try:
    from accord.langgraph.saver import AccordSaver
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("lang"):
        raise
    raise ModuleNotFoundError(
        f'accord.langgraph needs LangGraph; pip install "accord[langgraph]" ({error})',
        name=error.name,
    ) from error

__all__ = ["AccordSaver"]
