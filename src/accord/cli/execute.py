"""``accord run`` and ``accord resume``: a flow of the user's, with its output on stdout.

What ends such a command is one :class:`Ending`, whether the flow returned, raised or was
stopped; it is told in two forms, for people and as one JSON document.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from accord.cli.document import document
from accord.cli.failures import (
    FAILED,
    SUCCESS,
    FlowExitedError,
    FlowFileError,
    describe,
    exit_code,
    tell,
)
from accord.cli.inputs import read_inputs
from accord.cli.interrupt import EXIT_CODE, Interrupted, run_interruptible, tell_interrupted
from accord.cli.live import watching
from accord.cli.stores import reading
from accord.cli.streams import Answer, next_command, say
from accord.clock import WallClock
from accord.engine.select import select
from accord.errors import AccordError, RunNotFoundError, UsageError
from accord.flow.load import Flow, load_flow
from accord.log.events import RunFinished
from accord.log.fold import index_calls
from accord.log.log import Log, read_log
from accord.observe.render import summary_lines
from accord.observe.tax import tax_of, usage_of
from accord.runtime import Result, Runtime, check_inputs


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
        return "refused" if self.log is None else "failed"

    def following(self, opened: Callable[[Log], None]) -> Callable[[Log], None]:
        """``opened``, with the log kept here, too."""

        def follow(log: Log) -> None:
            self.log = log
            opened(log)

        return follow

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
        if self.error is not None and self.status != "interrupted":
            told["error"] = describe(self.error)
        return told


def run_command(options: argparse.Namespace) -> int:
    """``accord run``."""
    return _conclude(options, _start)


def resume_command(options: argparse.Namespace) -> int:
    """``accord resume``."""
    return _conclude(options, _resume)


def _conclude(
    options: argparse.Namespace, command: Callable[[argparse.Namespace, Ending], None]
) -> int:
    answer = Answer()
    ending = Ending()
    try:
        command(options, ending)
    except (Exception, KeyboardInterrupt, Interrupted) as error:  # noqa: BLE001  # all are told
        ending.error = error
    code = _tell(ending, options)
    try:
        if options.json:
            answer.write(document(ending.as_document()))
        elif ending.result is not None:
            _write_output(answer, ending.result.output)
    except OSError as error:
        say(f"accord: the output could not be written to stdout ({error.strerror})")
        if ending.run is not None:
            say(f"it is in the log: {next_command('resume', ending.run, options.log)}")
        return code or FAILED
    if ending.result is not None and ending.log is not None and not options.json:
        say(*summary_lines(tax_of(ending.log)))
        say(f"more: {next_command('tax', ending.log.run, options.log)}; also: accord show")
    return code


def _tell(ending: Ending, options: argparse.Namespace) -> int:
    if ending.error is None:
        return SUCCESS
    if ending.status == "interrupted":
        tell_interrupted(ending.run, options.log)
        return EXIT_CODE
    tell(ending.error, debug=options.debug, run=ending.run, log=options.log)
    return exit_code(ending.error)


def _write_output(answer: Answer, output: Any) -> None:
    if isinstance(output, str):
        answer.text(output)
    else:
        answer.write(document(output))


def _start(options: argparse.Namespace, ending: Ending) -> None:
    inputs = read_inputs(options.inputs or [])
    engine = select(options.engine, model=options.model)
    flow = load(options.flow)
    check_inputs(flow, inputs)
    baseline = _load_baseline(options.baseline, options.flow)
    if baseline is not None:
        check_inputs(baseline, inputs)

    async def work() -> None:
        async with Runtime(
            engine=engine,
            model=options.model,
            log=options.log,
            durability=options.durability,
        ) as runtime:
            tokens = None
            if baseline is not None:
                _check_free(runtime, options.run)
                say("baseline first: one run of the same task")
                with watching(quiet=options.json, title="baseline") as view:
                    single = await runtime.arun(
                        baseline,
                        *inputs,
                        listener=view.listener,
                        opened=ending.following(view.opened),
                    )
                tokens = single.usage.prompt + single.usage.completion
                ending.log = None
            with watching(quiet=options.json) as view:
                ending.result = await runtime.arun(
                    flow,
                    *inputs,
                    run_id=options.run,
                    baseline_tokens=tokens,
                    listener=view.listener,
                    opened=ending.following(view.opened),
                )

    drive(work())


def _resume(options: argparse.Namespace, ending: Ending) -> None:
    recorded = _recorded(options)
    flow = _flow_again(recorded, options.flow)

    async def work() -> None:
        async with Runtime(
            engine=options.engine or recorded.engine,
            model=options.model or recorded.model or None,
            log=options.log,
            repeat_unknown=options.repeat_unknown,
        ) as runtime:
            with watching(quiet=options.json) as view:
                ending.result = await runtime.aresume(
                    options.run,
                    flow,
                    listener=view.listener,
                    opened=ending.following(view.opened),
                )
            ending.log = ending.result.log

    drive(work())
    if recorded.finished:
        say(f"run {options.run} had finished; this is its recorded output")


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """What the log says of how the run was started."""

    flow: str
    engine: str
    model: str
    finished: bool


def _recorded(options: argparse.Namespace) -> _Recorded:
    with reading(options.log) as store:
        calls = index_calls(read_log(store, options.run, WallClock()).envelopes)
    if calls.run is None:
        raise UsageError(f"run {options.run!r} stopped before it recorded its input; start it anew")
    return _Recorded(
        flow=calls.run.flow,
        engine=calls.run.engine,
        model=calls.run.model,
        finished=isinstance(calls.ended, RunFinished),
    )


def _flow_again(recorded: _Recorded, given: str | None) -> Flow | None:
    """The flow, loaded also for a run that has finished: its file defines the output's class."""
    try:
        return load(given or recorded.flow)
    except UsageError as error:
        if recorded.finished:
            return None
        if given is not None or isinstance(error, FlowFileError):
            raise
        msg = f"{error}; say where the flow is now: --flow FILE.py:name"
        raise UsageError(msg) from error


def _load_baseline(name: str | None, beside: str) -> Flow | None:
    if name is None:
        return None
    if ":" in name or "/" in name or name.endswith(".py"):
        return load(name)
    head, colon, tail = beside.rpartition(":")
    place = head if colon and "/" not in tail else beside
    return load(f"{place}:{name}")


def _check_free(runtime: Runtime, run: str | None) -> None:
    """A name that is taken must not cost a baseline first."""
    if not run:
        return
    try:
        runtime.store.read(run, limit=1)
    except RunNotFoundError:
        return
    runtime.store.create(run, "")  # refused, in the store's own words


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


def drive(work: Any) -> None:
    """Run ``work`` on a loop of its own, until it ends or a signal stops it."""
    try:
        run_interruptible(work)
    except SystemExit as error:
        msg = f"the flow called sys.exit({error.code!r}); a flow ends by return or raise"
        raise FlowExitedError(msg) from error
