"""Crew: tasks divided among members, with the outputs of some as the context of others.

Choose it where it is known beforehand what is to be done; where it depends on what is said, a
:class:`accord.team.chat.GroupChat`. Processes:

``sequential``    one task after another; costs the time of all
``parallel``      each as soon as the tasks of its context are done; costs that of the longest chain
``hierarchical``  managers decide who does what of each task, over as many levels as there have to
                  be: :mod:`accord.team.hierarchy`

Outputs are keys of the board, and each member is shown those of its task's context. Who gave what
to whom is in the result and in the log. A crew is a call, and may be a member of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, Unpack, cast, get_args

from accord.agent.agent import Agent
from accord.agent.options import AgentOptions
from accord.agent.reading import Visibility
from accord.comm.blackboard import Blackboard
from accord.errors import DelegationError, UsageError
from accord.flow.call import call
from accord.flow.note import note
from accord.flow.scope import CallScope, current_scope
from accord.log.events import Looked
from accord.sync.gather import gather
from accord.team.hierarchy import Boss, Delegation, Leading, Led, ManagerOptions, tree_of
from accord.team.member import Member, check_members, check_team, conclusion_of, derived
from accord.team.plan import Outcome
from accord.team.roster import Roster, UnknownNameError
from accord.team.task import Task, filled_if_known, in_order, named
from accord.team.usage import tools_used

T = TypeVar("T")

Process = Literal["sequential", "parallel", "hierarchical"]
PROCESSES: tuple[Process, ...] = get_args(Process)


def member(
    role: str, goal: str = "", backstory: str = "", **options: Unpack[AgentOptions]
) -> Agent[str]:
    """An agent that is called by its role, with a goal and a backstory; ``options`` as it takes."""
    parts = [f"You are {role}.", f"Your goal: {goal}" if goal else "", backstory]
    return Agent(role, "\n".join(filter(None, parts)), **options)


@dataclass(frozen=True, kw_only=True)
class TaskOutput:
    """What came of a task, and who did it."""

    name: str
    agent: str
    output: Any


@dataclass(frozen=True, kw_only=True)
class CrewResult:
    """What a crew came to: an output per task, in the order in which they are given.

    ``delegations`` is who gave what to whom, ``corrections`` how often a manager was asked again,
    ``fallbacks`` how often everybody was given everything, for want of a plan; ``unasked`` counts
    those of them for which the manager was not even asked, as its plans had been of no use.
    """

    tasks: tuple[TaskOutput, ...]
    delegations: tuple[Delegation, ...] = ()
    corrections: int = 0
    fallbacks: int = 0
    unasked: int = 0

    @property
    def output(self) -> Any:
        """What came of the last task."""
        return self.tasks[-1].output

    def __getitem__(self, name: str) -> Any:
        """What came of the task called ``name``."""
        found = [task.output for task in self.tasks if task.name == name]
        if not found:
            raise KeyError(name)
        return found[0]


@dataclass(frozen=True)
class Crew:
    """``await Crew([researcher, writer], [research, write])({"topic": "gates"})``.

    ``agents``   members: agents, and crews or chats that work as one
    ``tasks``    what is to be done; none in a crew that another one gives its work to
    ``process``  see :mod:`accord.team.crew`
    ``span``     the most subordinates that a manager has
    ``manager``  what managers are like: :class:`accord.team.hierarchy.ManagerOptions`
    ``sees``     how much of its context's outputs a task is shown: all of those that it names
                 (``full``), else the last in full and those before in short (``summary``)
    """

    agents: Sequence[Member]
    tasks: Sequence[Task] = ()
    _: KW_ONLY
    process: Process = "sequential"
    span: int = 4
    manager: ManagerOptions = field(default_factory=ManagerOptions)
    sees: Visibility | None = None
    name: str = "crew"
    description: str = ""

    def __post_init__(self) -> None:
        who = f"crew {self.name!r}"
        put = partial(object.__setattr__, self)
        put("agents", check_members(self.agents, who))
        put("tasks", tuple(self.tasks))
        _check(self, who)
        names = named(self.tasks, who)
        in_order(names, who)
        for task in self.tasks:
            _check_task(self, task, f"{who}: {names[task]}")
        if not self.description:
            put("description", ", ".join(each.name for each in self.agents))

    async def __call__(self, inputs: Mapping[str, Any] | str | None = None) -> CrewResult:
        """Do the tasks, with their placeholders filled from ``inputs``.

        A text is the input ``task``. A crew without tasks has it as its one task, as it stands.
        """
        crew, given = self, inputs
        _check_inputs(inputs, f"crew {self.name!r}")
        if isinstance(inputs, str):
            given = {"task": inputs}
            if not self.tasks and inputs.strip():
                crew = replace(self, tasks=(Task("{task}"),))
        if not crew.tasks:
            raise UsageError(
                f"crew {self.name!r} has no tasks; give it some, or call it with a text"
            )
        filled = dict(cast("Mapping[str, Any]", given or {}))
        texts = {task: task.text(filled) for task in crew.tasks}
        result: CrewResult = await call(
            "agent",
            crew.name,
            [inputs],
            lambda scope: _Work(crew, texts, filled, scope).run(),
            version=f"{crew.process} {crew.span} {' '.join(m.name for m in crew.agents)}",
        )
        return result

    @cached_property
    def roster(self) -> Roster:
        """The members' names."""
        return Roster((each.name for each in self.agents), f"crew {self.name!r}")

    @cached_property
    def tree(self) -> Boss:
        """The managers, in a hierarchical crew."""
        return tree_of(self.agents, self.span, f"{self.name} manager")

    @property
    def workers(self) -> tuple[Agent[Any], ...]:
        """The agents at work in it, those of crews in it among them."""
        found: list[Agent[Any]] = []
        for each in self.agents:
            if isinstance(each, Agent):
                found.append(each)
            elif isinstance(each, Crew):
                found += each.workers
        return tuple(found)

    def doing(self, task: Task) -> Member | None:
        """Who does ``task``; None if managers decide."""
        if task.agent is None:
            return self.agents[0] if self.process != "hierarchical" else None
        if not isinstance(task.agent, str):
            return task.agent
        name = self.roster.match(task.agent)
        return next(each for each in self.agents if each.name == name)

    def owners(self, tool: str) -> tuple[Agent[Any], ...]:
        """Who has a tool."""
        return tuple(w for w in self.workers if any(each.name == tool for each in w.tools))


