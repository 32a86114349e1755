"""Names and plans, as models write them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from accord.errors import UsageError
from accord.team import roster as roster_module
from accord.team.plan import TURNS, Assignment, Plan, read_plan
from accord.team.roster import Roster, UnknownNameError

ROSTER = Roster(["Senior Data Researcher", "Data Engineer", "writer_1", "writer_11"], "team")


@pytest.mark.parametrize(
    "text",
    [
        "Senior Data Researcher",
        "senior data researcher",
        '"Senior Data Researcher"\n',
        "senior_data_researcher",
        "  **Senior-Data-Researcher** ",
        "Senior Data Researcher: do x",
        "Senior Data Researcher, do x",
        "Researcher",
        "Senior Data Reseacher",
    ],
)
def test_a_name_is_found_however_it_is_written(text: str) -> None:
    """MGR-3."""
    assert ROSTER.match(text) == "Senior Data Researcher"


def test_what_follows_a_name_is_what_to_do() -> None:
    """MGR-3."""
    assert ROSTER.split("'senior data researcher': do x: now") == (
        "Senior Data Researcher",
        "do x: now",
    )
    assert ROSTER.split("writer 11 - go on") == ("writer_11", "go on")
    assert ROSTER.split("writer 1 goes on") == ("writer_1", "goes on")


@pytest.mark.parametrize("text", ["Data", "data: do x", "writer"])
def test_what_fits_several_is_an_error_that_lists_the_roster(text: str) -> None:
    """MGR-3."""
    with pytest.raises(UnknownNameError, match=r"may mean .*Data Engineer.*writer_11"):
        ROSTER.match(text)


@pytest.mark.parametrize("text", ["", "  ", '""', "Nobody", "writer 2", "writer 111", "日本語"])
def test_what_fits_nobody_is_an_error_that_lists_the_roster(text: str) -> None:
    """MGR-3: and figures are never guessed at."""
    with pytest.raises(UnknownNameError, match="there are: Senior Data Researcher, Data Engineer"):
        ROSTER.match(text)


@pytest.mark.parametrize("names", [["a", "a"], ["a b", "A_b"], ["x", "—"]])
def test_names_that_could_not_be_told_apart_are_refused(names: list[str]) -> None:
    with pytest.raises(UsageError, match="tell"):
        Roster(names, "team")


@pytest.mark.parametrize(
    "names",
    [["\xe9", "e\u0301"], ["ann", "\uff41\uff4e\uff4e"], ["\u0130", "i\u0307"], ["\ufb01x", "fix"]],
)
def test_names_that_look_alike_are_refused_with_what_each_is(names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Roster(names, "team")
    assert all(ascii(name) in str(caught.value) for name in names)


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["\xe9", "bob"], "e\u0301"),
        (["e\u0301", "bob"], "\xc9"),
        (["ann", "bob"], "\uff21nn"),
        (["ann", "bob"], "ann\u200b"),
        (["रमा", "रमी"], "रमा"),
        (["का", "की"], "का"),
        (["😀", "😎"], "😀"),
        (["👍", "👍🏽"], "👍"),
        (["❤\ufe0f", "★"], "❤"),
        (["C++", "C#", "C"], "c++"),
        (["C#", "C++", "C"], "C\uff03"),
        (["C", "C++", "C#"], "c"),
        (["R&D", "RD"], "r&d"),
    ],
)
def test_marks_and_signs_tell_names_apart_however_they_are_encoded(
    names: list[str], written: str
) -> None:
    """MGR-3."""
    roster = Roster(names, "team")
    assert all(roster.match(name) == name for name in names)
    assert roster.match(written) == names[0]
    assert roster.split(f"**{written}**: go on") == (names[0], "go on")
    assert roster.split(f"{written}\uff1ago on") == (names[0], "go on")
    assert roster.mentioned(f"I think that {written} should go on.") == [names[0]]


def test_signs_are_nothing_where_names_differ_without_them() -> None:
    """MGR-3."""
    assert Roster(["ann", "bob"], "team").split("👉 #ann: go on") == ("ann", "go on")


PEOPLE = Roster(["Ann", "Bob Stone"], "team")
ANN = Assignment(to="Ann", instruction="do x")


@pytest.mark.parametrize(
    "reply",
    [
        Plan(turns=["Ann: do x"]),
        "Ann: do x",
        "- ann: do x",
        '{"turns": ["Ann: do x"]}',
        '{"coworker": "ann", "task": "do x"}',
        '{"coworker": "Ann\\n", "task": {"description": "do x"}, "context": "c"}',
        '[{"name": "Ann", "instruction": "do x"}]',
        '{"plan": [{"agent": "Ann", "do": "do x"}]}',
        '{"Ann": "do x"}',
        '```json\n{"delegations": [{"to": "Ann", "task": "do x"}]}\n```',
        msgspec.json.encode('{"coworker": "Ann", "task": "do x"}').decode(),
        msgspec.json.encode(msgspec.json.encode('{"turns": ["Ann: do x"]}').decode()).decode(),
    ],
)
def test_a_plan_is_read_however_it_is_put(reply: Any) -> None:
    """MGR-4."""
    planned = read_plan(reply, PEOPLE)
    assert planned.assignments == (ANN,)
    assert not planned.problem


def test_a_name_in_a_sentence_is_a_choice_if_it_is_the_only_one() -> None:
    assert read_plan("I think bob stone should go on.", PEOPLE).assignments == (
        Assignment(to="Bob Stone"),
    )
    both = read_plan("I think Ann or Bob Stone should go on.", PEOPLE)
    assert not both.assignments
    assert "may mean Ann, Bob Stone" in both.problem


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "{}",
        "[]",
        '{"coworker": null}',
        '{"task": {"description": "x"}}',
        '{"coworker": {}, "task": []}',
        '{"turns": [1, null, {}]}',
        '"{\\"coworker\\": null}"',
        "[[[[[[[[[[]]]]]]]]]]",
        "{" * 5000,
        "[" * 5000,
        '{"turns": ["Nobody: do x"]}',
        "\ud800",
    ],
)
def test_a_malformed_plan_is_told_what_is_wrong(reply: str) -> None:
    """MGR-4: no crash, and something to say."""
    planned = read_plan(reply, PEOPLE)
    assert not planned.assignments
    assert planned.problem


@pytest.mark.parametrize("reply", ['{"done": true}', "DONE", "Done.", Plan(turns=[], done=True)])
def test_a_plan_may_say_that_nothing_is_left(reply: Any) -> None:
    assert read_plan(reply, PEOPLE).done


def compared(reply: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many characters are looked at to find names in ``reply``."""
    looked: list[int] = []
    tokens = roster_module._tokens

    def counting(text: str) -> Any:
        looked.append(len(text))
        return tokens(text)

    monkeypatch.setattr(roster_module, "_tokens", counting)
    assert read_plan(reply, PEOPLE).problem
    return sum(looked)


@pytest.mark.parametrize("size", [40_000, 400_000])
@pytest.mark.parametrize(
    "reply",
    [
        lambda size: "x" * size,
        lambda size: "Nobody: x\n" * (size // 10),
        lambda size: msgspec.json.encode({"turns": ["Nobody: x"] * (size // 12)}).decode(),
        lambda size: msgspec.json.encode([{"z": 1}] * (size // 8)).decode(),
        lambda size: Plan(turns=["x" * size]),
        lambda size: Plan(turns=["Ann: x"] * (size // 6)),
    ],
)
def test_what_is_read_of_a_reply_is_bounded(
    reply: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MGR-4."""
    assert compared(reply(size), monkeypatch) < 100_000


def test_a_long_plan_is_read_up_to_a_bound() -> None:
    """MGR-4."""
    planned = read_plan(Plan(turns=["Ann: do x"] * 500), PEOPLE)
    assert planned.assignments == (ANN,) * (TURNS + 2)
    assert "only the first" in planned.problem
