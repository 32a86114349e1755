"""How many tokens does a structured value cost in a prompt, and what do peers spend on it?

What the agents of a team said is written five ways: as LangChain's and AutoGen's messages dump
themselves (`model_dump_json`: what a prompt holds where a history is put into it as it is), as
indented JSON, as compact JSON, and by `encode`, which chooses by our estimate. All are counted by
the tokenizer of the local model. Nothing makes a text smaller than itself, so the more of a value
is prose, the less there is to save: the public traces (Who&When) show how little. They are read
from `$ACCORD_TRACES`, or else `../shared/traces`, and left out where there are none.
"""

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from accord.engine.local import LocalEngine
from accord.tokens.encode import encode
from bench.harness import Row

QUICK = False  # needs the local model
TRACES = Path(os.environ.get("ACCORD_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
TRACES_OF = {
    "Magentic-One": "who_and_when/Hand-Crafted-*.json",
    "CaptainAgent": "who_and_when/Algorithm-Generated-*.json",
}

Tokenizer = Callable[[str], Awaitable[int]]
Message = dict[str, Any]
"""Who said what: `source`, and `content`, which is a text or structured."""

PLAN = {
    "title": "Heat pumps in old buildings",
    "audience": "owners of houses built before 1970, without technical training",
    "sections": [
        {"id": "s1", "heading": "What a heat pump does", "owner": "writer", "words": 250},
        {"id": "s2", "heading": "Which buildings are fit for one", "owner": "writer", "words": 400},
        {"id": "s3", "heading": "What it costs to run", "owner": "writer", "words": 350},
        {"id": "s4", "heading": "Grants, and how to get them", "owner": "writer", "words": 300},
    ],
    "questions": [
        "At which flow temperature does efficiency fall below three?",
        "How often is the wiring of an old house too weak?",
        "What do owners say after the second winter?",
    ],
}
FINDINGS = [
    {"claim": claim, "source": source, "confidence": confidence}
    for claim, source, confidence in (
        (
            "Seasonal efficiency in 41 monitored houses was 3.1, and above 2.7 in nine of ten",
            "Fraunhofer ISE field test, 2020",
            0.92,
        ),
        (
            "Larger radiators in two or three rooms were enough to lower the flow to 55 degrees",
            "Fraunhofer ISE field test, 2020",
            0.85,
        ),
        (
            "No type or age of house in the trial of 742 homes was found to be unsuitable",
            "Electrification of Heat, Energy Systems Catapult",
            0.9,
        ),
        (
            "Running costs equal those of gas when electricity is less than 3 times the price",
            "Agora Energiewende, 2022",
            0.7,
        ),
        (
            "Noise at three metres stays under 45 dB(A), given a stand that does not vibrate",
            "Manufacturers' data sheets, five models",
            0.65,
        ),
        (
            "One house in eight needed a new distribution board before the work could begin",
            "Electrification of Heat, Energy Systems Catapult",
            0.6,
        ),
        (
            "85% of owners are content after two winters; the others name noise and settings",
            "Survey by Nesta, 2,500 households",
            0.8,
        ),
        (
            "Grants cover up to 70% of the cost, and must be granted before an order is signed",
            "KfW programme 458, leaflet of 2024",
            0.95,
        ),
    )
]
REMARKS = [
    {"section": section, "severity": severity, "remark": remark, "fix": fix}
    for section, severity, remark, fix in (
        ("s1", "minor", '"COP" is used before it is explained', "explain it in the first line"),
        ("s2", "major", "The claim on radiators has no source", "cite the field test of 2020"),
        ("s3", "major", "Prices are two years old", "use this year's, and say of which month"),
        ("s3", "minor", "The table has no unit for heat", "add kWh to the head of the column"),
        ("s4", "blocker", "Owners are told to order first", "the grant must come first: turn it"),
    )
]  # fmt: skip


def report() -> list[Message]:
    """Four agents on a report: a plan, findings, a draft of one section, remarks on it."""
    draft = (
        "A heat pump moves heat instead of making it. For each unit of electricity, three units of "
        "heat reach the rooms.\n\nOld houses can have one too. In a trial with 742 homes, none was "
        "found to be unsuitable; in some, two or three radiators had to be replaced."
    )
    return [
        {"source": "planner", "content": PLAN},
        {"source": "researcher", "content": FINDINGS},
        {"source": "writer", "content": {"section": "s2", "draft": draft, "open": []}},
        {"source": "reviewer", "content": REMARKS},
    ]


def contributions(workers: int = 64) -> list[Message]:
    """What each worker of a wide team found in its share of the documents."""
    rng = random.Random(64)
    what = (
        "The lease ends early",
        "A payment is late",
        "No insurance is named",
        "Nothing is amiss",
    )
    return [
        {
            "source": f"worker-{number}",
            "content": {
                "document": f"lease-{rng.randrange(1000, 9999)}.pdf",
                "finding": f"{rng.choice(what)}: see clause {rng.randrange(1, 40)}",
                "page": rng.randrange(1, 60),
                "confidence": round(rng.uniform(0.5, 1), 2),
                "needs_review": rng.random() < 0.2,
            },
        }
        for number in range(1, workers + 1)
    ]


def trace(path: Path) -> list[Message]:
    """A recorded run of a multi-agent framework: texts, most of them long."""
    history = json.loads(path.read_text(encoding="utf-8"))["history"]
    return [
        {"source": said.get("name", said["role"]), "content": said["content"]} for said in history
    ]


def langchain(messages: list[Message]) -> str:
    """As LangChain's messages dump themselves; structured content is text, so JSON within JSON."""
    return _compact(
        [
            {
                "content": content
                if isinstance(content := said["content"], str)
                else _compact(content),
                "additional_kwargs": {"refusal": None},
                "response_metadata": {
                    "token_usage": {
                        "completion_tokens": 214,
                        "prompt_tokens": 1180 + number,
                        "total_tokens": 1394 + number,
                        "completion_tokens_details": None,
                        "prompt_tokens_details": None,
                    },
                    "model_provider": "openai",
                    "model_name": "gpt-4o-mini-2024-07-18",
                    "system_fingerprint": "fp_560af6e559",
                    "id": f"chatcmpl-{_id(number)}",
                    "finish_reason": "stop",
                    "logprobs": None,
                },
                "type": "ai",
                "name": said["source"],
                "id": f"run--{_id(number)}-0",
                "tool_calls": [],
                "invalid_tool_calls": [],
                "usage_metadata": {
                    "input_tokens": 1180 + number,
                    "output_tokens": 214,
                    "total_tokens": 1394 + number,
                },
            }
            for number, said in enumerate(messages)
        ]
    )


def autogen(messages: list[Message]) -> str:
    """As AutoGen's messages dump themselves."""
    return _compact(
        [
            {
                "id": _id(number),
                "source": said["source"],
                "models_usage": {"prompt_tokens": 1180 + number, "completion_tokens": 214},
                "metadata": {},
                "created_at": f"2025-11-03T09:{number % 60:02}:07.{number:06}Z",
                "content": said["content"],
                "type": "TextMessage",
            }
            for number, said in enumerate(messages)
        ]
    )


def run() -> list[Row]:
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    engine = LocalEngine(slots=1, window=512)
    try:
        count = (await engine.start()).tokenizer
        assert count is not None
        rows: list[Row] = []
        for name, values in _cases().items():
            rows += await _rows(name, values, count)
        return rows
    finally:
        await engine.close()
        engine.unload()


def _cases() -> dict[str, list[list[Message]]]:
    alone = [[said] for said in report() + contributions()]
    cases = {"report": [report()], "64 workers": [contributions()], "a message at a time": alone}
    for name, pattern in TRACES_OF.items():
        if paths := sorted(TRACES.glob(pattern)):
            cases[name] = [trace(path) for path in paths]
        else:
            print(f"{name}: left out, no {TRACES / pattern}")
    return cases


async def _rows(name: str, values: list[list[Message]], count: Tokenizer) -> list[Row]:
    sizes = {form: [await count(write(value)) for value in values] for form, write in FORMS}
    encoded = sizes.pop("encode")
    rows = [Row(what=f"{name}: by encode", measured=sum(encoded), unit="tokens")]
    texts = [said["content"] for value in values for said in value]
    if all(isinstance(text, str) for text in texts):
        prose = sum([await count(text) for text in texts])
        rows.append(Row(what=f"{name}: its texts alone", measured=prose, unit="tokens"))
    for form, target in TARGETS.items():
        what = f"{name}: saved of {sum(sizes[form]):,} as {form}"
        saved = 100 * (1 - sum(encoded) / sum(sizes[form]))
        rows.append(Row(what=what, measured=saved, unit="%", target=target, at_least=True))
    larger = sum(ours > json for ours, json in zip(encoded, sizes["compact JSON"], strict=True))
    what = f"{name}: larger than as compact JSON, of {len(values)}"
    return [*rows, Row(what=what, measured=larger, unit="values", target=0)]


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _id(number: int) -> str:
    return str(UUID(int=random.Random(number).getrandbits(128), version=4))


FORMS: list[tuple[str, Callable[[Any], str]]] = [
    ("LangChain's messages", langchain),
    ("AutoGen's messages", autogen),
    ("indented JSON", _indented),
    ("compact JSON", _compact),
    ("encode", encode),
]
TARGETS = {
    "LangChain's messages": 40,
    "AutoGen's messages": 40,
    "indented JSON": 25,
    "compact JSON": None,
}
