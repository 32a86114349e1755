"""One scale, larger is more urgent; each engine gets it in its own words, or not at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from accord.engine.base import Message, Request
from accord.engine.openai import OpenAIEngine
from accord.testing.stub import StubServer, error, raw

VLLM = ({"id": "m", "owned_by": "vllm"},)
SGLANG = ({"id": "m", "owned_by": "sglang"},)
JSON = {"content-type": "application/json"}


def info(**said: Any) -> Any:
    return {"/get_server_info": raw(json.dumps(said).encode(), headers=JSON)}


def sent(stub: StubServer, *priorities: int, **options: Any) -> list[dict[str, Any]]:
    """What a server is sent of requests of these priorities."""

    async def main() -> list[dict[str, Any]]:
        async with stub:
            engine = OpenAIEngine(stub.url, **options)
            await engine.start()
            for priority in priorities:
                request = Request(messages=(Message("user", "q"),), priority=priority)
                async for _ in engine.generate(request):
                    pass
            await engine.close()
            names = ("priority", "service_tier")
            return [
                {name: each.body[name] for name in names if name in each.body}
                for each in stub.requests
            ]

    return asyncio.run(main())


def test_vllm_takes_the_lower_number_first() -> None:
    bodies = sent(StubServer(models=VLLM), 0, 3, -2)
    assert bodies == [{}, {"priority": -3}, {"priority": 2}]


def test_a_vllm_without_priorities_refuses_once() -> None:
    stub = StubServer(models=VLLM)
    stub.script(error(400, "Got priority -3 but Priority scheduling is not enabled."))
    with pytest.warns(UserWarning, match="'priority'") as said:
        assert sent(stub, 3, 3) == [{"priority": -3}, {}, {}]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("said", "body"),
    [
        ({}, {}),
        ({"enable_priority_scheduling": False}, {}),
        ({"enable_priority_scheduling": True}, {"priority": 3}),
        (
            {
                "enable_priority_scheduling": True,
                "schedule_low_priority_values_first": True,
            },
            {"priority": -3},
        ),
    ],
)
def test_sglang_says_which_number_goes_first(said: Any, body: Any) -> None:
    assert sent(StubServer(models=SGLANG, routes=info(**said)), 3) == [body]


def test_sglang_says_what_its_cache_holds() -> None:
    async def main() -> None:
        async with StubServer(models=SGLANG, routes=info(max_total_num_tokens=4096)) as stub:
            engine = OpenAIEngine(stub.url)
            assert (await engine.start()).kv_tokens == 4096
            await engine.close()

    asyncio.run(main())


def test_hosted_apis_have_prices_for_it_so_it_has_to_be_asked_for() -> None:
    assert sent(StubServer(), 3, 0, -1) == [{}, {}, {}]
    tiers = sent(StubServer(), 3, 0, -1, service_tiers=True)
    assert tiers == [{"service_tier": "priority"}, {}, {"service_tier": "flex"}]


def test_what_a_user_puts_into_the_body_stays() -> None:
    async def main() -> list[Any]:
        async with StubServer(models=VLLM) as stub:
            engine = OpenAIEngine(stub.url)
            await engine.start()
            request = Request(messages=(), priority=3, extra={"priority": 7})
            async for _ in engine.generate(request):
                pass
            await engine.close()
            return [each.body["priority"] for each in stub.requests]

    assert asyncio.run(main()) == [7]


def test_an_engine_that_refuses_is_known_by_what_it_does_not_say() -> None:
    async def main(**options: Any) -> bool:
        async with StubServer(**options) as stub:
            engine = OpenAIEngine(stub.url)
            found = await engine.start()
            await engine.close()
            return found.refuses

    assert asyncio.run(main())
    assert not asyncio.run(main(models=VLLM))
