"""Flows on virtual time, cut at every event of their log and resumed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from accord import Runtime, step
from accord.clock import VirtualClock, run_virtual
from accord.errors import UnknownOutcomeError
from accord.log.codec import decode_envelope
from accord.log.events import CallFailed, CallFinished, Envelope
from accord.log.fold import Call, index_calls, is_within
from accord.log.log import Log, read_log
from accord.log.store.memory import MemoryStore
from accord.observe.tax import tax_of
from accord.testing.scripted import ScriptedEngine

Flow = Callable[[], Coroutine[Any, Any, Any]]

effects: list[str] = []
_pauses = Random(0)


async def wait() -> None:
    """A random time, so that things happen in another order with another seed."""
    await asyncio.sleep(_pauses.uniform(0.001, 0.1))


@step
async def book(what: str) -> str:
    """An effect that takes a while."""
    effects.append(what)
    await wait()
    return f"booked {what}"


@dataclass
class Ending:
    """What a run came to."""

    value: Any
    store: MemoryStore
    effects: list[str]

    @property
    def envelopes(self) -> list[Envelope]:
        return [decode_envelope(record) for record in self.store.read("run")]

    @property
    def log(self) -> Log:
        async def read() -> Log:
            return read_log(self.store, "run", VirtualClock())

        return run_virtual(read())


def play(flow: Flow, *, seed: int = 0, engine: Any = None) -> Ending:
    """Run ``flow`` from nothing. What it raises is its value."""
    return _play(flow, MemoryStore(), seed=seed, engine=engine)


def resume(
    flow: Flow,
    full: Ending,
    position: int,
    *,
    repeat_unknown: bool = False,
    engine: Any = None,
    answers: Any = None,
) -> Ending:
    """Resume it from what a crash after ``position`` events leaves."""
    store = MemoryStore()
    store.create("run", "flow")
    lease = store.acquire("run", "crashed")
    blobs = {digest: full.store.blob(digest) for digest in full.store._blobs}
    store.append(lease, 0, full.store.read("run")[:position], blobs)
    store.release(lease)
    return _play(flow, store, repeat_unknown=repeat_unknown, engine=engine, answers=answers)


def _play(
    flow: Flow,
    store: MemoryStore,
    *,
    seed: int = 0,
    repeat_unknown: bool = False,
    engine: Any = None,
    answers: Any = None,
) -> Ending:
    effects.clear()
    _pauses.seed(seed)

    async def main() -> Any:
        runtime = Runtime(
            engine=engine or ScriptedEngine(),
            log=store,
            clock=VirtualClock(),
            repeat_unknown=repeat_unknown,
        )
        try:
            if store.runs():
                return (await runtime.aresume("run", flow, answers=answers)).output
            return (await runtime.arun(flow, run_id="run")).output
        except Exception as error:
            return error
        finally:
            assert len(asyncio.all_tasks()) == 1, "no task is left behind"

    return Ending(run_virtual(main()), store, list(effects))


def cut_anywhere(flow: Flow) -> Ending:
    """Cut ``flow`` at every event and resume it: same ending, effects at most once, same bytes."""
    full = play(flow)
    assert full.store.read("run") == play(flow).store.read("run"), "same seed, same bytes"
    envelopes = full.envelopes
    for position in range(1, len(envelopes)):
        calls = index_calls(envelopes[:position]).by_scope.values()
        begun = Counter(call.started.preview for call in calls if _may_have_happened(call))
        again = resume(flow, full, position)
        allowed = Counter(full.effects) - begun
        assert not Counter(again.effects) - allowed, f"cut after {position}, effects repeated"
        if any(_is_unknown(call, calls) for call in calls):
            assert isinstance(again.value, UnknownOutcomeError), f"cut after {position}: not told"
            again = resume(flow, full, position, repeat_unknown=True)
        assert _same(again.value, full.value), f"cut after {position}: {again.value!r}"
        assert tax_of(again.log).closes
    return full


def _is_effect(call: Call) -> bool:
    return call.started.kind == "step" and not call.started.pure


def _may_have_happened(call: Call) -> bool:
    return _is_effect(call) and not isinstance(call.ended, CallFailed)


def _is_unknown(call: Call, calls: Collection[Call]) -> bool:
    """Begun, and neither its end nor a flow that went on without it is recorded."""
    if not _is_effect(call) or isinstance(call.ended, CallFinished | CallFailed):
        return False
    around = [each for each in calls if is_within(call.scope, each.scope)]
    return not any(each.led_on or each.cleaned_up for each in around)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Exception):
        return type(one) is type(other) and str(one) == str(other)
    return one == other
