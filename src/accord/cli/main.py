"""``accord``: its commands, and how each ending becomes an exit code.

Arguments are checked before anything of the user's is loaded. Commands are imported when they are
used, so that ``accord --help`` is quick.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from accord.cli.arguments import build_parser
from accord.cli.failures import FAILED, INTERRUPTED, USAGE, Interrupted, tell
from accord.cli.interrupt import treat_sigterm_as_ctrl_c
from accord.cli.streams import open_standard_streams, say, silence_stdout

COMMANDS = {
    "demo": "accord.cli.demo:demo_command",
    "run": "accord.cli.execute:run_command",
    "resume": "accord.cli.execute:resume_command",
    "fork": "accord.cli.execute:fork_command",
    "signal": "accord.cli.outside:signal_command",
    "runs": "accord.cli.listing:runs_command",
    "show": "accord.cli.show:show_command",
    "why": "accord.cli.why:why_command",
    "tax": "accord.cli.show:tax_command",
    "cache": "accord.cli.cache:cache_command",
    "doctor": "accord.cli.doctor:doctor_command",
    "calibrate": "accord.cli.calibrate:calibrate_command",
    "prune": "accord.cli.listing:prune_command",
    "delete": "accord.cli.listing:delete_command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit code."""
    open_standard_streams()
    warnings.showwarning = _warn
    treat_sigterm_as_ctrl_c()
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        module, _, function = COMMANDS[options.command].partition(":")
        code: int = getattr(import_module(module), function)(options)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, Interrupted):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()  # whoever read our output has gone, as `accord runs | head` does
        return FAILED
    except Exception as error:  # noqa: BLE001  # the last line of defence: no bare traceback
        return tell(error, debug=options.debug)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """What a user is told of a warning: where it was raised is not their program's."""
    say(f"accord: warning: {message}")


if __name__ == "__main__":
    sys.exit(main())
