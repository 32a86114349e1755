"""What stands in front of an engine: who may ask it now.

Each request waits in one line, in the order of a policy. The first may go that is not held back:
by a limit on a rate, by runs that fill the engine's cache, or by one ahead of it that reads the
same beginning. All is decided in one place, :meth:`Scheduler._decide`, at the end of a turn of the
loop, so that all who ask in one turn compete.

When the engine tells one caller to wait, everybody waits, instead of each finding out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

from accord.engine.base import Capabilities, Engine
from accord.errors import BudgetExceededError, DeadlinePassedError, RateLimitedError
from accord.schedule.admission import Admission
from accord.schedule.concurrency import DEFAULT_CONCURRENCY, Concurrency
from accord.schedule.following import Following
from accord.schedule.limits import Limits, Short
from accord.schedule.line import Ask, Line, Waiting
from accord.schedule.place import Place
from accord.schedule.settings import SchedulerStatistics, Settings
from accord.schedule.spare import Spare
from accord.schedule.ticket import Ticket


class Scheduler:
    """Stands in front of one engine, for all agents of all runs of a runtime."""

    def __init__(self, engine: Engine, settings: Settings | None = None) -> None:
        self.engine = engine
        self.capabilities = Capabilities()
        self._settings = settings or Settings()
        self._limits = self._settings.limits
        self._book = (self._limits or Limits()).book
        self._line = Line(self._settings.policy)
        self._concurrency = Concurrency(DEFAULT_CONCURRENCY)
        self._following = Following(self.capabilities, on=False)
        self._admission = Admission()
        self._held_back: dict[str, int] = {}
        """How many of those that wait are held back, by what, as of the last decision."""
        self._active = self._count = self._refused = self._overdrawn = 0
        self._cool_until_s = 0.0
        self._spare = Spare()
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
                self._following = Following(found, on=self._settings.single_flight)
                self._admission = Admission(found.kv_tokens if self._settings.admission else None)
                self._book.watch(self)
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
            self._leave(place, sent=True)

    @asynccontextmanager
    async def spare_place(
        self, ask: Ask, preempt: Callable[[], None]
    ) -> AsyncGenerator[Place | None]:
        """A place for what nobody waits for yet; None unless it pays, and nobody else wants it.

        Whoever asks for a place takes it back, unless the prompt begins alike: ``preempt`` is
        called, and it counts no more. Not in front of limits, of which it would take a share.
        """
        full = self._active >= self._concurrency.limit or self._cool_until_s > _now()
        wanted = full or self._line or self._spare or self._limits is not None
        if not self._started or wanted or not self._following.pays_ahead(ask.prompt):
            yield None
            return
        ticket = Ticket(number=0, run=ask.run, agent=ask.agent, arrived_s=_now(), prompt=ask.prompt)
        place = self._place(ticket, lambda place: self._following.read(place, _now()))
        self._spare.give(place, preempt)
        try:
            yield place
            if self._spare.holds(place):
                place.warm()
        finally:
            if self._spare.holds(place):
                self._spare.left()
                self._active -= 1
            place.leave(sent=True)
            self._following.ended(place)
            self.look()

    def _take_back(self, prompt: bytes) -> None:
        """Somebody asks with ``prompt``: what is read ahead for others gives way."""
        if (place := self._spare.take_back(prompt)) is not None:
            self._active -= 1
            self._following.gone(place)

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
        if self._admission.ended(run):
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
        self._take_back(ask.prompt)
        self._count += 1
        ticket = Ticket(
            number=self._count,
            run=ask.run,
            agent=ask.agent,
            tenant=self._settings.tenant,
            arrived_s=now_s,
            began_s=self._admission.began_s(ask.run, now_s),
            prompt=ask.prompt,
            prefill=ask.prefill,
            decode=ask.decode,
            priority=ask.priority(),
            deadline_s=ask.deadline_s,
            remaining_s=ask.remaining_s,
            through_s=ask.through_s,
        )
        waiting = Waiting(ask=ask, ticket=ticket, turn=loop.create_future())
        if ask.deadline_s is not None:
            waiting.timers.append(loop.call_at(ask.deadline_s, self._overdue, waiting))
        if self._limits is not None:
            for patience_s in self._book.patiences_s(ticket):
                if patience_s < inf:
                    timer = loop.call_at(now_s + patience_s, self._out_of_patience, waiting)
                    waiting.timers.append(timer)
        self._admission.ask(ticket)
        self._line.add(waiting)
        self.look()
        return waiting

    def _overdue(self, waiting: Waiting) -> None:
        self._refuse(waiting, _too_late(waiting.ask))

    def _out_of_patience(self, waiting: Waiting) -> None:
        """It has waited as long as one of its limits lets it, whatever for."""
        with self._book.lock:
            now_s = _now()
            short = self._book.short(waiting.ticket, now_s)
        if (error := _no_room(waiting.ticket, short, now_s)) is not None:
            self._refuse(waiting, error)

    def _gave_up(self, waiting: Waiting) -> None:
        """Whoever waited was cancelled, or refused."""
        turn = waiting.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._leave(turn.result(), sent=False)  # it had been given a place in the same moment
            return
        self._line.remove(waiting)
        waiting.stop_timers()
        self._admission.answered(waiting.ticket, _now())
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
        if place.used is not None:
            self._overdrawn += max(0, place.used - ticket.size)
        self._following.replied(place)

    def _leave(self, place: Place, *, sent: bool) -> None:
        ticket, now_s = place.ticket, _now()
        self._active -= 1
        place.leave(sent=sent)
        self._following.ended(place)
        self._admission.worked(ticket.run, now_s - place.sent_s)
        self._admission.answered(ticket, now_s)
        self.look()
        if self._limits is not None:
            self._book.freed()

    def _warmed(self, place: Place) -> None:
        self._concurrency.begun()
        self._following.read(place, _now())
        self.look()

    # -- deciding

    def _decide(self) -> None:
        self._due = False
        with self._book.lock:
            self._fill(_now())

    def _fill(self, now_s: float) -> None:
        """Give places to those that may have one."""
        self._held_back = {}
        self._line.prune()
        if self._cool_until_s > now_s:
            self._wake_at(self._cool_until_s)
            return
        free = self._concurrency.limit - self._active
        if free <= 0 or not self._put_in_order(now_s):
            return
        tickets = (waiting.ticket for waiting in self._line)
        admitted, idle_s = self._admission.runs(tickets, now_s)
        found = _Pass(now_s=now_s, admitted=admitted, idle_s=idle_s)
        self._line.take(lambda waiting: self._goes(waiting, found), free)
        self._held_back = found.held_back
        for waiting, error in found.refused:
            self._refuse(waiting, error)
        if found.again_s < inf:
            self._wake_at(found.again_s)

    def _put_in_order(self, now_s: float) -> bool:
        """Sort the line. If a policy fails, those who wait are told, and nobody waits any more."""
        self._line.refresh(lambda waiting: self._fresh(waiting, now_s))
        try:
            self._line.sort(now_s)
        except Exception as error:  # noqa: BLE001  # whatever a function of the user's raises
            for waiting in list(self._line):
                self._refuse(waiting, error)
        return bool(self._line)

    def _goes(self, waiting: Waiting, found: _Pass) -> bool:
        """Give it a place, unless something holds it back."""
        reason = self._reason(waiting, found)
        if reason:
            found.held_back[reason] = found.held_back.get(reason, 0) + 1
        else:
            self._send(waiting)
        return not reason

    def _reason(self, waiting: Waiting, found: _Pass) -> str:
        """What holds it back; empty if nothing does."""
        ticket, now_s = waiting.ticket, found.now_s
        inside = found.admitted
        if not (inside is None or ticket.run in inside or inside.intersection(waiting.ask.runs())):
            found.again_s = min(found.again_s, found.idle_s)
            return "parked"
        if (leader := self._following.leader_of(waiting, now_s)) is not None:
            found.again_s = min(found.again_s, leader.leads_until_s)
            return "following"
        if self._limits is None:
            return ""
        short = self._book.short(ticket, now_s)
        if (error := _no_room(ticket, short, now_s)) is not None:
            found.refused.append((waiting, error))
            return "limited"
        if short:
            found.short |= {each.whose for each in short}
            known = [each.at_s for each in short if each.at_s is not None]
            if len(known) == len(short):
                found.again_s = min(found.again_s, max(known))
            return "limited"
        return "" if found.short.isdisjoint(self._book.names(ticket)) else "limited"

    def _fresh(self, waiting: Waiting, now_s: float) -> Ticket:
        ticket = waiting.ticket
        attained_s = self._admission.attained_s(ticket.run)
        used = max(self._book.share(ticket, now_s), waiting.ask.used())
        if attained_s == ticket.attained_s and used == ticket.used:
            return ticket
        return replace(ticket, attained_s=attained_s, used=used)

    def _send(self, waiting: Waiting) -> None:
        """Give it a place."""
        place = self._place(waiting.ticket, self._warmed)
        waiting.turn.set_result(place)
        waiting.stop_timers()

    def _place(self, ticket: Ticket, warmed: Callable[[Place], None]) -> Place:
        """A place, taken from now on."""
        place = Place(
            ticket,
            sent_s=_now(),
            sent_in=self._concurrency.round,
            reserved=self._book.reserve(ticket, _now()),
            warmed=warmed,
        )
        self._active += 1
        self._following.sent(place)
        return place

    def _refuse(self, waiting: Waiting, error: Exception) -> None:
        self._line.remove(waiting)
        if not waiting.turn.done():
            waiting.turn.set_exception(error)

    def _wake_at(self, when_s: float) -> None:
        """Decide anew at ``when_s``, or sooner."""
        # Timers come up to a nanosecond early: then it must not be the same moment for ever.
        when_s = max(when_s, _now() + 1e-6)
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.look()

    @property
    def reads_prompts(self) -> bool:
        """It wants to know how prompts begin."""
        return self._following.on or self._admission.bounds


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


def _now() -> float:
    return asyncio.get_running_loop().time()


def _too_late(ask: Ask) -> DeadlinePassedError:
    return DeadlinePassedError(
        f"the deadline of a request of {ask.agent!r} passed before it could be sent, and it was "
        "not; give its agent a later deadline_s, or more priority"
    )


def _no_room(ticket: Ticket, short: Sequence[Short], now_s: float) -> BudgetExceededError | None:
    """The error for one that would wait too long for one of the limits that are short."""
    for each in short:
        if each.is_too_long(ticket.arrived_s, now_s):
            in_s = None if each.at_s is None else each.at_s - now_s
            left = "" if each.left is None else f", and {each.left:,} are left"
            when = "once what is under way is over" if in_s is None else f"in {in_s:g} s"
            return BudgetExceededError(
                f"a request of {ticket.agent!r} may use {ticket.size:,} tokens{left} of the limit "
                f"of {each.whose}; there is room for it {when}, and it would wait "
                f"{each.patience_s:g} s at most (patience_s): come again then, or raise the limit",
                left=each.left,
                resets_in_s=in_s,
            )
    return None
