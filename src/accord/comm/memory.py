"""Shared memory: what a run has learned, found again by what it says.

Choose it for what may be needed later, by whom nobody knows yet; what is known to be read belongs
on the board. An item is one event; overwriting a key makes a new version. A search sees the memory
as of the position in the log where it begins, or as of an earlier one (``at``), and its answer is
recorded: a replay asks no index, and a search that a crash cut off is made again as of its own
beginning, so what others have added since changes nothing.

Items are found by their words (bm25); given ``embed``, by meaning too, both rankings fused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accord.comm.index import Embed, Indexes, connect, digest_of_text, item_at, text_of
from accord.comm.put import Put, put, space_of, writing_scope
from accord.comm.space import MISSING
from accord.errors import UsageError
from accord.flow.call import call
from accord.flow.note import note
from accord.flow.scope import CallScope, current_scope
from accord.log.events import Envelope, Looked


@dataclass(frozen=True, kw_only=True)
class Found:
    """An item that a search found. Scores compare within one search only; larger is better."""

    key: str
    value: Any
    score: float
    version: int
    tags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value as it was searched, and as a prompt shows it."""
        return text_of(self.value)


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """Items there are, writes ever made, and the version of the last one."""

    items: int
    writes: int
    version: int


class Memory:
    """The memory ``name`` of the run, with those named below it. Holds no state of its own.

    Methods belong inside a flow, on its event loop. ``embed`` gives a vector for each of the texts
    that it gets, in their order, all of one length; each text is sent once in a run. It needs
    ``accord[memory]``: raises :class:`accord.errors.UsageError` if that is not installed.
    """

    def __init__(self, name: str = "memory", embed: Embed | None = None) -> None:
        _check_name(name)
        if embed is not None:
            connect(vectors=True).close()
        self.name = name
        self._prefix = f"{name}/"
        self._embed = embed

    def add(
        self,
        value: Any,
        key: str | None = None,
        tags: str | Iterable[str] = (),
        *,
        if_version: int | None = None,
    ) -> str:
        """Keep ``value``, a text or data, and return its key: the place in the flow if not given.

        Writing what is there already is no write. Raises
        :class:`accord.errors.ConflictError` on the terms of
        :meth:`accord.comm.blackboard.Blackboard.write`.
        """
        text_of(value)  # what has no text is refused here, not by the search that comes upon it
        item = {"value": value}
        if wanted := _as_tags(tags):
            item["tags"] = list(wanted)
        if key is not None:
            _check_name(key)
        scope = writing_scope(f"memory {self.name}", [key, item])
        key = key or scope.place
        put(self._put(key, item, if_version), scope)
        return key

    def remove(self, key: str, *, if_version: int | None = None) -> None:
        """Forget ``key``, on the same terms as :meth:`add`; earlier versions stay in the log."""
        _check_name(key)
        put(self._put(key, None, if_version))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        envelope = self._look(f"memory {self._prefix}{key}")
        log = current_scope("memory.get()").execution.log
        state = space_of(log, "memory")
        item = state.value(self._prefix + key, envelope.seq, log.values.decode)
        return default if item is MISSING else item["value"]

    def position(self) -> int:
        """Where the log stands, for ``at``: searches pinned to it see the same memory."""
        return self._look(f"position for memory {self.name}").seq

    async def search(
        self,
        query: str,
        limit: int = 5,
        *,
        at: int | None = None,
        tags: str | Iterable[str] = (),
    ) -> list[Found]:
        """The ``limit`` items that fit ``query`` best, best first; only those with all ``tags``.

        ``query`` is plain text in any script, without syntax; one word in common is enough. ``at``
        asks for the memory as of an earlier position of the log, and costs as much as has been
        written since. Raises :class:`accord.errors.UsageError` if ``query`` is empty.
        """
        if not query.strip():
            raise UsageError(f"a search of memory {self.name!r} needs a query; it got {query!r}")
        if limit < 1:
            raise UsageError(f"a search finds at least 1 item, not {limit}")
        wanted = _as_tags(tags)

        async def body(scope: CallScope) -> dict[str, Any]:
            return await self._search(scope, query, limit, at, wanted)

        answer = await call("search", self.name, [query, limit, at, *wanted], body, pure=True)
        return [self._found(*hit) for hit in answer["found"]]

    def statistics(self) -> MemoryStatistics:
        """How much there is by now. For people: it is not recorded, so no flow may depend on it."""
        log = current_scope("memory.statistics()").execution.log
        state = space_of(log, "memory")
        writes = [each for each in state.writes if each.written.key.startswith(self._prefix)]
        keys = {each.written.key for each in writes}
        return MemoryStatistics(
            items=sum(1 for key in keys if state.version(key, len(log.envelopes))),
            writes=len(writes),
            version=writes[-1].seq if writes else 0,
        )

    async def _search(
        self, scope: CallScope, query: str, limit: int, at: int | None, tags: tuple[str, ...]
    ) -> dict[str, Any]:
        """What is recorded: versions with their scores, and the vectors that were made for it."""
        log = scope.execution.log
        position = scope.start if at is None else at
        if not 0 <= position <= scope.start:
            raise UsageError(
                f"a search of memory {self.name!r} cannot be pinned to {at}: the log "
                f"stands at {scope.start}; take memory.position(), or a version plus one"
            )
        index = log.fold(Indexes).of(log, self.name, vectors=self._embed is not None)
        vector, made = None, dict[str, bytes]()
        if self._embed is not None and index.vectors is not None:
            index.move(log, position)
            digest = digest_of_text(query)
            texts = index.texts_without_vector(log) | {digest: query}
            made = await index.vectors.complete(texts, self._embed)
            vector = index.vectors.of(digest)
        index.move(log, position)  # again: while vectors were made, others may have moved it
        found = index.find(log, query, vector, limit, tags)
        for version, _ in found:
            scope.follow(version)
        return {"found": found, "vectors": made} if made else {"found": found}

    def _found(self, version: int, score: float) -> Found:
        log = current_scope("memory.search()").execution.log
        value, tags = item_at(log, version)
        written: Any = log.envelopes[version].event
        key = written.key.removeprefix(self._prefix)
        return Found(key=key, value=value, score=score, version=version, tags=tags)

    def _put(self, key: str, item: Any, if_version: int | None) -> Put:
        return Put(
            key=self._prefix + key,
            value=item,
            how="remove" if item is None else "replace",
            space="memory",
            if_version=if_version,
        )

    def _look(self, what: str) -> Envelope:
        return note(what, lambda scope, _: Looked(what=what, by=scope.agent))


def _as_tags(tags: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({tags} if isinstance(tags, str) else set(tags)))


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable():
        raise UsageError(f"memories and their keys are named by printable text, not by {name!r}")
