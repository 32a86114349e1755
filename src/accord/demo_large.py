"""The large demo: a 30,000-word report by 64 agents, as usually wired and as Accord wires it.

plan → retrieve → write → proofread, on a simulated engine and virtual time. Nothing differs but
:class:`Wiring`: engine, seed, briefs, sources, who does what, and how long each reply is are the
same. What is shared is on the blackboard, who is to do what goes by message.

What the *usual* wiring does, each as common frameworks do by default: a stage begins when the one
before has ended; everybody is sent everything that has been said; a manager (an agent) hands out
each piece of work in a turn of its own; prompts begin with the role; requests go in order; a client
waits for as long as it takes. Each is a lever that can be pulled alone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields, replace
from functools import partial
from random import Random
from typing import Any

from accord.agent.agent import Agent
from accord.agent.retry import Retry
from accord.comm.blackboard import Blackboard
from accord.comm.mailbox import Mailbox, send
from accord.engine.base import Request
from accord.engine.sim.engine import Faults, SimEngine
from accord.engine.sim.profile import Profile
from accord.engine.sim.reply import words
from accord.errors import UsageError
from accord.flow.step import step
from accord.sync.gather import gather

BRIEF_WORDS = 700
SECTION_TOKENS = 840
"""40 sections of these are 30,000 words."""
OUTLINE_LINE_BYTES = 64
"""Of a section in the outline, 16 tokens."""
FINDINGS_TOKENS = 140
"""Per section, of the notes that a retriever makes of its source."""
SOURCE_TOKENS = 420
"""What a search finds for a section."""
SEARCH_S = 0.3
CORRECTIONS_TOKENS = 160
"""Of a proofreader, on its sections together."""
TURN_TOKENS = 22
"""Of a manager's turn, which hands out one piece of work: whom it asks, and for what."""
SPREAD = 0.12
"""Sigma of the lognormal length of replies."""
STALLS = Faults(slow=0.002, slow_s=75.0)
"""One request in 500 hangs for over a minute before it begins, as they do behind load balancers."""
PATIENCE_S = 4.0
"""After which Accord asks again, at least."""


MANAGER = "manager"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What differs. All False is the usual wiring, all True Accord's."""

    overlapped: bool = True
    """Work goes on when what it needs is there; else stage by stage."""
    scoped: bool = True
    """Each is sent what it needs; else all that has been said."""
    planned: bool = True
    """Work is handed out from the plan; else by a manager, a turn for each piece."""
    shared_first: bool = True
    """Prompts begin with what all share; else with the role."""
    critical_path: bool = True
    """Requests go by what depends on them; else first come, first served."""
    patient: bool = True
    """What hangs is asked again; else waited for."""

    @property
    def policy(self) -> str:
        """Of the scheduler."""
        return "critical_path" if self.critical_path else "fcfs"


ACCORD = Wiring()
USUAL = Wiring(**{each.name: False for each in fields(Wiring)})
LEVERS = tuple(each.name for each in fields(Wiring))


def pulled(lever: str) -> Wiring:
    """The usual wiring with one lever pulled."""
    return replace(USUAL, **{lever: True})


def without(lever: str) -> Wiring:
    """Accord's wiring without one lever."""
    return replace(ACCORD, **{lever: False})


