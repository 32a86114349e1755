"""``accord run`` and ``accord resume``: a flow of the user's, with its output on stdout.

What ends such a command is one :class:`Ending`, whether the flow returned, raised or was
stopped; it is told in two forms, for people and as one JSON document.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from accord.cli.exchange import call_at
from accord.cli.failures import (
    FAILED,
    SUCCESS,
    FlowExitedError,
    FlowFileError,
    Interrupted,
    describe,
    tell,
)
from accord.cli.inputs import read_inputs
from accord.cli.interrupt import run_interruptible
from accord.cli.live import watching
from accord.cli.outside import open_questions
from accord.cli.render import needed, summary_lines
from accord.cli.stores import reading
from accord.cli.streams import Answer, next_command, say
from accord.clock import WallClock
from accord.engine.select import select
from accord.errors import AccordError, RunNotFoundError, RunSuspendedError, UsageError
from accord.flow.load import Flow, check_inputs, load_flow
from accord.graph.node import amended
from accord.log.events import CallFinished, RunFinished
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.log.store.base import Store
from accord.observe.tax import tax_of, usage_of
from accord.runtime import Result, Runtime, started_of


@dataclass
class Ending:
    """What is known of the run, at every moment of the command."""

    log: Log | None = None
    result: Result[Any] | None = None
    error: BaseException | None = None

    @property
    def run(self) -> str | None:
        """The run's name, once there is a run."""
        return None if self.log is None else self.log.run

    @property
    def status(self) -> str:
        """How it ended: finished, interrupted, failed, or refused before there was a run."""
        if self.error is None:
            return "finished"
        if isinstance(self.error, KeyboardInterrupt | Interrupted):
            return "interrupted"
        if isinstance(self.error, RunSuspendedError):
            return "waiting"
        return "refused" if self.log is None else "failed"

    def attempt(self, work: Callable[[], None], options: argparse.Namespace) -> int:
        """Do ``work`` and give the exit code; whatever stops it is told on stderr, and kept."""
        try:
            work()
        except (Exception, KeyboardInterrupt, Interrupted) as error:  # noqa: BLE001  # all are told
            self.error = error
            return tell(error, debug=options.debug, run=self.run, log=options.log)
        return SUCCESS

    async def watched(
        self,
        run: Callable[..., Coroutine[Any, Any, Result[Any]]],
        *given: Any,
        quiet: bool = False,
        title: str = "",
        **options: Any,
    ) -> Result[Any]:
        """``run(*given, **options)``, in view; its log is kept here."""
        with watching(quiet=quiet, title=title) as view:

            def opened(log: Log) -> None:
                self.log = log
                view.opened(log)

            return await run(*given, listener=view.listener, opened=opened, **options)

    def as_document(self) -> dict[str, Any]:
        """The one JSON document."""
        told: dict[str, Any] = {
            "run": self.run,
            "status": self.status,
            "output": None if self.result is None else self.result.output,
            "usage": None,
            "tax": None,
        }
        if self.log is not None:
            with suppress(AccordError):  # a log that cannot be read is what ``error`` says
                told["usage"] = usage_of(index_calls(self.log.envelopes))
                told["tax"] = tax_of(self.log).to_dict()
        if isinstance(self.error, RunSuspendedError):
            asked = self.error.questions
            told["questions"] = [{"id": each.id, "question": each.question} for each in asked]
        elif self.error is not None and self.status != "interrupted":
            told["error"] = describe(self.error)
        return told


def run_command(options: argparse.Namespace) -> int:
    """``accord run``."""
    return _conclude(options, _start)


def resume_command(options: argparse.Namespace) -> int:
    """``accord resume``."""
    return _conclude(options, _resume)


def fork_command(options: argparse.Namespace) -> int:
    """``accord fork``."""
    return _conclude(options, _fork)


def _conclude(
    options: argparse.Namespace, command: Callable[[argparse.Namespace, Ending], None]
) -> int:
    answer = Answer()
    ending = Ending()
    code = ending.attempt(lambda: command(options, ending), options)
    try:
        if options.json:
            answer.document(ending.as_document())
        elif ending.result is not None:
            output = ending.result.output
            (answer.text if isinstance(output, str) else answer.document)(output)
    except OSError as error:
        say(f"accord: the output could not be written to stdout ({error.strerror})")
        if ending.run is not None:
            say(f"it is in the log: {next_command('resume', ending.run, options.log)}")
        return code or FAILED
    if ending.result is not None and not options.json:
        say(*summary_lines(ending.result.tax))
        run = ending.result.run_id
        more, also = (next_command(each, run, options.log) for each in ("tax", "show"))
        say(f"more: {more}; also: {also}")
    return code


def _start(options: argparse.Namespace, ending: Ending) -> None:
    inputs = read_inputs(options.inputs or [])
    engine = select(options.engine, model=options.model)
    flow = load(options.flow)
    check_inputs(flow, inputs)
    baseline = None
    if options.baseline is not None:
        baseline = load(_beside(options.flow, options.baseline))
        check_inputs(baseline, inputs)

    async def work() -> None:
        async with Runtime(
            engine=engine,
            model=options.model,
            log=options.log,
            durability=options.durability,
            policy=options.policy,
            cache=options.cache,
            prefetch=options.prefetch,
        ) as runtime:
            tokens = None
            if baseline is not None:
                _check_free(runtime.store, options.run)
                say("baseline first: one run of the same task")
                alone = await ending.watched(
                    runtime.arun, baseline, *inputs, quiet=options.json, title="baseline"
                )
                tokens = needed(alone)
                ending.log = None
            ending.result = await ending.watched(
                runtime.arun,
                flow,
                *inputs,
                quiet=options.json,
                run_id=options.run,
                baseline_tokens=tokens,
            )

    drive(work())


