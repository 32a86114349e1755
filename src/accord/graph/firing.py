"""Which node fires when: the core of a graph, without time, tasks or a log.

A node that ends gives a token to each node it leads to. A node fires when it has all tokens that
can still come: as soon as nothing at work can reach it any more. So a slow branch holds up only
what comes after it, a branch that a router left out is not waited for, and a loop collects its
inputs anew each time round. Nodes that wait for each other in a circle fire together. Which
tokens a node fires with does not depend on which of them came first.

Each firing has a label, made of what led to it: the same on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from accord.errors import JoinError, LoopLimitError
from accord.graph.shape import Join, Node, Send, Shape, members
from accord.graph.state import State, merge
from accord.log.blobs import digest_of

LABEL_CHARACTERS = 60
ORDER = 6
"""How much of what sent it places a firing among others, in numbers."""

Target = str | Send
Recorded = Callable[[str], frozenset[int] | None]


@dataclass(eq=False, slots=True)
class Firing:
    """One execution of a node.

    ``state`` is what it sees, ``payload`` what it is given instead, if a Send fired it. ``end`` is
    the number of the event with which it ended, ``after`` the state when it had.
    """

    number: int
    node: Node
    label: str
    depth: int
    order: tuple[int, ...]
    state: State
    sources: tuple[Firing, ...]
    payload: Any = None
    sent: bool = False
    late: int = 0
    past_deadline: bool = False
    end: int = -1
    after: State | None = None

    @property
    def seen(self) -> State:
        """The state that those see who come after it."""
        assert self.after is not None, "it has not ended"
        return self.after

    def forget_writes(self) -> None:
        """Nothing is beside it: whatever comes is put on the state as it is now."""
        for cell in self.seen.cells.values():
            if cell.before:
                cell.before = ()


@dataclass(frozen=True, kw_only=True)
class FiringStatistics:
    """Firings so far, tokens that came too late for a join, and what is at work or waits."""

    fired: int
    late: int
    running: int
    pending: int


class Machine:
    """One execution of a graph.

    ``recorded`` says which tokens a firing was recorded with, by the numbers of the events with
    which their sources ended, so that a replay goes on with the same; None if there is no record.
    With ``keeps_writes``, what came of the state can be told write by write at the end.
    """

    def __init__(
        self, shape: Shape, recorded: Recorded | None = None, *, keeps_writes: bool = False
    ) -> None:
        self.shape = shape
        self._recorded = recorded
        self._keeps_writes = keeps_writes
        self._end = len(shape.nodes)
        self._at_work: dict[str, Firing] = {}
        self._running = [0] * (self._end + 1)
        self._running_mask = 0
        self._pending: dict[int, dict[str, Firing]] = {}
        """Tokens by the node that they wait for, and by the label of their source."""
        self._pending_mask = 0
        self._expired = 0
        self._fired = [0] * (self._end + 1)
        self._only_to = list(shape.only_to.items())
        self._late = 0
        self.result: State | None = None
        """The state at the end, once it is reached."""
        self.last: tuple[Firing, ...] = ()
        """The firings that led to the end."""

    def start(self, state: State, targets: Sequence[Target], end: int = 0) -> list[Firing]:
        """Begin with ``state``, which event ``end`` gave; the firings that are ready."""
        source = Firing(-1, _THE_START, "", 0, (), state, (), end=end, after=state)
        return self._lead(source, targets)

    def finish(self, firing: Firing, targets: Sequence[Target]) -> list[Firing]:
        """``firing`` has ended, with ``end`` and ``after`` set; the firings that are ready now."""
        self._leave(firing)
        if not self._keeps_writes and not self._at_work and not self._pending:
            firing.forget_writes()
        return self._lead(firing, targets)

    def drop(self, firing: Firing) -> list[Firing]:
        """``firing`` was cancelled, and is not waited for; the firings that are ready now."""
        if firing.label in self._at_work:
            self._leave(firing)
        return self._settle()

    def expire(self, number: int) -> list[Firing]:
        """The deadline of the join of node ``number`` is over; the firings that are ready now."""
        if number in self._pending:
            self._expired |= 1 << number
        return self._settle()

    def stragglers(self, number: int) -> list[Firing]:
        """What is at work only for node ``number``, which has fired without it."""
        only = self.shape.only_to.get(number, 0)
        return [
            each
            for each in self._at_work.values()
            if only >> each.number & 1 and each.late >> number & 1
        ]

    def joins_with_deadline(self) -> list[tuple[int, float, int]]:
        """The joins that wait for a deadline: number, seconds, and the event of the first input."""
        return [
            (number, seconds, min(token.end for token in tokens.values()))
            for number, tokens in self._pending.items()
            if (seconds := self._join(number).deadline_s) is not None
            and self._recorded_tokens(number) is None
        ]

    def statistics(self) -> FiringStatistics:
        """How things stand."""
        return FiringStatistics(
            fired=sum(self._fired),
            late=self._late,
            running=len(self._at_work),
            pending=len(self._pending),
        )

    def _join(self, number: int) -> Join:
        return self.shape.end if number == self._end else self.shape.nodes[number].join

    def _begin(self, firing: Firing) -> Firing:
        self._at_work[firing.label] = firing
        self._running[firing.number] += 1
        self._running_mask |= 1 << firing.number
        return firing

    def _leave(self, firing: Firing) -> None:
        del self._at_work[firing.label]
        firing.sources = ()
        self._running[firing.number] -= 1
        if not self._running[firing.number]:
            self._running_mask &= ~(1 << firing.number)

    def _lead(self, source: Firing, targets: Sequence[Target]) -> list[Firing]:
        """Give a token to each target; to the end, if there is none."""
        ready: list[Firing] = []
        if len(targets) == 1 and type(targets[0]) is str:
            self._give(source, self.shape.index[targets[0]], self._busy, ready)
            if self._pending:
                ready += self._settle()
            return ready
        sent = 0
        numbers: dict[int, None] = {}
        for target in targets:
            if isinstance(target, Send):
                ready.append(self._send(source, target, sent))
                sent += 1
            else:
                numbers[self.shape.index[target]] = None
        if not numbers and not sent:
            numbers[self._end] = None
        busy = self._busy
        for number in numbers:
            busy |= 1 << number
        for number in numbers:
            self._give(source, number, busy, ready)
        ready += self._settle()
        return ready

    @property
    def _busy(self) -> int:
        return self._running_mask | self._pending_mask

    def _send(self, source: Firing, send: Send, count: int) -> Firing:
        number = self.shape.index[send.node]
        label = _label(f"{send.node}[{source.label}.{count}]")
        order = (number, *source.order[-ORDER:], count)
        firing = self._firing(number, label, order, (source,))
        firing.payload, firing.sent = send.state, True
        return self._begin(firing)

    def _give(self, source: Firing, number: int, busy: int, ready: list[Firing]) -> None:
        """Fire the node, if no more than this token can come; else let the token wait there."""
        shape, bit = self.shape, 1 << number
        if source.late & bit:
            self._late += 1
        elif (
            shape.takes_one[number]
            and not self._pending_mask & bit
            and not shape.reached_by[number] & busy
        ):
            ready.append(self._fire(number, (source,)))
        elif self._join(number).until == "each":
            label = _label(f"{shape.nodes[number].name}<{source.label}>")
            order = (number, *source.order[-ORDER:], 0)
            ready.append(self._begin(self._firing(number, label, order, (source,))))
        else:
            self._pending.setdefault(number, {})[source.label] = source
            self._pending_mask |= bit

    def _settle(self) -> list[Firing]:
        """Fire what has all that it waits for."""
        if self.shape.only_to:
            self._forget_moot()
        free = [number for number in self._pending if self._is_free(number)]
        free.sort()
        ready: list[Firing] = []
        for number in free:
            expired = bool(self._expired >> number & 1)
            tokens = self._take(number)
            if number < self._end:
                firing = self._fire(number, tokens)
                firing.past_deadline = expired
                ready.append(firing)
            else:
                self.last = tokens
                self.result = merge([each.seen for each in tokens], "the end")
        return ready

    def _forget_moot(self) -> None:
        """Drop tokens that wait where all ways lead to a join that has gone on without them."""
        for number in list(self._pending):
            late = -1
            for token in self._pending[number].values():
                late &= token.late
            if any(only >> number & 1 and late >> join & 1 for join, only in self._only_to):
                self._late += len(self._pending.pop(number))
                self._pending_mask &= ~(1 << number)

    def _is_free(self, number: int) -> bool:
        join, before = self._join(number), self.shape.reached_by[number]
        if join.drops:
            recorded = self._recorded_tokens(number)
            come = self._pending[number].values()
            if recorded is not None:
                if recorded <= {token.end for token in come}:
                    return True
            elif self._expired >> number & 1 or len(come) >= (join.wanted or len(come) + 1):
                return True
        if before & self._running_mask:
            return False
        others = self._pending_mask & ~(1 << number)
        if before & others & ~self.shape.reaches[number]:
            return False
        if join.wanted is not None and len(self._pending[number]) < join.wanted:
            raise self._starved(number, join.wanted)
        return True

    def _recorded_tokens(self, number: int) -> frozenset[int] | None:
        if self._recorded is None or number == self._end:
            return None
        return self._recorded(self._next_label(number))

    def _take(self, number: int) -> tuple[Firing, ...]:
        """The tokens that the node fires with now, in the order of the program."""
        join = self._join(number)
        recorded = self._recorded_tokens(number) if join.drops else None
        come = self._pending.pop(number).values()
        bit = 1 << number
        self._pending_mask &= ~bit
        self._expired &= ~bit
        taken = [token for token in come if recorded is None or token.end in recorded] or come
        self._late += len(come) - len(taken)
        if join.drops:
            for each in self._whatever_reaches(number):
                each.late |= bit
        return tuple(sorted(taken, key=_place))

    def _whatever_reaches(self, number: int) -> Iterator[Firing]:
        before = self.shape.reached_by[number]
        yield from (each for each in self._at_work.values() if before >> each.number & 1)
        for other, tokens in self._pending.items():
            if before >> other & 1:
                yield from tokens.values()

    def _next_label(self, number: int) -> str:
        name, count = self.shape.nodes[number].name, self._fired[number]
        return f"{name}.{count}" if count else name

    def _fire(self, number: int, tokens: tuple[Firing, ...]) -> Firing:
        label = self._next_label(number)
        self._fired[number] += 1
        if self._fired[number] > self.shape.max_loops:
            raise self._endless(number, tokens)
        firing = self._firing(number, label, (), tokens)
        firing.order = number, firing.depth
        return self._begin(firing)

    def _firing(
        self, number: int, label: str, order: tuple[int, ...], sources: tuple[Firing, ...]
    ) -> Firing:
        node = self.shape.nodes[number]
        if len(sources) == 1:
            [source] = sources
            depth, state, late = source.depth + 1, source.seen, source.late
        else:
            depth = 1 + max([each.depth for each in sources])
            state = merge([each.seen for each in sources], f"node {node.name!r}")
            late = -1
            for each in sources:
                late &= each.late
        if depth > self.shape.max_loops * self._end:
            raise self._endless(number, sources)
        firing = Firing(number, node, label, depth, order, state, sources)
        firing.late = late & ~(1 << number)
        return firing

    def _starved(self, number: int, wanted: int) -> JoinError:
        shape = self.shape
        node = "the end" if number == self._end else f"node {shape.names[number]!r}"
        came = sorted({token.node.name for token in self._pending[number].values()})
        missing = [name for name in shape.names_before(number) if name not in came]
        return JoinError(
            f"{node} of graph {shape.name!r} waits for {wanted} inputs, and can only have "
            f"{len(self._pending[number])}: from {', '.join(came)}, not from "
            f"{', '.join(missing) or 'any other'}. A router left them out, or they ended "
            "elsewhere; let it wait for fewer, or until='all' that can come"
        )

    def _endless(self, number: int, tokens: Iterable[Firing]) -> LoopLimitError:
        shape = self.shape
        cycle = shape.reaches[number] & shape.reached_by[number] | 1 << number
        names = [shape.names[each] for each in members(cycle)]
        cells = {key: cell for token in tokens for key, cell in token.seen.cells.items()}
        keys = sorted(key for key, cell in cells.items() if cell.by in names)
        return LoopLimitError(
            f"graph {shape.name!r} went round {' → '.join(names)} more than {shape.max_loops} "
            f"times (they write {', '.join(keys) or 'nothing'}); let a router lead out of it, or "
            "compile the graph with more max_loops"
        )


_THE_START = Node(name="the start", body=None)


def _place(firing: Firing) -> tuple[tuple[int, ...], str]:
    return firing.order, firing.label


def _label(text: str) -> str:
    """What is sent by what was sent by ... has a label that does not grow without end."""
    if len(text) <= LABEL_CHARACTERS:
        return text
    return f"{text[: LABEL_CHARACTERS - 9]}~{digest_of(text.encode())[:7]}{text[-1]}"
