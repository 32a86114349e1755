"""The only wiring: an engine, a log and a clock, and a flow that runs on them.

The default log is one SQLite file in the user's data folder (``$ACCORD_LOG`` names another),
the default engine what :func:`accord.engine.select.select` finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache as once
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from accord._version import __version__
from accord.agent.prefetch import prefetched
from accord.clock import Clock, VirtualLoop, WallClock, in_own_loop
from accord.comm.mailbox import check_address
from accord.comm.post import Post
from accord.comm.space import Spaces
from accord.engine.base import Engine
from accord.errors import RunNotFoundError, UsageError
from accord.flow.execution import Execution, Listener
from accord.flow.forking import spare_calls, write_fork
from accord.flow.load import (
    Flow,
    check_flow,
    check_inputs,
    check_name,
    flow_name,
    flow_reference,
    load_flow,
)
from accord.flow.main import run_flow
from accord.flow.replay import Replay
from accord.flow.suspend import answers_as_sent, check_signal, plain_json
from accord.log.events import RunFinished, RunResumed, RunStarted
from accord.log.fold import Calls, index_calls
from accord.log.log import Heartbeat, Log, read_log
from accord.log.store.base import Durability, Store
from accord.log.store.holder import this_process
from accord.log.store.open import open_store
from accord.observe.earlier import Expectations, last_run
from accord.observe.remaining import Remaining, Way, remaining_of
from accord.result import Result
from accord.reuse.open import open_results
from accord.reuse.results import Mode, ResultCache, checked
from accord.reuse.site import Site
from accord.schedule.limits import Limits
from accord.schedule.policy import KeyFunction, Policy, policy_of
from accord.schedule.schedulers import Schedulers
from accord.schedule.settings import Settings
from accord.streaming import Item, stream_of

T = TypeVar("T")
Opened = Callable[[Log], None]


class Options(TypedDict, total=False):
    """What a :class:`Runtime` takes."""

    engine: Engine | str | None
    model: str | None
    log: Store | Path | str | None
    durability: Durability
    seed: int
    clock: Clock | None
    repeat_unknown: bool
    policy: str | Policy | KeyFunction
    limits: Limits | None
    tenant: str
    admission: bool
    single_flight: bool
    remaining: Mapping[str, float] | None
    cache: Mode | None
    cache_store: ResultCache | Path | str | None
    speculate: bool
    prefetch: bool


class Runtime:
    """Runs flows.

    ``engine``          an engine, or what ``--engine`` takes; None finds one
    ``model``           the model, where the engine has several
    ``log``             a store, a path of a SQLite file, ``"memory"``, or None for the default
    ``durability``      see :data:`accord.log.store.base.Durability`
    ``seed``            of everything random in Accord itself
    ``clock``           :class:`accord.clock.VirtualClock` under ``run_virtual``
    ``repeat_unknown``  on resume, make effects again whose outcome is unknown

    Who may ask the engine when:

    ``policy``          a name, see :mod:`accord.schedule.policy`, or ``(ticket, now_s) -> key``
    ``limits``          :class:`accord.schedule.limits.Limits` per agent, run and tenant; runtimes
                        that are given the same object share them
    ``tenant``          on whose behalf its runs are
    ``admission``       runs wait whose contexts do not fit the engine's cache, if it says its size
    ``single_flight``   of requests that begin alike, one goes ahead
    ``remaining``       seconds from a request of each agent to the end, for policies that look
                        ahead; they else read them off the last run of the same flow

    What need not be computed again, and may begin early:

    ``cache``           ``on``, ``off``, ``read`` or ``write``, where neither a call (``caching``)
                        nor its agent says so; None: ``on``, but for replies drawn by chance
    ``cache_store``     a :class:`accord.reuse.results.ResultCache`, the path of one, ``"memory"``;
                        None: beside a log in SQLite, in memory with any other
    ``speculate``       guesses are followed, where that pays: see :func:`accord.speculate`
    ``prefetch``        the engine reads prompts before they are asked, in spare capacity: see
                        :mod:`accord.agent.prefetch`

    Sync methods may also be called where an event loop runs (a notebook): they use a thread.
    Closing it closes the engine and the stores if it opened them itself; those that were given
    to it, and engines of agents, are their giver's to close.
    """

    def __init__(
        self,
        *,
        engine: Engine | str | None = None,
        model: str | None = None,
        log: Store | Path | str | None = None,
        durability: Durability = "async",
        seed: int = 0,
        clock: Clock | None = None,
        repeat_unknown: bool = False,
        policy: str | Policy | KeyFunction = "fcfs",
        limits: Limits | None = None,
        tenant: str = "",
        admission: bool = True,
        single_flight: bool = True,
        remaining: Mapping[str, float] | None = None,
        cache: Mode | None = None,
        cache_store: ResultCache | Path | str | None = None,
        speculate: bool = True,
        prefetch: bool = False,
    ) -> None:
        if durability not in ("sync", "async", "exit"):
            msg = f"durability is 'sync', 'async' or 'exit', not {durability!r}"
            raise UsageError(msg)
        if not (engine is None or isinstance(engine, str) or hasattr(engine, "generate")):
            msg = f"an engine has generate(request), which {engine!r} has not; or name one"
            raise UsageError(msg)
        self._settings = Settings(
            policy=policy_of(policy),
            limits=limits,
            tenant=tenant,
            admission=admission,
            single_flight=single_flight,
        )
        self._remaining = remaining
        self.clock: Clock = clock or WallClock()
        self.durability: Durability = durability
        self.store = open_store(log, clock=self.clock, durability=durability)
        self.seed = seed
        self.repeat_unknown = repeat_unknown
        self._selects_engine = engine is None or isinstance(engine, str)
        self._engine_name = engine if isinstance(engine, str) else None
        self._engine: Engine | None = None if isinstance(engine, str) else engine
        self._model = model
        self._schedulers: WeakKeyDictionary[asyncio.AbstractEventLoop, Schedulers] = (
            WeakKeyDictionary()
        )
        for name, given in (("speculate", speculate), ("prefetch", prefetch)):
            if type(given) is not bool:
                raise UsageError(f"Runtime: {name} is True or False, not {given!r}")
        self._cache_mode: Mode | None = None if cache is None else checked(cache, "Runtime")
        self._result_cache = open_results(cache_store, self.store, self.clock)
        self._speculate = speculate
        self._prefetch = prefetch
        self._agents: dict[str, dict[str, Any]] = {}
        """Agents by name, by flow."""
        self._sites: dict[str, dict[str, Site]] = {}
        """How guesses have gone, by flow."""
        self._live: dict[str, Execution] = {}
        self._opened_store = log is None or isinstance(log, str | Path)
        self._opened_results = not isinstance(cache_store, ResultCache)

    async def arun(
        self,
        flow: Callable[..., Coroutine[Any, Any, T]],
        /,
        *inputs: Any,
        run_id: str | None = None,
        baseline_tokens: int | None = None,
        listener: Listener | None = None,
        opened: Opened | None = None,
    ) -> Result[T]:
        """Run ``flow(*inputs)``. Raises what the flow raises; the log keeps what it did.

        ``baseline_tokens`` is what one agent needs for the same task, for the tax report.
        ``listener`` hears passing news of requests, ``opened`` gets the log to follow.
        """
        check_flow(flow, flow_name(flow))
        check_inputs(flow, inputs)
        check_name(run_id)
        schedulers = self._open_schedulers()
        with self._new_log(run_id, flow) as log:
            started = RunStarted(
                run=log.run,
                flow=flow_reference(flow),
                input=log.values.encode(list(inputs), "the input of the run"),
                began_s=self.clock.epoch_s(),
                engine=schedulers.engine.name,
                model=self._model or "",
                seed=self.seed,
                version=__version__,
                baseline_tokens=baseline_tokens,
            )
            first = log.append("", (), started)
            await log.barrier(alone=True)
            execution = self._execution(log, schedulers, Calls(), started, listener)
            return await self._execute(execution, flow, inputs, first, opened)

    async def aresume(
        self,
        run_id: str,
        flow: Flow | None = None,
        *,
        answers: Mapping[str, Any] | None = None,
        listener: Listener | None = None,
        opened: Opened | None = None,
    ) -> Result[Any]:
        """Go on with a run that stopped; finished calls answer from the log.

        ``answers`` are to the questions that it waits for, by their ids; those that are not yet
        answered go on waiting.

        ``flow`` is found by its recorded place unless given. A run that has finished gives its
        recorded output. Raises :class:`accord.errors.FlowChangedError` if the flow now makes
        other calls, :class:`accord.errors.RunLockedError` if another process works on it.
        """
        with self._log_of(run_id) as log:
            calls = index_calls(log.envelopes)
            bodies = answers_as_sent(log, calls, answers or {}, self._sent_to(run_id))
            if isinstance(calls.ended, RunFinished):
                output = log.values.decode(calls.ended.output)
                return Result(output=output, run_id=run_id, log=log)
            started = started_of(calls, run_id)
            flow = flow or load_flow(started.flow)
            inputs = log.values.decode(started.input)
            check_inputs(flow, inputs)
            schedulers = self._open_schedulers()
            last = log.envelopes[-1].seq
            first = log.append("", (last,), RunResumed(version=__version__))
            for name, body in bodies.items():
                self.store.post(run_id, name, body)
            log.take_post()
            execution = self._execution(log, schedulers, calls, started, listener)
            return await self._execute(execution, flow, inputs, first, opened)

    async def afork(
        self,
        run_id: str,
        changes: Mapping[str, Any],
        flow: Flow | None = None,
        *,
        new_run_id: str | None = None,
        listener: Listener | None = None,
        opened: Opened | None = None,
    ) -> Result[Any]:
        """A new run that shares with another all that does not follow from ``changes``.

        ``changes`` are other outputs of finished calls, by their places, as ``accord show`` tells
        them; at the place ``""``, the list of other inputs of the run. Only what depends on them is
        made again. The run forked from stays as it is.
        """
        original = read_log(self.store, run_id, self.clock)
        started = started_of(index_calls(original.envelopes), run_id)
        flow = flow or load_flow(started.flow)
        check_name(new_run_id)
        name = self.store.create(new_run_id, flow_name(flow))
        try:
            began = replace(started, run=name, began_s=self.clock.epoch_s(), forked_from=run_id)
            write_fork(self.store, original.envelopes, changes, began)
        except BaseException:
            self.store.delete(name)
            raise
        return await self.aresume(name, flow, listener=listener, opened=opened)

    def fork(
        self,
        run_id: str,
        changes: Mapping[str, Any],
        flow: Flow | None = None,
        *,
        new_run_id: str | None = None,
    ) -> Result[Any]:
        """:meth:`afork`, from sync code."""
        return in_own_loop(self._closing(self.afork(run_id, changes, flow, new_run_id=new_run_id)))

    def stream(
        self,
        flow: Flow,
        /,
        *inputs: Any,
        run_id: str | None = None,
        baseline_tokens: int | None = None,
    ) -> AsyncGenerator[Item]:
        """The events of a run as they happen, with passing news of requests in between.

        Raises what the flow raises, after its last event. Closing the iterator interrupts the
        run. A slow consumer slows the run.
        """

        def start(listener: Listener, opened: Opened) -> Coroutine[Any, Any, Any]:
            return self.arun(
                flow,
                *inputs,
                run_id=run_id,
                baseline_tokens=baseline_tokens,
                listener=listener,
                opened=opened,
            )

        return stream_of(start)

    def run(
        self,
        flow: Callable[..., Coroutine[Any, Any, T]],
        /,
        *inputs: Any,
        run_id: str | None = None,
        baseline_tokens: int | None = None,
    ) -> Result[T]:
        """:meth:`arun`, from sync code."""
        return in_own_loop(
            self._closing(self.arun(flow, *inputs, run_id=run_id, baseline_tokens=baseline_tokens))
        )

    def resume(
        self,
        run_id: str,
        flow: Flow | None = None,
        *,
        answers: Mapping[str, Any] | None = None,
    ) -> Result[Any]:
        """:meth:`aresume`, from sync code."""
        return in_own_loop(self._closing(self.aresume(run_id, flow, answers=answers)))

    def signal(self, run_id: str, name: str, value: Any = None) -> None:
        """Send a message to the mailbox ``name`` of a run from outside, whether it runs or not.

        A run in another process looks for it while it waits for messages; one that stopped, when
        it is resumed. ``value`` is plain JSON data.
        """
        body = plain_json(value, f"the message to {name!r}")
        check_address(name)
        check_signal(read_log(self.store, run_id, self.clock), name, self._sent_to(run_id))
        self.store.post(run_id, name, body)
        if (execution := self._live.get(run_id)) is not None:
            execution.take_post()

    def _sent_to(self, run_id: str) -> set[str]:
        """The names that messages from outside have been sent to."""
        return {name for _, name, _ in self.store.posted(run_id)}

    async def close(self) -> None:
        """Let go of an engine and a store that this runtime opened."""
        schedulers = self._schedulers.pop(asyncio.get_running_loop(), None)
        if schedulers is not None and self._selects_engine:
            await schedulers.engine.close()
            self._engine = None
        self.close_store()

    def close_store(self) -> None:
        """Let go of the stores that this runtime opened; a later look opens them again."""
        if self._opened_store:
            self.store.close()
        if self._opened_results:
            self._result_cache.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _closing(self, work: Coroutine[Any, Any, T]) -> T:
        """Sockets belong to one loop: all engines let go of theirs before it ends."""
        try:
            return await work
        finally:
            schedulers = self._schedulers.pop(asyncio.get_running_loop(), None)
            if schedulers is not None:
                await schedulers.close()

    def _open_schedulers(self) -> Schedulers:
        """The schedulers for the running loop."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and isinstance(self.clock, WallClock):
            msg = "this loop's time is virtual: Runtime(clock=VirtualClock()), of accord.clock"
            raise UsageError(msg)
        schedulers = self._schedulers.get(loop)
        if schedulers is None:
            schedulers = self._schedulers[loop] = Schedulers(self._find_engine(), self._settings)
        return schedulers

    def _find_engine(self) -> Engine:
        if self._engine is None:
            from accord.engine.select import select

            self._engine = select(self._engine_name, model=self._model)
        return self._engine

    @contextmanager
    def _new_log(self, run_id: str | None, flow: Flow) -> Generator[Log]:
        """The log of a new run. A run that could not record its input has not been."""
        name = self.store.create(run_id, flow_name(flow))
        try:
            with self._log_of(name) as log:
                yield log
        except BaseException:
            if not self.store.info(name).records:
                self.store.delete(name)
            raise

    @contextmanager
    def _log_of(self, run: str) -> Generator[Log]:
        """The log of ``run``, held as long as the block: its lease kept, and given back."""
        lease = self.store.acquire(run, this_process())
        log: Log | None = None
        shared = self.store.is_shared
        heartbeat = Heartbeat(self.store, lease) if shared else None
        try:
            # What ends with the process cannot outlive a crash of it: no need to hurry.
            durability = self.durability if shared else "exit"
            log = Log(self.store, run, clock=self.clock, lease=lease, durability=durability)
            yield log
        finally:
            if heartbeat is not None:
                heartbeat.stop()
            if log is None:
                self.store.release(lease)
            else:
                log.close()

    def _execution(
        self,
        log: Log,
        schedulers: Schedulers,
        recorded: Calls,
        started: RunStarted,
        listener: Listener | None,
    ) -> Execution:
        earlier = once(lambda: last_run(self.store, started.flow, self.clock))
        execution = Execution(
            log=log,
            replay=Replay(recorded, log.envelopes),
            schedulers=schedulers,
            seed=started.seed,
            began_s=started.began_s,
            result_cache=self._result_cache,
            cache_mode=self._cache_mode,
            repeat_unknown=self.repeat_unknown,
            listener=listener,
            remaining=self._remaining_of(earlier),
            earlier=earlier,
            speculates=self._speculate,
            sites=self._sites.setdefault(started.flow, {}),
            expectations=self._expectations(started.flow),
        )
        if started.forked_from:
            with suppress(RunNotFoundError):  # deleted since: all is made again
                original = read_log(self.store, started.forked_from, self.clock)
                execution.replay.spare = spare_calls(original.envelopes, started.forked_at)
                execution.spare_values = original.values
        return execution

    def _expectations(self, flow: str) -> Expectations | None:
        """Agents are known by name as long as the runtime lives; who is next, for one run."""
        if not self._prefetch:
            return None
        return Expectations(agents=self._agents.setdefault(flow, {}))

    def _remaining_of(self, earlier: Callable[[], Log | None]) -> Remaining:
        """How far it is to the end from each request: as declared, or as the last run had it."""
        if self._remaining is not None:
            declared = self._remaining.items()
            return Remaining(by_agent={agent: Way(left_s, left_s) for agent, left_s in declared})
        if not self._settings.policy.looks_ahead:
            return Remaining()
        last = earlier()
        return Remaining() if last is None else remaining_of(last.envelopes)

    async def _execute(
        self,
        execution: Execution,
        flow: Flow,
        inputs: Sequence[Any],
        first: int,
        opened: Opened | None,
    ) -> Result[Any]:
        log = execution.log
        if opened is not None:
            opened(log)
        execution.posted = lambda: (log.fold(Post), log.fold(Spaces))  # who waits for it wakes
        self._live[log.run] = execution
        made = prefetched(flow, execution) if execution.expectations else flow
        try:
            output = await run_flow(made, inputs, execution, first)
        finally:
            del self._live[log.run]
            execution.schedulers.ended(log.run)
        return Result(
            output=output,
            run_id=log.run,
            log=log,
            leaked_threads=execution.leaked_threads,
            prices=execution.schedulers.of(None).capabilities.prices,
        )


def started_of(calls: Calls, run_id: str) -> RunStarted:
    """How a run began that can be resumed; raises ``UsageError`` for others."""
    if calls.run is None:
        raise UsageError(
            f"run {run_id!r} stopped before it recorded its input; "
            f"`accord delete {run_id}`, and start it anew"
        )
    if calls.foreign:
        raise UsageError(
            f"run {run_id!r} is a LangGraph thread, kept here by AccordSaver; "
            "invoke the graph to go on with it"
        )
    return calls.run