def _resume(options: argparse.Namespace, ending: Ending) -> None:
    with reading(options.log) as store:
        log = read_log(store, options.run, WallClock())
        answers = _answers(store, log, options.answers or [])
    calls = index_calls(log.envelopes)
    started, finished = started_of(calls, options.run), isinstance(calls.ended, RunFinished)
    flow = _flow_again(started.flow, options.flow, finished=finished)

    async def work() -> None:
        async with Runtime(
            engine=options.engine or started.engine,
            model=options.model or started.model or None,
            log=options.log,
            repeat_unknown=options.repeat_unknown,
            policy=options.policy,
            cache=options.cache,
            prefetch=options.prefetch,
        ) as runtime:
            ending.result = await ending.watched(
                runtime.aresume,
                options.run,
                flow,
                quiet=options.json,
                answers=answers,
            )
        ending.log = ending.result.log

    drive(work())
    if finished:
        say(f"run {options.run} had finished; this is its recorded output")


def _answers(store: Store, log: Log, given: list[tuple[str, Any]]) -> dict[str, Any]:
    """The answers by their questions; one without a question is to the only one that is open."""
    answers = dict(given)
    if "" in answers:
        waiting = open_questions(store, log)
        if len(waiting) != 1 or len(given) != 1:
            raise UsageError(
                f"{answers['']!r} is not an answer, such as 0/2=yes: run {log.run!r} waits for "
                f"{waiting or 'no answer'}; only where it waits for one may its id be left out"
            )
        return {waiting[0]: answers[""]}
    return answers


def _fork(options: argparse.Namespace, ending: Ending) -> None:
    with reading(options.log) as store:
        log = read_log(store, options.run, WallClock())
        started = started_of(index_calls(log.envelopes), options.run)
        changes = _changes(log, options)
        _check_free(store, options.new_run)
    flow = _flow_again(started.flow, options.flow, finished=False)

    async def work() -> None:
        async with Runtime(
            engine=options.engine or started.engine,
            model=options.model or started.model or None,
            log=options.log,
            policy=options.policy,
            cache=options.cache,
            prefetch=options.prefetch,
        ) as runtime:
            ending.result = await ending.watched(
                runtime.afork,
                options.run,
                changes,
                flow,
                quiet=options.json,
                new_run_id=options.new_run,
            )

    drive(work())


def _changes(log: Log, options: argparse.Namespace) -> dict[str, Any]:
    """The place of the event, and what the call there gave instead."""
    if options.event == 0:
        inputs: Any = options.value
        return {"": inputs if type(inputs) is list else [inputs]}
    call = call_at(log, options)
    if call.started.kind != "node" or not isinstance(call.ended, CallFinished):
        return {call.scope: options.value}
    update: dict[str, Any] = options.value
    if type(update) is not dict:
        raise UsageError(f"a node writes a JSON object of keys, not {update!r}")
    return {call.scope: amended(log.values.decode(call.ended.output), update)}


def _flow_again(recorded: str, given: str | None, *, finished: bool) -> Flow | None:
    """The flow, loaded also for a run that has finished: its file defines the output's class."""
    try:
        return load(given or recorded)
    except UsageError as error:
        if finished:
            return None
        if given is not None or isinstance(error, FlowFileError):
            raise
        msg = f"{error}; say where the flow is now: --flow FILE.py:name"
        raise UsageError(msg) from error


def _beside(flow: str, name: str) -> str:
    """The reference that ``name`` stands for: a flow in the file of ``flow``, unless it says."""
    if ":" in name or "/" in name or name.endswith(".py"):
        return name
    head, colon, tail = flow.rpartition(":")
    place = head if colon and "/" not in tail else flow
    return f"{place}:{name}"


def _check_free(store: Store, run: str | None) -> None:
    """A name that is taken must not cost a baseline first."""
    with suppress(RunNotFoundError):
        if run is not None and store.info(run):
            raise UsageError(
                f"a run named {run!r} exists; "
                f"`accord resume {run}` goes on with it, or choose another name"
            )


def load(reference: str) -> Flow:
    """:func:`accord.flow.load.load_flow`; whatever the file raises is a ``FlowFileError``."""
    try:
        return load_flow(reference)
    except UsageError as error:
        if error.__cause__ is None:
            raise
        raise FlowFileError(str(error)) from error.__cause__
    except SystemExit as error:
        msg = (
            f"{reference} calls sys.exit() when it is imported; "
            'put what starts the program under `if __name__ == "__main__":`'
        )
        raise FlowFileError(msg) from error
    except Exception as error:
        msg = f"{reference} cannot be loaded: {type(error).__name__}: {error}"
        raise FlowFileError(msg) from error


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` on a loop of its own, until it ends or a signal stops it."""
    try:
        run_interruptible(work)
    except SystemExit as error:
        msg = f"the flow called sys.exit({error.code!r}); a flow ends by return or raise"
        raise FlowExitedError(msg) from error
