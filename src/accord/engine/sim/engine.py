"""The simulated engine: replicas behind the one-method door, on the running loop's clock.

On a virtual loop its minutes take milliseconds, and the same requests at the same times get the
same answers at the same times. On a real loop it takes the time that it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from accord.engine.base import (
    Capabilities,
    Reply,
    TextDelta,
    Timings,
    Usage,
    identity_of_its_own,
)
from accord.engine.prefix import rendered
from accord.engine.sim.replica import Counters, Job, Replica, soon_s
from accord.engine.sim.reply import Replies, default_reply, words
from accord.errors import (
    ContextTooLongError,
    EngineTimeoutError,
    EngineUnavailableError,
    RateLimitedError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from accord.engine.base import Request
    from accord.engine.sim.profile import Profile

DrawBy = Literal["prompt", "agent"]


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often a request goes wrong, each as a share of all; and how.

    ``slow`` requests are held back for ``slow_s`` before they begin, as by a replica that has to
    wake up; ``refused`` ones are 429 with a retry-after of a second, ``error`` is a 500,
    ``timeout`` answers nothing for ``timeout_s``, ``disconnect`` ends in the middle of a reply.
    """

    slow: float = 0.0
    slow_s: float = 30.0
    refused: float = 0.0
    error: float = 0.0
    timeout: float = 0.0
    timeout_s: float = 120.0
    disconnect: float = 0.0

    def __post_init__(self) -> None:
        shares = (self.slow, self.refused, self.error, self.timeout, self.disconnect)
        if not (all(each >= 0 for each in shares) and sum(shares) <= 1):
            msg = f"shares of faults are at least 0 and together at most 1, not {self}"
            raise UsageError(msg)
        if not all(0 <= each < 1e9 for each in (self.slow_s, self.timeout_s)):
            raise UsageError(f"slow_s and timeout_s are times of at least 0, not {self}")

    def drawn(self, random: Random) -> str:
        """Which of them hits; empty for none."""
        point = random.random()
        for name in ("slow", "refused", "error", "timeout", "disconnect"):
            point -= getattr(self, name)
            if point < 0:
                return name
        return ""