class _Work:
    """A crew at work: all that is here follows from the answers that the log has."""

    def __init__(
        self, crew: Crew, texts: Mapping[Task, str], inputs: Mapping[str, Any], scope: CallScope
    ) -> None:
        self._crew = crew
        self._texts = texts
        self._inputs = inputs
        self._scope = scope
        self._names = named(crew.tasks, crew.name)
        self._order = in_order(self._names, crew.name)
        self._prefix = f"{crew.name} {scope.path}"
        self._board = Blackboard(self._prefix)
        self._plans: dict[str, list[Outcome]] = {}

    async def run(self) -> CrewResult:
        if self._crew.process == "parallel":
            done = await gather(self._when_ready(task) for task in self._order)
        else:
            done = [await self._do(task) for task in self._order]
        led = dict(zip(self._order, done, strict=True))
        return CrewResult(
            tasks=tuple(
                TaskOutput(name=name, agent=self._doer(task), output=led[task].value)
                for task, name in self._names.items()
            ),
            delegations=tuple(each for one in done for each in one.delegations),
            corrections=sum(one.corrections for one in done),
            fallbacks=sum(one.fallbacks for one in done),
            unasked=sum(one.unasked for one in done),
        )

    def _doer(self, task: Task) -> str:
        doing = self._crew.doing(task)
        return self._crew.tree.name if doing is None else doing.name

    async def _when_ready(self, task: Task) -> Led:
        for other in task.context or ():
            await self._board.wait_for(f"out/{self._names[other]}")
        return await self._do(task)

    async def _do(self, task: Task) -> Led:
        """Do a task, and put what came of it on the board."""
        doing = self._crew.doing(task)
        begun = _look("a task begins") if task.requires else 0
        if doing is None:
            led = await self._lead(task)
        else:
            key = f"{self._prefix}/out/{self._names[task]}"
            writes = {} if task.requires else {key: "replace"}
            value = await self._ask(
                task, doing, self._texts[task], output=task.output, writes=writes
            )
            led = Led(value=value)
            if writes and isinstance(doing, Agent):
                return led
        if task.requires:
            led = await self._require(task, led, begun)
        self._board.write(f"out/{self._names[task]}", led.value)
        return led

    async def _lead(self, task: Task) -> Led:
        text = self._texts[task]
        self._board.write(f"task/{self._names[task]}", text)
        return await self._leading(task).lead(self._crew.tree, text, task.output)

    def _leading(self, task: Task) -> Leading:
        shares = [f"{self._prefix}/task/{self._names[task]}"]

        async def work(member: Member, instruction: str) -> Any:
            return await self._ask(task, member, instruction, shares=shares)

        return Leading(board=self._board, options=self._crew.manager, work=work, plans=self._plans)

    async def _ask(
        self, task: Task, member: Member, text: str, *, output: Any = str, **more: Any
    ) -> Any:
        """What ``member`` comes to, asked ``text`` and shown the task's context."""
        if not isinstance(member, Agent):
            return conclusion_of(await member(self._with_context(task, text)))
        changes: dict[str, Any] = {
            "instructions": filled_if_known(member.instructions, self._inputs)
        }
        if output is not str:
            changes["output"] = output
        if reads := self._reads(task):
            sees = next(iter(reads.values()))
            changes |= {"reads": reads, "sees": member.spec.sees}
            if member.spec.sees == "nothing":
                changes["sees"] = sees
        return await derived(member, **changes, **more)(text)

    def _reads(self, task: Task) -> dict[str, Visibility]:
        """What is shown of the outputs of a task's context."""
        if task.context is not None:
            keys = [f"{self._prefix}/out/{self._names[other]}" for other in task.context]
            return dict.fromkeys(keys, self._crew.sees or "full")
        if self._crew.process == "parallel" or task is self._order[0]:
            return {}
        return {f"{self._prefix}/out/*": self._crew.sees or "summary"}

    def _with_context(self, task: Task, text: str) -> str:
        """A task for a team, which does not read this board."""
        known = [self._names[other] for other in task.context or ()]
        parts = [f"{name}:\n{self._board.read(f'out/{name}')}" for name in known]
        return "\n\n".join([*parts, text])

    async def _require(self, task: Task, led: Led, begun: int) -> Led:
        """See to it that each required tool has been used, by asking who has it."""
        missing = self._unused(task, begun)
        if not missing:
            return led
        doing = self._crew.doing(task)
        owners = {tool: self._crew.owners(tool)[0] for tool in missing}
        given = [
            Delegation(
                manager=self._doer(task),
                to=owner.name,
                instruction=f"Use the tool {tool} for this: {self._texts[task]}",
                by="requirement",
            )
            for tool, owner in owners.items()
        ]
        for each in given:
            self._board.append("delegations", each)
        values = await gather(
            self._ask(task, owner, each.instruction, output=task.output if owner is doing else str)
            for owner, each in zip(owners.values(), given, strict=True)
        )
        if left := self._unused(task, begun):
            who = ", ".join(owners[tool].name for tool in left)
            raise DelegationError(
                f"crew {self._crew.name!r}: {self._names[task]} requires the tools "
                f"{', '.join(left)}, and {who} did not use them when told to; "
                "say in the tool's description when it is of use, or use a stronger model",
                tools=left,
            )
        value = values[-1]
        if any(owner is not doing for owner in owners.values()):
            value = await self._leading(task).joined(
                self._crew.tree,
                self._texts[task],
                ["so far", *(each.to for each in given)],
                [led.value, *values],
                task.output,
            )
        return replace(led, value=value, delegations=(*led.delegations, *given))

    def _unused(self, task: Task, begun: int) -> tuple[str, ...]:
        """Which required tools no owner has used since event ``begun``, as of now."""
        seen = _look("tools used")
        log, path = self._scope.execution.log, current_scope("a task").path
        used = tools_used(log, path, begun, seen)
        return tuple(
            tool
            for tool in task.required
            if not any((owner.name, tool) in used for owner in self._crew.owners(tool))
        )


