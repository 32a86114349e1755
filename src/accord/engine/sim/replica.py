"""One replica of a simulated engine: continuous batching over a KV cache, without a clock.

The replica is told the time and says when it wants to be told again. Between two arrivals the
same sequences go through the same kind of step many times; all those steps are one *stretch*,
computed in closed form. A step that has begun is not changed by what arrives while it runs.

As in vLLM: sequences at work come first, one token each, and prompts are read in chunks with what
is left of the step; who waits is taken in by priority, then in order, while there is room; where
there is none, the last of the least urgent gives its blocks back and is computed anew later.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from accord.engine.prefix import PrefixTree
from accord.engine.sim.kv import Holding, cache_of
from accord.engine.sim.profile import Batch

if TYPE_CHECKING:
    from accord.engine.sim.profile import Profile

REMEMBERS = 32
"""Caches full of what has been computed, to tell what is computed again."""


def soon_s(now_s: float) -> float:
    """Times that are nearer to each other than this are the same: a float holds no more."""
    return 1e-9 + now_s * 1e-15


@dataclass(eq=False, kw_only=True)
class Job:
    """A request as the replica sees it. Sizes are tokens, times seconds of whoever tells them."""

    prompt: bytes
    reply: bytes
    size: int
    """Of the prompt."""
    length: int
    """Of the reply; at least 1."""
    priority: int = 0
    """Larger is more urgent."""
    number: int = 0
    arrived_s: float = 0.0
    begun_s: float | None = None
    first_s: float | None = None
    ended_s: float | None = None
    written: int = 0
    """Of the reply."""
    computed: int = 0
    """Of prompt and reply, in the cache."""
    hit: int | None = None
    """Of the prompt, found in the cache when it was first begun."""
    preempted: int = 0
    holding: Holding | None = None

    @property
    def left(self) -> int:
        """Tokens to compute before the next token of the reply."""
        return self.size + self.written - self.computed

    @property
    def todo(self) -> int:
        """Tokens to compute or write until the end."""
        return self.size + self.length - self.computed

    @property
    def order(self) -> tuple[int, int]:
        """The most urgent first, then the first to come."""
        return -self.priority, self.number


@dataclass(kw_only=True)
class Counters:
    """What a replica has done, in tokens and seconds."""

    requests: int = 0
    prefilled: int = 0
    """Computed of prompts, and again of what was preempted."""
    recomputed: int = 0
    """Of these, what had been in the cache before and was forgotten."""
    cached: int = 0
    written: int = 0
    preemptions: int = 0
    steps: int = 0
    stretches: int = 0
    busy_s: float = 0.0

    def plus(self, other: Counters) -> Counters:
        """The sum of two."""
        return Counters(**{key: value + getattr(other, key) for key, value in vars(self).items()})


@dataclass(kw_only=True)
class _Stretch:
    """Steps of one kind."""

    batch: Batch
    steps: int
    writing: list[Job]
    reading: list[tuple[Job, int]]
    """With the tokens that each step reads of it."""


@dataclass
class Replica:
    """Call :meth:`advance` before anything else at a new time, and :meth:`wake_s` after."""

    profile: Profile
    counters: Counters = field(default_factory=Counters)
    waiting: list[Job] = field(default_factory=list[Job])
    running: list[Job] = field(default_factory=list[Job])

    def __post_init__(self) -> None:
        self.kv = cache_of(self.profile)
        self._at_s = 0.0
        """Where the last step ended or will end."""
        self._stretch: _Stretch | None = None
        self._count = 0
        self.load = 0
        """Tokens still to be computed, of prompts, or written."""
        blocks = self.profile.kv_tokens // self.profile.block_tokens
        self._seen = PrefixTree(REMEMBERS * blocks, block_bytes=self.profile.block_bytes)
        """What has been computed: what of it is computed again was forgotten meanwhile."""

    def submit(self, job: Job, now_s: float) -> None:
        """``job`` arrives."""
        self._count += 1
        job.number, job.arrived_s = self._count, now_s
        self.counters.requests += 1
        self.load += job.todo
        insort(self.waiting, job, key=lambda each: each.order)
        self._stretch = None

    def cancel(self, job: Job) -> None:
        """``job`` is wanted no more. What was computed of it stays as cache."""
        if job in self.waiting:
            self.waiting.remove(job)
            self.load -= job.todo
        elif job in self.running:
            self._leave(job)
            self.load -= job.todo
        self._stretch = None

    def wake_s(self) -> float:
        """When to call :meth:`advance` if nothing else happens; infinite if nothing will."""
        if self._stretch is not None:
            return self._at_s + self.profile.steps_s(self._stretch.batch, self._stretch.steps)
        return self._at_s if self.waiting or self.running else inf

    def advance(self, now_s: float) -> list[Job]:
        """Do the steps that began before ``now_s``; gives the jobs with news.

        News is a first token or the end. Its time may be a little later than ``now_s``: a step ends
        when it ends.
        """
        news: list[Job] = []
        while True:
            if self._stretch is None:
                if not (self.waiting or self.running) or self._at_s > now_s + soon_s(now_s):
                    return news
                self._at_s = max(self._at_s, self._idle_until(now_s))
                self._stretch = self._plan()
                if self._stretch is None:
                    return news
            if now_s <= self._at_s + soon_s(now_s):
                return news
            stretch, self._stretch = self._stretch, None
            begun = self.profile.steps_begun(stretch.batch, now_s - self._at_s - soon_s(now_s))
            news += self._do(stretch, min(stretch.steps, begun))

    def check_integrity(self) -> None:
        """Raises AssertionError where the books are wrong."""
        self.kv.check_integrity()
        assert len(self.running) <= self.profile.concurrency, "more sequences than there may be"
        for job in self.running:
            assert job.holding is not None, "at work without room"
            assert job.computed <= job.holding.tokens, "computed without room"
        todo = sum(job.todo for job in (*self.waiting, *self.running))
        assert self.load == todo, f"{self.load} tokens to do on the books, {todo} in the jobs"
        assert all(job.holding is None for job in self.waiting), "room for somebody who waits"

    def _idle_until(self, now_s: float) -> float:
        """A replica at work goes on where it was; an idle one begins with the first to come."""
        if self.running:
            return self._at_s
        return min(now_s, *(job.arrived_s for job in self.waiting))

    def _plan(self) -> _Stretch | None:
        """What the next step works on, and how many are like it."""
        budget = self.profile.batch_tokens
        writing: list[Job] = []
        reading: list[tuple[Job, int]] = []
        crowded = False
        self.running.sort(key=lambda job: job.order)
        for job in tuple(self.running):
            tokens = min(job.left, budget)
            if job.holding is None or not tokens:
                continue  # it has just been preempted, or the step is full
            if not self._room_for(job, tokens):
                crowded = True
                continue
            budget -= tokens
            if job.left == 1 and job.written:
                writing.append(job)
            else:
                reading.append((job, tokens))
                self._publish(job, tokens)
        while not crowded and budget and self.waiting:
            job = self.waiting[0]
            if len(self.running) >= self.profile.concurrency or not self._begin(job, budget):
                break
            tokens = min(job.left, budget)
            budget -= tokens
            reading.append((job, tokens))
            self._publish(job, tokens)
        if not writing and not reading:
            assert self.running or not self.waiting, "one that fits nowhere was let in"
            return None
        stretch = self._stretch_of(writing, reading)
        if crowded:
            stretch.steps = 1  # what was given back is there for others in the next step
        return stretch

    def _publish(self, job: Job, tokens: int) -> None:
        """Others find what a step reads as soon as it is planned: a step that is planned runs."""
        assert job.holding is not None
        self.kv.publish(job.holding, self._text(job), job.computed + tokens)

    def _room_for(self, job: Job, tokens: int) -> bool:
        """Room for ``tokens`` more of ``job``, at the cost of those after it, or of itself."""
        assert job.holding is not None
        while not self.kv.grow(job.holding, job.computed + tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _preempt(self, job: Job) -> None:
        self._leave(job)
        self.load += job.computed
        job.computed = 0
        job.preempted += 1
        self.counters.preemptions += 1
        insort(self.waiting, job, key=lambda each: each.order)

    def _leave(self, job: Job) -> None:
        assert job.holding is not None
        self.running.remove(job)
        text = self._text(job)
        self._seen.insert(text[: int(job.computed * self.profile.bytes_a_token)])
        self.kv.end(job.holding, text, job.computed)
        job.holding = None

    def _begin(self, job: Job, budget: int) -> bool:
        text = self._text(job)
        begun = self.kv.begin(text, job.size + job.written, budget)
        if begun is None:
            return False
        holding, hit = begun
        self.waiting.remove(job)
        self.running.append(job)
        job.holding, job.computed = holding, hit
        self.load -= hit
        if job.hit is None:
            job.hit, job.begun_s = hit, self._at_s
            self.counters.cached += hit
        # Of one that was preempted, all is computed again but what the cache still has.
        known = self._seen.match(text) // self.profile.block_bytes * self.profile.block_tokens
        self.counters.recomputed += max(0, min(known, job.size + job.written - 1) - hit)
        return True

    def _stretch_of(self, writing: list[Job], reading: list[tuple[Job, int]]) -> _Stretch:
        tokens = sum(each for _, each in reading)
        # Of several prompts in one step, each token has its own prompt's tokens before it.
        seen = sum(each * (job.computed + each / 2) for job, each in reading)
        before = seen / tokens - tokens / 2 if tokens else 0.0
        batch = Batch(
            prefill=tokens,
            before=before,
            sequences=len(writing),
            resident=sum(job.computed for job in writing),
        )
        steps = 1
        if not reading:
            steps = min(self._steps_left(job) for job in writing)
        elif len(reading) == 1:
            job, chunk = reading[0]
            steps = max(1, (job.left - 1) // chunk)
            steps = min([steps, *(self._steps_left(each) for each in writing)])
        if steps > 1:
            contexts = [(job.computed, 1) for job in writing]
            contexts += [(job.computed, each) for job, each in reading]
            steps = max(1, self.kv.growth(contexts, steps))
        return _Stretch(batch=batch, steps=steps, writing=writing, reading=reading)

    def _steps_left(self, job: Job) -> int:
        return job.length - job.written

    def _do(self, stretch: _Stretch, steps: int) -> list[Job]:
        counters, profile = self.counters, self.profile
        took_s = profile.steps_s(stretch.batch, steps)
        self._at_s += took_s
        counters.busy_s += took_s
        counters.steps += steps
        counters.stretches += 1
        counters.prefilled += stretch.batch.prefill * steps
        counters.written += len(stretch.writing) * steps
        self.load -= (stretch.batch.prefill + stretch.batch.sequences) * steps
        news: list[Job] = []
        for job, tokens in stretch.reading:
            job.computed += tokens * steps
            self._grow(job)
            if not job.left:
                job.written += 1
                counters.written += 1
                if job.first_s is None:
                    job.first_s = self._at_s
                    news.append(job)
        for job in stretch.writing:
            job.computed += steps
            job.written += steps
            self._grow(job)
        ended = [job for job in self.running if job.written >= job.length]
        for job in ended:
            job.ended_s = self._at_s
            self._leave(job)
            self.load -= job.todo
        return [*(job for job in news if job.ended_s is None), *ended]

    def _grow(self, job: Job) -> None:
        assert job.holding is not None
        grown = self.kv.grow(job.holding, job.computed)
        assert grown, "a stretch was longer than there is room"

    def _text(self, job: Job) -> bytes:
        """Its prompt and what is written of its reply."""
        if not job.written:
            return job.prompt
        return job.prompt + job.reply[: int(job.written * self.profile.bytes_a_token)]
