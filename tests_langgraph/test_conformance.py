"""LangGraph's own conformance suite, all capabilities, on each kind of log."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.report import CapabilityReport

from accord.langgraph import AccordSaver


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_conformance(kind: str, tmp_path: Path) -> None:
    logs = iter(range(len(Capability)))

    @checkpointer_test(name=f"AccordSaver on {kind}")
    async def fresh() -> AsyncGenerator[AccordSaver, None]:
        path = "memory" if kind == "memory" else str(tmp_path / f"{next(logs)}.sqlite3")
        async with AccordSaver(path) as saver:
            yield saver

    report: CapabilityReport = asyncio.run(validate(fresh))
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert {name for name, result in report.results.items() if result.passed} == {
        capability.value for capability in Capability
    }
