"""``accord tax FILE``: messages of other systems, told for people and as one document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accord.observe.whatif import POLICIES
from tests.cli.command import Cli

HISTORY = {
    "history": [
        {"role": "human", "content": "Which of the three is the cheapest, and by how much?"},
        {"role": "Orchestrator (thought)", "content": "Prices first. " * 40},
        {"role": "Orchestrator (-> WebSurfer)", "content": "Find the three prices."},
        {"role": "WebSurfer", "content": "They are 4, 5 and 7 dollars, says the page. " * 60},
        *[
            {"role": role, "content": f"{number} of the prices is settled now. " * 60}
            for number in range(20)
            for role in ("Orchestrator (thought)", "WebSurfer")
        ],
    ],
    "question": "Which?",
}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Ho."},
]


def written(cli: Cli, *values: Any, name: str = "log.json") -> Path:
    path = cli.folder / name
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return path


def test_what_was_written_sent_and_might_have_been(cli: Cli) -> None:
    path = written(cli, HISTORY)
    shown = cli("tax", path, code=0).out
    assert "Who&When: 1 conversation, 44 turns" in shown
    assert "priced (cached: 1/10)" in shown
    assert "Orchestrator  WebSurfer" in shown
    assert all(len(line) <= 85 for line in shown.splitlines()[1:])
    told = cli("tax", path, "--json", code=0).json
    assert told["formats"] == ["Who&When"]
    assert set(told["policies"]) == set(POLICIES)
    full, summary = told["policies"]["full"], told["policies"]["summary"]
    assert full["sent"] > told["written"] > 0
    assert full["sent"] == sum(
        agent["policies"]["full"]["sent"] for agent in told["agents"].values()
    )
    assert summary["sent"] < full["sent"]
    assert told["agents"]["Orchestrator"]["turns"] == 22
    assert told["unit"] == "tokens"
    assert not cli.log.exists()


def test_prices_are_those_of_the_model_or_the_users(cli: Cli) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    path = written(cli, {"messages": CHAT, "model": "openai/gpt-4o-2024-08-06", "usage": usage})
    told = cli("tax", path, "--json", code=0).json
    full = told["policies"]["full"]
    assert told["unit"] == "dollars"
    assert full["priced"] == pytest.approx(full["sent"] * 2.5e-6)
    assert told["counted_by_engines"]["prompt"] == 9
    told = cli("tax", path, "--json", "--prices", "1000,10", code=0).json
    assert told["policies"]["full"]["priced"] == pytest.approx(full["sent"] * 1e-3)
    shown = cli("tax", path, "--prices", "1000,10", code=0).out
    assert "$0.0" in shown
    assert "The engines counted 9 prompt tokens" in shown


def test_what_was_skipped_is_shown(cli: Cli) -> None:
    picture = {"role": "user", "content": [{"type": "image_url"}, "Look."]}
    path = written(cli, {"messages": [picture]}, {"event": "ping"}, {"event": "ping"})
    shown = cli("tax", path, code=0).out
    assert "not counted: 1 parts that are no text (image_url)" in shown
    assert "skipped: line 2 and 1 more, an object with event" in shown
    told = cli("tax", path, "--json", code=0).json
    assert told["skipped"]["count"] == 2
    assert told["parts_not_counted"] == {"image_url": 1}


def test_a_run_of_the_log_comes_before_a_file_of_its_name(cli: Cli) -> None:
    cli("run", cli.flow("async def flow(): ...\n"), "--run", "both", code=0)
    written(cli, HISTORY, name="both")
    assert "Tax of run both" in cli("tax", "both", code=0).out
    assert "Who&When" in cli("tax", "./both", code=0).out
    written(cli, HISTORY, name="other")
    assert "Who&When" in cli("tax", "other", code=0).out
    assert "there is no run 'absent'" in cli("tax", "absent", code=2).err
    assert "Tax of run both" in cli("tax", "both", "--prices", "1,0.1", code=0).out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"run,agent,text\n", "line 1: not JSON"),
        (b'{"spans": []}', "an object with spans. Known are"),
        (b'{"messages": []}\n' * 16 + b"{", "line 17: not JSON"),
        (b'{"messages": "\xff"}', "line 1: not UTF-8"),
        (b'{"messages": "\xed\xa0\x80"}', "line 1: not UTF-8"),
        (b'{"history": [{"role": "a", "content": 1}]}', "history[0]: content is a number"),
    ],
)
def test_a_file_that_is_no_log_of_messages(cli: Cli, data: bytes, said: str) -> None:
    path = cli.folder / "bad"
    path.write_bytes(data)
    for options in ((), ("--json",)):
        done = cli("tax", path, *options, code=2)
        assert said in done.err
        assert str(path) in done.err
        assert done.out == ""


def test_a_folder_a_huge_line_and_a_price_that_is_none(cli: Cli) -> None:
    assert "Is a directory" in cli("tax", cli.folder, code=2).err
    huge = cli.folder / "huge"
    with huge.open("wb") as file:
        file.truncate(100 << 20)
    assert "line 1: more than 64 MiB" in cli("tax", huge, code=2).err
    for prices in ("1", "a,b", "1,-1", "nan,1", "1,2,3"):
        assert "not two prices" in cli("tax", huge, "--prices", prices, code=2).err


def test_names_and_texts_that_terminals_obey_or_cannot_show(cli: Cli) -> None:
    said = [{"role": "a\x1b[2J\n\ud800", "content": "\ud800"}, {"role": "b", "content": None}]
    path = written(cli, {"history": said}, name="sly")
    shown = cli("tax", path, code=0).out
    assert "\x1b" not in shown
    assert len(cli("tax", path, "--json", code=0).json["edges"]) > 0


def test_a_file_that_is_not_there_is_said(cli: Cli) -> None:
    assert "there is no file './nope.jsonl'" in cli("tax", "./nope.jsonl", code=2).err
    assert "there is no file 'nope.json'" in cli("tax", "nope.json", code=2).err