@dataclass(frozen=True)
class Crew:
    """Who there is: a planner (who is the manager, where there is one), and these.

    Raises UsageError for fewer than eight agents or more than 512.
    """

    agents: int = 64

    def __post_init__(self) -> None:
        if not 8 <= self.agents <= 512:
            msg = f"the report is for 8 to 512 agents, not {self.agents!r}"
            raise UsageError(msg)

    @property
    def proofreaders(self) -> int:
        """One for ten sections, about."""
        return max(1, self.agents // 16)

    @property
    def retrievers(self) -> int:
        """One for two sections, about."""
        return max(2, self.agents * 19 // 64)

    @property
    def sections(self) -> int:
        """As many as writers: all the others."""
        return self.agents - 1 - self.retrievers - self.proofreaders

    def retriever(self, section: int) -> int:
        """Who finds the source of ``section``."""
        return section * self.retrievers // self.sections

    def proofreader(self, section: int) -> int:
        """Who reads ``section`` last."""
        return section * self.proofreaders // self.sections


def brief() -> str:
    """What the report is to be about: 700 words."""
    text = words(BRIEF_WORDS * 5, Random("brief"))
    return " ".join(text.split()[:BRIEF_WORDS])


def engine_of(profile: Profile, crew: Crew, seed: int) -> SimEngine:
    """The engine of both: the length of a reply follows from the seed and who writes."""

    def reply(request: Request, random: Random) -> str | int:
        role = request.agent.partition("-")[0]
        spread = random.lognormvariate(0, SPREAD)
        match role:
            case "planner":
                return _outline(crew, random)
            case "retriever":
                return max(1, round(FINDINGS_TOKENS * crew.sections / crew.retrievers * spread))
            case "writer":
                return max(1, round(SECTION_TOKENS * 40 / crew.sections * spread))
            case "proofreader":
                return max(1, round(CORRECTIONS_TOKENS * spread))
            case _ if role == MANAGER:
                return TURN_TOKENS
            case _:
                return request.max_tokens or 1

    return SimEngine(profile, seed=seed, replies=reply, faults=STALLS, draw_by="agent")


def _outline(crew: Crew, random: Random) -> str:
    lines = (f"{n + 1}. {words(OUTLINE_LINE_BYTES - 4, random)}" for n in range(crew.sections))
    return "\n".join(lines)


board = Blackboard()


@step(pure=True)
async def search(section: int, seed: int) -> str:
    """The source of a section. Takes 0.3 s."""
    await asyncio.sleep(SEARCH_S)
    return words(SOURCE_TOKENS * 4, Random(f"{seed}/{section}"))


class Report:
    """One run of the report; ``wiring`` says how."""

    def __init__(
        self, wiring: Wiring, crew: Crew, seed: int = 0, *, patience_s: float = PATIENCE_S
    ) -> None:
        self.wiring = wiring
        self.crew = crew
        self.seed = seed
        self._said = 0
        first_token_s = patience_s if wiring.patient else None
        self._retry = Retry(base_s=0.1, first_token_s=first_token_s)

    async def flow(self, text: str) -> dict[str, Any]:
        """The report, and its corrections."""
        board.write("brief", text)
        outline = await self._agent("planner", "Plan the report, a line for each section.")()
        board.write("outline", outline)
        self._say(f"planner: {outline}")
        crew = self.crew
        everybody = [
            *((f"retriever-{n}", partial(self._retrieve, n)) for n in range(crew.retrievers)),
            *((f"writer-{n}", partial(self._write, n)) for n in range(crew.sections)),
            *((f"proofreader-{n}", partial(self._proofread, n)) for n in range(crew.proofreaders)),
        ]
        ends = [len(everybody)]
        if not self.wiring.overlapped:
            ends = [crew.retrievers, crew.retrievers + crew.sections, *ends]
        done: list[Any] = []
        for end in ends:
            stage = everybody[len(done) : end]
            told = [name for name, _ in stage]
            _, *ended = await gather(self._hand_out(told), *(work() for _, work in stage))
            done += ended
        written = done[crew.retrievers : crew.retrievers + crew.sections]
        return {"sections": written, "corrections": done[crew.retrievers + crew.sections :]}

    async def _hand_out(self, names: list[str]) -> None:
        """Tell each to begin: from the plan, or by turns of a manager's."""
        for name in names:
            order = "begin"
            if not self.wiring.planned:
                manager = self._agent(MANAGER, "Hand out the work.", coordination=True)
                order = await manager(*self._context(()), f"{name} is free. What does it do?")
                self._say(f"{MANAGER}: {order}")
            await send(name, order)

    async def _retrieve(self, number: int) -> None:
        name, crew = f"retriever-{number}", self.crew
        mine = [n for n in range(crew.sections) if crew.retriever(n) == number]
        await Mailbox[str](name).receive()
        sources = await gather(search(n, self.seed) for n in mine)
        agent = self._agent(name, "Note what the sources say about your sections.")
        notes = await agent(*self._context(self._lines(mine)), *sources)
        self._say(f"{name}: {notes}")
        size = -(-len(notes) // len(mine))
        for index, n in enumerate(mine):
            await send(f"notes-{n}", notes[index * size : (index + 1) * size])

    async def _write(self, number: int) -> str:
        name = f"writer-{number}"
        await Mailbox[str](name).receive()
        notes = (await Mailbox[str](f"notes-{number}").receive()).body
        agent = self._agent(name, "Write your section of the report from the notes.")
        section = await agent(*self._context((*self._lines([number]), notes)))
        self._say(f"{name}: {section}")
        await send(f"sections-{self.crew.proofreader(number)}", section)
        return section

    async def _proofread(self, number: int) -> str:
        name, crew = f"proofreader-{number}", self.crew
        await Mailbox[str](name).receive()
        mine = [n for n in range(crew.sections) if crew.proofreader(n) == number]
        box = Mailbox[str](f"sections-{number}")
        sections = [(await box.receive()).body for _ in mine]
        agent = self._agent(name, "List what to correct in these sections.")
        corrections = await agent(*self._context(tuple(sections)))
        self._say(f"{name}: {corrections}")
        return corrections

    def _lines(self, sections: list[int]) -> tuple[str, ...]:
        """What the outline says of ``sections``."""
        lines = board.read("outline").splitlines()
        return tuple(lines[n] for n in sections)

    def _context(self, needed: tuple[str, ...]) -> tuple[str, ...]:
        """What stands in the prompt behind the role, where it is not put in front of it."""
        if self.wiring.scoped:
            shared = (
                () if self.wiring.shared_first else (board.read("brief"), board.read("outline"))
            )
            return (*shared, *needed)
        if self.wiring.shared_first:
            return needed[:1]
        return (board.read("brief"), *board.snapshot("said/*").values())

    def _say(self, text: str) -> None:
        """For all to hear. In the order of time, as chats have it: prompts only grow at the end."""
        self._said += 1
        board.write(f"said/{self._said:04}", text)

    def _agent(self, name: str, instructions: str, *, coordination: bool = False) -> Agent[str]:
        shares: tuple[str, ...] = ()
        if self.wiring.shared_first or name == "planner":
            shares = ("brief", "outline") if self.wiring.scoped else ("brief", "said/*")
        return Agent(
            name,
            f"You are {name}, one of {self.crew.agents} who write a report. {instructions}",
            shares=shares,
            max_tokens=80 * SECTION_TOKENS // self.crew.sections,
            retry=self._retry,
            coordination=coordination,
        )


async def alone(text: str, seed: int, sections: int) -> str:
    """The report by one agent, for the amplification: it reads the same, and writes it all."""
    board.write("brief", text)
    sources = await gather(search(n, seed) for n in range(sections))
    tokens = sections * (OUTLINE_LINE_BYTES // 4 + FINDINGS_TOKENS) + 40 * SECTION_TOKENS
    author = Agent(
        "author",
        "Plan the report, note what the sources say, write it, and list what to correct.",
        shares="brief",
        max_tokens=tokens + CORRECTIONS_TOKENS * 8,
    )
    return await author(*sources)
