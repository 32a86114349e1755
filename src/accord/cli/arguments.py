"""What the command line understands: commands, their options, and how values are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from accord._version import __version__
from accord.cli.inputs import Given, value_of
from accord.engine.base import Prices
from accord.reuse.results import MODES
from accord.schedule.policy import POLICIES


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="accord",
        description="Runs teams of agents, durably, and says where their tokens and seconds went.",
        epilog="Exit codes: 0 success, 1 the run failed, 2 bad usage, 3 it waits for an answer, "
        "130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"accord {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks (or ACCORD_DEBUG=1)")
    # --debug may also stand behind the command; absent there, it must not undo the one in front.
    debug = argparse.ArgumentParser(add_help=False)
    debug.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[debug])

    _add_demo(add("demo", "a team of agents writes a report; the tax table of the run"))
    _add_run(add("run", "run a flow of yours"))
    _add_resume(add("resume", "go on with a run that stopped"))
    _add_fork(add("fork", "a new run in which one call of another had given something else"))
    _add_signal(add("signal", "send a message to a run, or answer a question of it"))
    _add_runs(add("runs", "list the runs in the log, newest first"))
    _add_show(add("show", "the calls of a run as a tree, or what one of them was sent and gave"))
    _add_why(add("why", "what an event of a run followed from, back to the beginning"))
    _add_tax(add("tax", "where every token and every second of a run went; or of a message log"))
    _add_cache_command(add("cache", "what is kept of earlier answers, for equal requests"))
    _add_doctor(add("doctor", "what is installed, what answers, what to mend"))
    _add_calibrate(add("calibrate", "measure an engine, for --engine sim:FILE to simulate it"))
    _add_prune(add("prune", "remove old runs from the log"))
    _add_one(add("delete", "remove one run from the log"), json=False)
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    parser.add_argument(
        "--agents",
        metavar="N",
        type=_whole(8),
        help="instead: a 30,000-word report by so many agents (8 to 512) on a simulated engine, as "
        "usually wired and as Accord does it",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=_whole(1),
        help="with --agents: runs of each wiring; default: 9",
    )
    parser.add_argument("--out", metavar="DIR", default="accord-demo", help="for report and tax")
    parser.add_argument("--json", metavar="FILE", help="write all results there; - is stdout")
    _add_cache(parser)
    _add_log(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flow", metavar="FILE.py[:flow]", help="an async function")
    parser.add_argument(
        "--input",
        metavar="FILE",
        dest="inputs",
        action="append",
        type=partial(Given, "--input"),
        help="the file's text is the flow's next argument; - is stdin",
    )
    parser.add_argument(
        "--text",
        metavar="STRING",
        dest="inputs",  # one list for both, in the order of the command line
        action="append",
        type=partial(Given, "--text"),
        help="the string is the flow's next argument",
    )
    parser.add_argument("--run", metavar="RUN", type=_name, help="the run's name")
    _add_engine(parser)
    _add_policy(parser)
    _add_cache(parser)
    _add_prefetch(parser)
    parser.add_argument(
        "--durability", choices=("sync", "async", "exit"), default="async", help="default: async"
    )
    parser.add_argument(
        "--baseline",
        metavar="FLOW",
        help="run this first (a flow of the same file, or FILE.py:name), for the amplification",
    )
    _add_log(parser)
    _add_json(parser)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=_name)
    _add_engine(parser, default="the one recorded")
    _add_policy(parser)
    _add_cache(parser)
    _add_prefetch(parser)
    parser.add_argument(
        "--repeat-unknown",
        action="store_true",
        help="make effects again of which the log doesn't say if they happened",
    )
    parser.add_argument(
        "--answer",
        metavar="[ID=]VALUE",
        dest="answers",
        action="append",
        type=_answer,
        help="to a question that the run waits for; VALUE is JSON, or text; ID may be left out "
        "where one question is open",
    )
    parser.add_argument("--flow", metavar="FILE.py:name", help="where the flow is now")
    _add_log(parser)
    _add_json(parser)


def _add_fork(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=_name)
    parser.add_argument("event", metavar="EVENT", type=_whole(0), help="of the call, in the tree")
    parser.add_argument(
        "value",
        metavar="VALUE",
        type=value_of,
        help="what it gave instead, JSON or text; of a node, the keys that differ; of event 0, the "
        "list of the run's inputs",
    )
    parser.add_argument("--run", metavar="RUN", dest="new_run", type=_name, help="the new name")
    _add_engine(parser, default="the one recorded")
    _add_policy(parser)
    _add_cache(parser)
    _add_prefetch(parser)
    parser.add_argument("--flow", metavar="FILE.py:name", help="where the flow is now")
    _add_log(parser)
    _add_json(parser)


def _add_signal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=_name)
    parser.add_argument("name", metavar="NAME", help="a mailbox, or the id of a question")
    parser.add_argument("value", metavar="VALUE", type=value_of, help="JSON, or text")
    _add_log(parser)


def _add_why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=_name)
    parser.add_argument("event", metavar="EVENT", help="its number; or an agent's or node's name")
    _add_log(parser)
    _add_json(parser)


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", metavar="N", type=_whole(1), default=50, help="default: 50")
    _add_log(parser)
    _add_json(parser)


def _add_one(parser: argparse.ArgumentParser, *, json: bool) -> None:
    parser.add_argument("run", metavar="RUN", type=_name)
    _add_log(parser)
    if json:
        _add_json(parser)


def _add_tax(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN|FILE",
        type=_name,
        help="a run; or a file of another system's messages: what was sent of them, and what would "
        "be under each policy of visibility",
    )
    parser.add_argument(
        "--prices",
        metavar="PROMPT,CACHED",
        type=_prices,
        help="US dollars per million prompt tokens, fresh and cached; default: the model's",
    )
    _add_log(parser)
    _add_json(parser)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_one(parser, json=True)
    parser.add_argument(
        "event",
        metavar="EVENT",
        type=_whole(0),
        nargs="?",
        help="the number of a call's event in the tree: its prompts and replies, in full",
    )


def _add_cache_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        metavar="stats|clear|export",
        choices=("stats", "clear", "export"),
        help="how much there is of what; forget it all; write it out, a JSON object a line",
    )
    parser.add_argument(
        "--store", metavar="PATH", help="the cache file; default: the one beside the log"
    )
    parser.add_argument("--out", metavar="FILE", help="for export; default: stdout, as is -")
    _add_log(parser)
    parser.add_argument("--json", action="store_true", help="stats as one JSON document on stdout")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _add_engine(parser)
    _add_log(parser)
    _add_json(parser)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="ENGINE", help="local, local:PATH, or a server's URL")
    parser.add_argument("--model", metavar="NAME", help="the model, where the server has several")
    parser.add_argument(
        "--out", metavar="FILE", default="profile.json", help="default: %(default)s"
    )
    parser.add_argument("--name", metavar="NAME", help="of the profile; default: the file's")
    parser.add_argument("--quick", action="store_true", help="half a minute instead of two")
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=_whole(1, 1 << 20),
        help="the most requests to send at once",
    )
    parser.add_argument(
        "--kv-tokens",
        metavar="N",
        type=_whole(512, 1 << 40),
        help="of the KV cache; default: as it says",
    )
    parser.add_argument(
        "--batch-tokens",
        metavar="N",
        type=_whole(1, 1 << 20),
        default=2048,
        help="the most tokens in a step (vLLM: --max-num-batched-tokens); default: 2048",
    )
    parser.add_argument(
        "--aside-tokens",
        metavar="N",
        type=_whole(0),
        help="of contexts that left their slots (llama.cpp: --cache-ram); default: as the KV cache",
    )
    _add_json(parser)


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", metavar="N", type=_whole(0), help="keep the newest N runs")
    parser.add_argument("--older-than", metavar="DAYS", type=_days, help="keep what is younger")
    _add_log(parser)


def _add_engine(parser: argparse.ArgumentParser, *, default: str = "") -> None:
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="local, local:PATH of a .gguf file, the URL of an OpenAI-compatible server, or "
        "sim:PROFILE (8b, 70b, a file of accord calibrate), which simulates one; "
        f"default: {default or 'OPENAI_BASE_URL if it is set, else local'}",
    )
    parser.add_argument("--model", metavar="NAME", help="the model, where the server has several")


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        default="fcfs",
        help="whose requests go first; default: fcfs",
    )


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache",
        choices=MODES,
        help="answers of equal requests of before; default: of those with a seed or of "
        "temperature 0",
    )


def _add_prefetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefetch",
        action="store_true",
        help="while agents wait, let the engine read ahead, where it has nothing else to do",
    )


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", metavar="PATH", help="the log file; default: ACCORD_LOG")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _name(text: str) -> str:
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError("a run's name is printable text")
    return text


def _whole(least: int, below: int = 2**62) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text[:19]) < below:
            most = "" if below == 2**62 else f" and below {below:,}"
            msg = f"{text!r} is not a whole number of at least {least}{most}"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return convert


def _prices(text: str) -> Prices:
    try:
        prompt, cached = (float(part) for part in text.split(","))
    except ValueError:
        prompt = cached = -1.0
    if not (0 <= prompt < 1e6 and 0 <= cached < 1e6):
        msg = f"{text!r} is not two prices, such as 2.50,0.25"
        raise argparse.ArgumentTypeError(msg)
    return Prices(prompt=prompt, cached=cached, completion=0.0)


def _answer(text: str) -> tuple[str, object]:
    """The question's id, empty for the only one, and the answer."""
    name, sign, value = text.partition("=")
    if not sign:
        return "", value_of(text)
    if not name.strip():
        msg = f"{text!r} is not an answer, such as 0/2=yes"
        raise argparse.ArgumentTypeError(msg)
    return name, value_of(value)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        msg = f"{text!r} is not a number of days"
        raise argparse.ArgumentTypeError(msg)
    return days