class SimEngine:
    """``replicas`` engines like ``profile``.

    ``replies`` gives the text, or the number of tokens, of each reply. What it and ``faults`` draw
    follows from the ``seed`` and, by ``draw_by``, from the ``prompt`` and how often it was asked
    before; or from the ``agent`` and how many other prompts it has sent: then prompts may differ
    and replies not, and one that is asked again gets the same reply, if not the same fault.
    A request goes to the replica that holds most of its prompt, unless that has much more to do.
    Raises UsageError for fewer than one replica.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        replicas: int = 1,
        seed: int = 0,
        replies: Replies = default_reply,
        faults: Faults | None = None,
        draw_by: DrawBy = "prompt",
        name: str = "",
    ) -> None:
        if type(replicas) is not int or replicas < 1:
            msg = f"a simulated engine has at least one replica, not {replicas!r}"
            raise UsageError(msg)
        self.profile = profile
        self.name = name or f"sim:{profile.name}"
        is_known = replies is default_reply
        self.identity = (
            f"{self.name} {seed} {draw_by} {profile}"
            if is_known
            else identity_of_its_own(self.name)
        )
        self._count = replicas
        self._seed = seed
        self._replies = replies
        self._faults = faults or Faults()
        self._draw_by: DrawBy = draw_by
        self._asked: Counter[str] = Counter()
        self._numbers: dict[str, dict[str, int]] = {}
        """Of each agent's prompts, in the order in which they first came."""
        self._fleet: _Fleet | None = None

    async def start(self) -> Capabilities:
        profile = self.profile

        async def count(text: str) -> int:
            return profile.tokens(len(text.encode("utf-8", "surrogatepass")))

        return Capabilities(
            model=profile.name,
            concurrency=profile.concurrency * self._count,
            window=profile.window,
            kv_tokens=profile.kv_tokens * self._count,
            prefix_cache=profile.cache != "none",
            slots=profile.cache == "slots",
            priority="higher_first",
            tokenizer=count,
            prices=profile.prices,
        )

    async def generate(self, request: Request) -> AsyncGenerator[TextDelta | Reply]:
        """Yield the first token's text, the rest, and the reply."""
        profile, loop = self.profile, asyncio.get_running_loop()
        prompt = rendered(request)
        for_reply, for_fault = self._drawn(request.agent, prompt)
        job, reply = self._job(request, prompt, for_reply)
        fault = self._faults.drawn(for_fault)
        if fault in ("refused", "error", "timeout"):
            await self._fail(fault)
        fleet = self._running(loop)
        await asyncio.sleep(profile.request_s + (self._faults.slow_s if fault == "slow" else 0))
        await asyncio.sleep(fleet.door_s())
        arrival = _Arrival(job, loop)
        fleet.submit(arrival)
        try:
            await arrival.first
            cut = max(1, len(reply.text) // job.length)
            yield TextDelta(reply.text[:cut])
            if fault == "disconnect":
                msg = f"{self.name} closed the connection in the middle of a reply (a drawn fault)"
                raise EngineUnavailableError(msg)
            await arrival.ended
        finally:
            fleet.leave(arrival)
        if reply.text[cut:]:
            yield TextDelta(reply.text[cut:])
        yield _measured(job, reply)

    async def close(self) -> None:
        """Forget the loop, and with it what the replicas hold."""
        self._fleet = None

    def counters(self) -> Counters:
        """What the replicas have done since the loop began, together."""
        replicas = self._fleet.replicas if self._fleet is not None else []
        return reduce(Counters.plus, (each.counters for each in replicas), Counters())

    def check_integrity(self) -> None:
        """Count everything anew; raises AssertionError where the books are wrong."""
        for replica in self._fleet.replicas if self._fleet is not None else []:
            replica.check_integrity()

    def _drawn(self, agent: str, prompt: bytes) -> tuple[Random, Random]:
        """What the reply and what the fault follows from."""
        digest = blake2b(prompt, digest_size=16).hexdigest()
        self._asked[digest] += 1
        attempt = f"{self._seed}/{digest}/{self._asked[digest]}"
        if self._draw_by == "prompt":
            return Random(attempt), Random(f"{attempt}/fault")
        numbers = self._numbers.setdefault(agent, {})
        number = numbers.setdefault(digest, len(numbers))
        reply = f"{self._seed}/{agent}/{number}"
        return Random(reply), Random(f"{reply}/fault/{self._asked[digest]}")

    def _job(self, request: Request, prompt: bytes, random: Random) -> tuple[Job, Reply]:
        profile = self.profile
        size = profile.tokens(len(prompt)) + profile.template_tokens
        most = min(profile.window, profile.kv_tokens // profile.block_tokens * profile.block_tokens)
        if size >= most:
            msg = (
                f"{self.name} holds {most:,} tokens and the prompt of {request.agent!r} has "
                f"{size:,}: give it less to read, or take an engine with a larger window"
            )
            raise ContextTooLongError(msg, status=400)
        most -= size
        longest = most if request.max_tokens is None else max(1, min(request.max_tokens, most))
        reply, length = self._reply(request, random, longest)
        text = reply.text.encode("utf-8", "surrogatepass")
        job = Job(prompt=prompt, reply=text, size=size, length=length, priority=request.priority)
        return job, reply

    def _reply(self, request: Request, random: Random, longest: int) -> tuple[Reply, int]:
        profile = self.profile
        said: Any = self._replies(request, random)
        if isinstance(said, Reply):
            size = len(said.text.encode("utf-8", "surrogatepass"))
            return said, max(1, min(profile.tokens(size), longest))
        if isinstance(said, int):
            length = max(1, min(said, longest))
            text, cut = words(int(length * profile.bytes_a_token), random), length == longest
        elif isinstance(said, str):
            whole = said.encode("utf-8", "surrogatepass")
            length = max(1, min(profile.tokens(len(whole)), longest))
            cut = profile.tokens(len(whole)) > longest
            kept = whole[: int(length * profile.bytes_a_token)]
            text = kept.decode("utf-8", "ignore") if cut else said
        else:
            raise UsageError(f"replies gives a text, a number of tokens or a Reply, not {said!r}")
        reason = "length" if cut else "stop"
        return Reply(text=text, finish_reason=reason, model=profile.name), length

    async def _fail(self, fault: str) -> None:
        await asyncio.sleep(self.profile.request_s)
        match fault:
            case "refused":
                raise RateLimitedError(
                    f"{self.name} is asked too often (a drawn fault)", retry_after_s=1.0
                )
            case "error":
                raise EngineUnavailableError(f"{self.name} failed (a drawn fault)", status=500)
            case _:
                await asyncio.sleep(self._faults.timeout_s)
                raise EngineTimeoutError(
                    f"{self.name} said nothing for {self._faults.timeout_s:g} s (a drawn fault)"
                )

    def _running(self, loop: asyncio.AbstractEventLoop) -> _Fleet:
        if self._fleet is None or self._fleet.loop is not loop:
            self._fleet = _Fleet(self.profile, self._count, loop)
        return self._fleet


class _Arrival:
    """A job, and who waits for it."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.first: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.replica: _Driver | None = None


class _Driver:
    """A replica and its alarm clock."""

    def __init__(self, replica: Replica, loop: asyncio.AbstractEventLoop) -> None:
        self.replica = replica
        self._loop = loop
        self._arrivals: dict[int, _Arrival] = {}
        self._news: list[tuple[float, asyncio.Future[None]]] = []
        """What will have happened when the step at work is over."""
        self._alarm: asyncio.TimerHandle | None = None

    def submit(self, arrival: _Arrival) -> None:
        self._advance()
        self.replica.submit(arrival.job, self._loop.time())
        self._arrivals[arrival.job.number] = arrival
        self._tick()

    def leave(self, arrival: _Arrival) -> None:
        if self._arrivals.pop(arrival.job.number, None) is not None:
            self._advance()
            self.replica.cancel(arrival.job)
            self._tick()

    def _tick(self) -> None:
        self._advance()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        at_s = min((time for time, _ in self._news), default=inf)
        at_s = min(at_s, self.replica.wake_s())
        if at_s < inf:
            now_s = self._loop.time()
            self._alarm = self._loop.call_at(max(at_s, now_s + soon_s(now_s)), self._tick)

    def _advance(self) -> None:
        now_s = self._loop.time()
        now_s += soon_s(now_s)
        for job in self.replica.advance(now_s):
            arrival = self._arrivals.get(job.number)
            if arrival is None:
                continue
            if job.first_s is not None and not arrival.first.done():
                self._news.append((job.first_s, arrival.first))
            if job.ended_s is not None:
                self._news.append((job.ended_s, arrival.ended))
                del self._arrivals[job.number]
        due = [future for time, future in self._news if time <= now_s]
        self._news = [each for each in self._news if each[0] > now_s]
        for future in due:
            if not future.done():
                future.set_result(None)


class _Fleet:
    """The replicas, on one loop."""

    def __init__(self, profile: Profile, count: int, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.replicas = [Replica(profile) for _ in range(count)]
        self._drivers = [_Driver(replica, loop) for replica in self.replicas]
        self._profile = profile
        self._door_free_s = 0.0

    def door_s(self) -> float:
        """How long one who comes now takes to get in, behind those before it."""
        now_s = self.loop.time()
        came_s = max(now_s, self._door_free_s)
        self._door_free_s = came_s + self._profile.door_s
        return came_s - now_s

    def submit(self, arrival: _Arrival) -> None:
        arrival.replica = self._chosen(arrival.job)
        arrival.replica.submit(arrival)

    def leave(self, arrival: _Arrival) -> None:
        if arrival.replica is not None:
            arrival.replica.leave(arrival)

    def _chosen(self, job: Job) -> _Driver:
        if len(self._drivers) == 1:
            return self._drivers[0]
        # What is cached there is work that is not done again; so is it weighed.
        return min(
            self._drivers, key=lambda each: each.replica.load - each.replica.kv.match(job.prompt)
        )


def _measured(job: Job, reply: Reply) -> Reply:
    """``reply`` with what the engine says of it."""
    assert job.begun_s is not None
    assert job.first_s is not None
    assert job.ended_s is not None
    return replace(
        reply,
        usage=Usage(prompt=job.size, completion=job.length, cached=job.hit or 0),
        timings=Timings(
            queue_s=job.begun_s - job.arrived_s,
            prefill_s=job.first_s - job.begun_s,
            decode_s=job.ended_s - job.first_s,
        ),
    )
