"""What stands in front of an engine: who may ask it now.

Each request waits in one line, in the order of a policy. The first may go that is not held back:
by a limit on a rate, by runs that fill the engine's cache, or by one ahead of it that reads the
same beginning. All is decided in one place, :meth:`Scheduler._decide`, at the end of a turn of the
loop, so that all who ask in one turn compete.

When the engine tells one caller to wait, everybody waits, instead of each finding out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

from accord.engine.base import Capabilities, Engine
from accord.engine.prefix import BYTES_A_TOKEN, PrefixTree
from accord.errors import BudgetExceededError, DeadlinePassedError, RateLimitedError
from accord.schedule.admission import Resident, Tenure, admitted
from accord.schedule.concurrency import DEFAULT_CONCURRENCY, Concurrency
from accord.schedule.limits import Book, Limits, Room
from accord.schedule.line import Ask, Line, Waiting
from accord.schedule.place import Place
from accord.schedule.policy import POLICIES, Policy
from accord.schedule.prefix import HEAD_BYTES, shared_tokens, waits_for_leader, waits_for_slot
from accord.schedule.ticket import Ticket

BLOCK_TOKENS = 16
MIRROR_BLOCKS = 1 << 16
"""What an engine is taken to hold where it does not say: about a million tokens."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a runtime's schedulers go by.

    ``admission`` by the engine's KV cache is on where the engine says how large that is, unless
    this is False; ``single_flight`` lets one of many that begin alike go ahead.
    """

    policy: Policy = field(default_factory=lambda: POLICIES["fcfs"])
    limits: Limits | None = None
    tenant: str = ""
    admission: bool = True
    single_flight: bool = True


@dataclass(frozen=True, kw_only=True)
class SchedulerStatistics:
    """Requests at the engine and waiting for it, and how many may be there at once, now.

    Of those that wait: ``parked`` by admission, ``following`` another, ``limited`` by a rate.
    ``refused`` by the engine (429), so far, and tokens used beyond what was reserved for them.
    """

    active: int
    waiting: int
    concurrency: int
    cool_down_s: float
    parked: int
    following: int
    limited: int
    refused: int
    overdrawn: int


class Scheduler:
    """Stands in front of one engine, for all agents of all runs of a runtime."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings | None = None,
        *,
        book: Book | None = None,
        freed: Callable[[], None] | None = None,
    ) -> None:
        self.engine = engine
        self.capabilities = Capabilities()
        self._settings = settings or Settings()
        self._book = book or Book(self._settings.limits)
        self._freed = freed or self.look
        """Called when a limit may have room again, in front of whatever engine."""
        self._line = Line(self._settings.policy)
        self._concurrency = Concurrency(DEFAULT_CONCURRENCY)
        self._mirror = PrefixTree(MIRROR_BLOCKS)
        """What the engine is taken to hold."""
        self._asked = PrefixTree(MIRROR_BLOCKS)
        """What has been asked: whoever comes with the same has it in common with others."""
        self._ahead: dict[bytes, list[Place]] = {}
        """Requests that others may follow, by how their prompts begin."""
        self._tenures: dict[str, Tenure] = {}
        self._inside: set[str] = set()
        """The runs that were admitted at the last decision."""
        self._lengths: dict[str, float] = {}
        """How long the replies of each agent are, on a running average."""
        self._sizes: dict[str, float] = {}
        """How long the contexts of each agent were at the end of a run, likewise."""
        self._held_back: dict[str, int] = {}
        """How many of those that wait are held back, by what, as of the last decision."""
        self._active = self._count = self._refused = self._overdrawn = 0
        self._cool_until_s = 0.0
        self._started = self._due = False
        self._starting = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> Capabilities:
        """Start the engine once, and learn what it can do."""
        async with self._starting:
            if not self._started:
                found = self.capabilities = await self.engine.start()
                self._concurrency = Concurrency(
                    found.concurrency or DEFAULT_CONCURRENCY,
                    cautious=found.refuses and not found.concurrency,
                )
                if found.kv_tokens:
                    self._mirror = PrefixTree(max(1, found.kv_tokens // BLOCK_TOKENS))
                self._started = True
        return self.capabilities

    @asynccontextmanager
    async def place(self, ask: Ask) -> AsyncGenerator[Place]:
        """Wait for a place at the engine, and hold it.

        Raises :class:`accord.errors.DeadlinePassedError` if it does not get one in time, and
        :class:`accord.errors.BudgetExceededError` if a limit would hold it longer than its
        patience.
        """
        await self.start()
        waiting = self._arrive(ask)
        try:
            place = await waiting.turn
        except BaseException:
            self._gave_up(waiting)
            raise
        try:
            yield place
        except RateLimitedError:
            self._refused += 1
            self._concurrency.refused(place.sent_in, self._active)
            raise
        else:
            self._succeeded(place)
        finally:
            self._leave(place)

    def cool_down(self, seconds: float) -> None:
        """Nobody asks for ``seconds`` from now."""
        self._cool_until_s = max(self._cool_until_s, _now() + seconds)

    def look(self) -> None:
        """Decide anew, at the end of this turn of the loop."""
        if not self._due and self._line:
            self._due = True
            asyncio.get_running_loop().call_soon(self._decide)

    def lift(self) -> None:
        """Somebody has become more urgent, with whom others wait for what they ask here."""
        self._line.lift()
        self.look()

    def ended(self, run: str) -> None:
        """``run`` asks no more: what it holds of the engine's cache is free for others."""
        tenure = self._tenures.pop(run, None)
        if tenure is None:
            return
        for agent, context in tenure.contexts.items():
            _learn(self._sizes, agent, context.newest)
        self.look()

    def statistics(self) -> SchedulerStatistics:
        """How things stand."""
        held_back = self._held_back if self._line else {}
        return SchedulerStatistics(
            active=self._active,
            waiting=len(self._line),
            concurrency=self._concurrency.limit,
            cool_down_s=max(0.0, self._cool_until_s - _now()),
            parked=held_back.get("parked", 0),
            following=held_back.get("following", 0),
            limited=held_back.get("limited", 0),
            refused=self._refused,
            overdrawn=self._overdrawn,
        )

    # -- arriving and leaving

    def _arrive(self, ask: Ask) -> Waiting:
        loop, now_s = asyncio.get_running_loop(), _now()
        if ask.deadline_s is not None and ask.deadline_s <= now_s:
            raise _too_late(ask)
        tenure = self._tenures.setdefault(ask.run, Tenure(began_s=now_s, last_s=now_s))
        self._count += 1
        ticket = Ticket(
            number=self._count,
            run=ask.run,
            agent=ask.agent,
            tenant=self._settings.tenant,
            arrived_s=now_s,
            began_s=tenure.began_s,
            prompt=ask.prompt,
            prefill=ask.prefill,
            decode=ask.decode,
            priority=ask.priority(),
            deadline_s=ask.deadline_s,
            remaining_s=ask.remaining_s,
        )
        waiting = Waiting(ask=ask, ticket=ticket, turn=loop.create_future())
        if ask.deadline_s is not None:
            waiting.overdue = loop.call_at(ask.deadline_s, self._overdue, waiting)
        tenure.ask(ticket, self._shared(ticket))
        self._line.add(waiting)
        self.look()
        return waiting

    def _shared(self, ticket: Ticket) -> int:
        """Tokens at the beginning of a prompt that others have brought."""
        if not self._admits:
            return 0
        known = self._asked.match(ticket.prompt) // BYTES_A_TOKEN
        self._asked.insert(ticket.prompt)
        return known

    def _overdue(self, waiting: Waiting) -> None:
        if not waiting.turn.done():
            self._line.remove(waiting)
            waiting.turn.set_exception(_too_late(waiting.ask))

    def _gave_up(self, waiting: Waiting) -> None:
        """Whoever waited was cancelled, or refused."""
        turn = waiting.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._leave(turn.result())  # it had been given a place in the same moment
            return
        self._line.remove(waiting)
        if waiting.overdue is not None:
            waiting.overdue.cancel()
        self._answered(waiting.ticket)
        self.look()

    def _succeeded(self, place: Place) -> None:
        place.warm()
        ticket, policy = place.ticket, self._settings.policy
        ratio = None
        if policy.controls:
            may_s = policy.target_s
            if ticket.deadline_s is not None:
                may_s = ticket.deadline_s - ticket.arrived_s
            ratio = None if may_s is None else (_now() - ticket.arrived_s) / may_s
        self._concurrency.succeeded(ratio, place.sent_in)
        if place.used is not None and place.completion is not None:
            self._overdrawn += max(0, place.used - ticket.size)
            _learn(self._lengths, ticket.agent, place.completion)

    def _leave(self, place: Place) -> None:
        ticket = place.ticket
        self._active -= 1
        place.leave()
        self._leads_no_more(place)
        if (tenure := self._tenures.get(ticket.run)) is not None:
            tenure.attained_s += _now() - place.sent_s
        self._answered(ticket)
        self.look()
        if self._settings.limits is not None:
            self._freed()

    def _answered(self, ticket: Ticket) -> None:
        if (tenure := self._tenures.get(ticket.run)) is not None:
            tenure.answered(ticket, _now())

    # -- deciding

    def _decide(self) -> None:
        self._due = False
        try:
            self._fill(_now())
        except Exception as error:  # noqa: BLE001  # a policy's own fault: those who wait are told
            for waiting in list(self._line):
                self._refuse(waiting, error)

    def _fill(self, now_s: float) -> None:
        """Give places to those that may have one."""
        if self._cool_until_s > now_s:
            self._wake_at(self._cool_until_s)
            return
        free = self._concurrency.limit - self._active
        if free <= 0:
            return
        self._line.sort(now_s, self._fresh)
        admitted_runs, idle_s = self._admitted(now_s)
        found = _Pass(now_s=now_s, admitted=admitted_runs, idle_s=idle_s)
        self._line.take(lambda waiting: self._goes(waiting, found), free)
        self._held_back = found.held_back
        for waiting, error in found.refused:
            self._refuse(waiting, error)
        if found.again_s < inf:
            self._wake_at(found.again_s)

    def _goes(self, waiting: Waiting, found: _Pass) -> bool:
        """Give it a place, unless something holds it back."""
        reason = self._reason(waiting, found)
        if reason:
            found.held_back[reason] = found.held_back.get(reason, 0) + 1
        else:
            self._send(waiting, found.now_s)
        return not reason

    def _reason(self, waiting: Waiting, found: _Pass) -> str:
        """What holds it back; empty if nothing does."""
        ticket, now_s = waiting.ticket, found.now_s
        if found.admitted is not None and ticket.run not in found.admitted:
            found.again_s = min(found.again_s, found.idle_s)
            return "parked"
        if self._leader_of(waiting) is not None:
            return "following"
        if self._settings.limits is None:
            return ""
        room = self._book.room(ticket, now_s)
        if room.at_s is not None and room.at_s - ticket.arrived_s > room.patience_s:
            found.refused.append((waiting, _no_room(ticket, room, room.at_s - now_s)))
            return "limited"
        if room.at_s is None or room.at_s > now_s:
            found.short.add(room.whose)
            found.again_s = min(found.again_s, inf if room.at_s is None else room.at_s)
            return "limited"
        return "" if found.short.isdisjoint(self._book.names(ticket)) else "limited"

    def _fresh(self, waiting: Waiting) -> Ticket:
        ticket, tenure = waiting.ticket, self._tenures.get(waiting.ticket.run)
        attained_s = 0.0 if tenure is None else tenure.attained_s
        used = max(self._book.share(ticket, _now()), waiting.ask.used())
        if attained_s == ticket.attained_s and used == ticket.used:
            return ticket
        return replace(ticket, attained_s=attained_s, used=used)

    def _send(self, waiting: Waiting, now_s: float) -> None:
        """Give it a place."""
        ticket = waiting.ticket
        if waiting.overdue is not None:
            waiting.overdue.cancel()
        self._active += 1
        place = Place(
            ticket,
            sent_s=now_s,
            sent_in=self._concurrency.round,
            uses=self._book.reserve(ticket, now_s),
            warmed=self._warmed,
        )
        if self._follows and len(ticket.prompt) >= HEAD_BYTES:
            self._ahead.setdefault(ticket.prompt[:HEAD_BYTES], []).append(place)
        waiting.turn.set_result(place)

    def _refuse(self, waiting: Waiting, error: Exception) -> None:
        self._line.remove(waiting)
        if not waiting.turn.done():
            waiting.turn.set_exception(error)

    def _wake_at(self, when_s: float) -> None:
        """Decide anew at ``when_s``, unless that happens sooner."""
        if self._timer is not None:
            self._timer.cancel()
        # Timers come up to a nanosecond early: then it must not be the same moment for ever.
        when_s = max(when_s, _now() + 1e-6)
        self._timer = asyncio.get_running_loop().call_at(when_s, self.look)

    # -- what holds requests back

    @property
    def reads_prompts(self) -> bool:
        """It wants to know how prompts begin."""
        return self._follows or self._admits

    @property
    def _admits(self) -> bool:
        return self._settings.admission and self.capabilities.kv_tokens is not None

    @property
    def _follows(self) -> bool:
        return self._settings.single_flight and self.capabilities.prefix_cache

    def _admitted(self, now_s: float) -> tuple[set[str] | None, float]:
        """The runs that fit the engine's cache, None for all; and when one may make way."""
        kv_tokens = self.capabilities.kv_tokens
        if not self._admits or kv_tokens is None or len(self._tenures) < 2:
            return None, inf
        urgency: dict[str, int] = {}
        for each in self._line:
            ticket = each.ticket
            urgency[ticket.run] = max(ticket.priority, urgency.get(ticket.run, ticket.priority))
        idle = {run: tenure.idle_until_s(now_s) for run, tenure in self._tenures.items()}
        runs = [
            Resident(
                run=run,
                tokens=tenure.tokens(self._sizes),
                priority=urgency.get(run, tenure.priority),
                began_s=tenure.began_s,
            )
            for run, tenure in self._tenures.items()
            if tenure.asking or idle[run] is not None
        ]
        again_s = min((until for until in idle.values() if until is not None), default=inf)
        self._inside = admitted(runs, kv_tokens, self._inside)
        return self._inside, again_s

    def _leader_of(self, waiting: Waiting) -> Place | None:
        """Whom it lets go ahead, for now."""
        if waiting.behind is not None and waiting.behind[0].stage == waiting.behind[1]:
            return waiting.behind[0]
        waiting.behind = None
        prompt = waiting.ticket.prompt
        for place in self._ahead.get(prompt[:HEAD_BYTES], ()):
            if self._lets_go_ahead(prompt, place):
                waiting.behind = place, place.stage
                return place
        return None

    def _lets_go_ahead(self, prompt: bytes, place: Place) -> bool:
        shared = shared_tokens(prompt, place.ticket.prompt)
        if place.stage == "writing":
            return waits_for_slot(shared, 0, self._expected(place.ticket))
        # A slot at work shares nothing of what it holds.
        slots = self.capabilities.slots
        held = 0 if slots else self._mirror.match(prompt) // BYTES_A_TOKEN
        return waits_for_leader(shared, held)

    def _expected(self, ticket: Ticket) -> int:
        """About how long its reply will be."""
        return round(self._lengths.get(ticket.agent, ticket.decode))

    def _warmed(self, place: Place) -> None:
        """The engine has read a prompt: what others have in common with it is there."""
        self._concurrency.admitted()
        if self._follows:
            self._mirror.insert(place.ticket.prompt)
            if not self.capabilities.slots:
                self._leads_no_more(place)
        self.look()

    def _leads_no_more(self, place: Place) -> None:
        head = place.ticket.prompt[:HEAD_BYTES]
        ahead = self._ahead.get(head)
        if ahead is not None and place in ahead:
            ahead.remove(place)
            if not ahead:
                del self._ahead[head]


@dataclass(kw_only=True)
class _Pass:
    """What is found on one pass over the line."""

    now_s: float
    admitted: set[str] | None
    """The runs that fit the engine's cache; None for all."""
    idle_s: float
    """When one of them may make way."""
    short: set[str] = field(default_factory=set[str])
    """Whose limits have no room for one that came first: nobody goes past it."""
    again_s: float = inf
    """When to decide anew, if nothing happens before."""
    held_back: dict[str, int] = field(default_factory=dict[str, int])
    refused: list[tuple[Waiting, Exception]] = field(
        default_factory=list[tuple[Waiting, Exception]]
    )


def _learn(averages: dict[str, float], agent: str, value: int) -> None:
    before = averages.get(agent, value)
    averages[agent] = before + (value - before) / 4


def _now() -> float:
    return asyncio.get_running_loop().time()


def _too_late(ask: Ask) -> DeadlinePassedError:
    return DeadlinePassedError(
        f"the deadline of a request of {ask.agent!r} passed before it could be sent, and it was "
        "not; give its agent a later deadline_s, or more priority"
    )


def _no_room(ticket: Ticket, room: Room, in_s: float) -> BudgetExceededError:
    left = "" if room.left is None else f", and {room.left:,} are left"
    return BudgetExceededError(
        f"a request of {ticket.agent!r} may use {ticket.size:,} tokens{left} of the limit of "
        f"{room.whose}; there is room for it in {in_s:g} s, and it would wait {room.patience_s:g} "
        "s at most (patience_s): come again then, or raise the limit",
        left=room.left,
        resets_in_s=in_s,
    )
