"""A thread of another framework is a run that everything else looks at and nobody here resumes."""

import pytest

from accord import resume
from accord.cli.stores import status_of
from accord.clock import WallClock
from accord.errors import UsageError
from accord.log.codec import encode_envelope
from accord.log.events import (
    NOTHING,
    CheckpointSaved,
    Envelope,
    Event,
    RunStarted,
    SavedWrite,
    Value,
    WritesSaved,
)
from accord.log.fold import index_calls
from accord.log.log import read_log
from accord.log.store.memory import MemoryStore
from accord.observe.tax import tax_of


def a_thread() -> MemoryStore:
    events: list[Event] = [
        RunStarted(
            run="thread:1",
            flow="langgraph",
            input=NOTHING,
            began_s=0.0,
            engine="",
            seed=0,
            version="1",
        ),
        CheckpointSaved(id="a", changes=Value(b"{}"), rest=Value(b"{}"), metadata=Value(b"{}")),
        WritesSaved(checkpoint="a", task="t", writes=(SavedWrite(0, "x", Value(b'"=AQ=="')),)),
    ]
    store = MemoryStore()
    lease = store.acquire(store.create("thread:1", "langgraph"), "elsewhere/1/1")
    records = [
        encode_envelope(Envelope(seq, seq * 1000, "", (seq - 1,) if seq else (), event))
        for seq, event in enumerate(events)
    ]
    store.append(lease, 0, records, {})
    store.release(lease)
    return store


def test_reports_close_over_it():
    log = read_log(a_thread(), "thread:1", WallClock())
    assert index_calls(log.envelopes).foreign
    assert tax_of(log).closes
    assert status_of(log.envelopes[-1], held=False) == "saved"


def test_resume_says_whose_it_is():
    with pytest.raises(UsageError, match="LangGraph thread"):
        resume("thread:1", log=a_thread())
