"""``accord calibrate``: an engine's profile in a file that ``--engine sim:FILE`` takes."""

from __future__ import annotations

import pytest

from accord.engine.sim.profile import load_profile
from accord.testing.stub import StubServer
from tests.cli.command import Cli


def test_an_engine_is_measured_and_its_profile_loads(cli: Cli) -> None:
    done = cli("calibrate", "sim:8b", "--quick", "--concurrency", "2", code=0)
    assert "round 1 of 1" in done.err
    assert "Off by" in done.out
    profile = load_profile(cli.folder / "profile.json")
    assert profile.name == "profile"
    assert "sim:8b" in profile.source
    assert profile.cache == "blocks"
    assert profile.fit is not None
    assert profile.fit.points > 4
    assert "answers" in cli("doctor", "--engine", "sim:profile.json", code=0).out


def test_one_document(cli: Cli) -> None:
    arguments = ("--quick", "--json", "--out", "x.json", "--name", "mine", "--concurrency", "1")
    done = cli("calibrate", "sim:8b", *arguments, "--kv-tokens", "9000", code=0)
    assert done.json["name"] == "mine"
    assert done.json["kv_tokens"] == 9000
    assert load_profile(cli.folder / "x.json").name == "mine"


def test_a_server_whose_replies_are_too_short_is_told(cli: Cli, stub: StubServer) -> None:
    done = cli("calibrate", stub.url, "--quick", "--concurrency", "2", code=2)
    assert "too few to fit a profile to" in done.err
    assert not (cli.folder / "profile.json").exists()


def test_no_engine_there(cli: Cli) -> None:
    done = cli("calibrate", "http://127.0.0.1:9/v1", code=1)
    assert "no engine at http://127.0.0.1:9/v1" in done.err
    assert not (cli.folder / "profile.json").exists()


@pytest.mark.parametrize("out", ["nowhere/profile.json", "."])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    cli: Cli, stub: StubServer, out: str
) -> None:
    done = cli("calibrate", stub.url, "--out", out, code=2)
    assert "cannot be written; name another file with --out FILE" in done.err
    assert not stub.requests


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "ENGINE"),
        (("nonsense",), "no engine is called 'nonsense'"),
        (("local", "--concurrency", "0"), "at least 1"),
        (("local", "--kv-tokens", "7"), "at least 512"),
        (("local", "--batch-tokens", "-1"), "at least 1"),
        (("local", "--model", "x"), "takes no model name"),
    ],
)
def test_what_makes_no_sense_is_told(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    assert said in cli("calibrate", *arguments, code=2).err