def _look(what: str) -> int:
    """A position of the log that is the same on a replay."""
    return note(what, lambda scope, _: Looked(what=what, by=scope.agent)).seq


def _check(crew: Crew, who: str) -> None:
    if crew.process not in PROCESSES:
        raise UsageError(f"{who}: process is one of {', '.join(PROCESSES)}, not {crew.process!r}")
    if crew.span < 2:
        raise UsageError(f"{who}: a manager has at least 2 subordinates, not a span of {crew.span}")
    check_team("crew", crew.name, crew.roster, crew.sees)


def _check_inputs(inputs: object, who: str) -> None:
    named = isinstance(inputs, Mapping) and all(
        isinstance(name, str) for name in cast("Mapping[Any, Any]", inputs)
    )
    if inputs is not None and not isinstance(inputs, str) and not named:
        raise UsageError(
            f"{who} was given {inputs!r}; give it a text, or a dict of its placeholders' names and "
            "values"
        )


def _check_task(crew: Crew, task: Task, what: str) -> None:
    if task.agent is None and crew.process != "hierarchical" and len(crew.agents) > 1:
        raise UsageError(
            f"{what} has no agent; give it one of {', '.join(crew.roster)}, or let managers decide "
            "with process='hierarchical'"
        )
    if isinstance(task.agent, str):
        try:
            crew.roster.match(task.agent)
        except UnknownNameError as error:
            raise UsageError(f"{what}: {error}") from error
    elif task.agent is not None and task.agent not in crew.agents:
        raise UsageError(f"{what} is for {task.agent.name}, who is not in the crew; add it")
    for tool in task.required:
        if not crew.owners(tool):
            raise UsageError(f"{what} requires the tool {tool!r}, which nobody in the crew has")
