"""The index of a memory: what it held at one position of the log, ready to be searched.

It goes to the position that a search asks about, forward or back, and takes in or out what was
written between, so a ranking depends on the log before that position and on nothing else: not on
what came later, not on other memories. It lives in SQLite in the process's memory, is derived from
the log when first needed, and goes with it.

Words rank by bm25 (FTS5), vectors by cosine (sqlite-vec), both together by reciprocal rank fusion
(Cormack, Clarke and Büttcher 2009). Equals stand in the order of the program, not of time.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib import import_module
from itertools import groupby, islice
from typing import Any, NamedTuple
from weakref import finalize

from accord.comm.put import space_of
from accord.comm.space import Write, order_of
from accord.comm.terms import Term, document, query
from accord.errors import UsageError
from accord.log.blobs import digest_of
from accord.log.events import CallFinished, CallStarted, Envelope
from accord.log.log import Log
from accord.tokens.encode import encode

Embed = Callable[[list[str]], Awaitable[list[list[float]]]]

READ_TERMS = 256
"""How many different terms of a query are looked at."""
USED_TERMS = 32
"""How many are searched for: the rarest, which tell most."""
MANY_ITEMS = 1000
"""From here on, a term that most items have is only searched for if a query has no other."""
FUSED = 100
"""How far down each ranking is fused, if not more is asked for."""
FUSION = 60
"""The constant of reciprocal rank fusion, as its authors chose it."""
EMBEDDED_AT_ONCE = 256

_TABLES = """
CREATE VIRTUAL TABLE words USING fts5(terms, content='', tokenize='ascii');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab('words', 'row');
CREATE TABLE vectors (digest TEXT PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID;
"""
_INSERT = "INSERT INTO words (rowid, terms) VALUES (?, ?)"
_DELETE = "INSERT INTO words (words, rowid, terms) VALUES ('delete', ?, ?)"
_ITEMS_WITH = "SELECT coalesce(sum(doc), 0) FROM vocabulary WHERE term >= ? AND term <= ?"
_BY_WORDS = """
SELECT rowid, -bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score DESC
"""
_BY_VECTOR = """
SELECT digest, 1 - vec_distance_cosine(vector, ?) AS score FROM vectors ORDER BY score DESC
"""
"""Without a score, and so last, is a vector of zeros."""

Ranking = Iterable[tuple[int, float]]
"""Versions with their scores, best first."""


class Document(NamedTuple):
    """An item as it is indexed; ``embedded`` is the digest of its text, if that gets a vector."""

    version: int
    terms: str
    tags: tuple[str, ...]
    embedded: tuple[str, ...]


class Indexes:
    """The indexes of a run: a :class:`accord.log.log.Fold` that does its work when it is asked."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, bool], Index] = {}

    def add(self, envelope: Envelope) -> None:
        """Nothing to be done before there is a search."""

    def of(self, log: Log, name: str, *, vectors: bool) -> Index:
        """The index of the memory ``name``."""
        index = self._of.get((name, vectors))
        if index is None:
            index = self._of[name, vectors] = Index(log, name, vectors=vectors)
        return index


class Index:
    """The items of one memory as of one position. Does not hold on to the log that holds it."""

    def __init__(self, log: Log, name: str, *, vectors: bool) -> None:
        self._prefix = f"{name}/"
        self._database = connect(vectors=vectors)
        finalize(self, self._database.close)
        self._database.executescript(_TABLES)
        self._position = 0
        self._items = 0
        self._tagged: dict[str, set[int]] = {}
        self._with_text: dict[str, set[int]] = {}
        self.vectors = Vectors(name, self._database) if vectors else None
        if self.vectors is not None:
            self.vectors.recover(log)

    def move(self, log: Log, position: int) -> None:
        """Go to ``position``. Costs as much as there are keys written between."""
        state = space_of(log, "memory")
        changed = [
            key
            for key in state.changed(*sorted((self._position, position)))
            if key.startswith(self._prefix)
        ]
        gone = self._documents(log, (state.last(key, self._position) for key in changed))
        come = self._documents(log, (state.last(key, position) for key in changed))
        with self._database:
            self._database.executemany(_DELETE, [(each.version, each.terms) for each in gone])
            self._database.executemany(_INSERT, [(each.version, each.terms) for each in come])
        self._items += len(come) - len(gone)
        self._position = position
        for each in gone:
            _take_out(self._tagged, each.tags, each.version)
            _take_out(self._with_text, each.embedded, each.version)
        for each in come:
            _take_in(self._tagged, each.tags, each.version)
            _take_in(self._with_text, each.embedded, each.version)

    def texts_without_vector(self, log: Log) -> dict[str, str]:
        """By digest, the texts here of which no vector is known."""
        assert self.vectors is not None
        missing = {
            digest: next(iter(versions))
            for digest, versions in self._with_text.items()
            if digest not in self.vectors.known
        }
        return {digest: text_of(item_at(log, at)[0]) for digest, at in missing.items()}

    def find(
        self, log: Log, text: str, vector: bytes | None, limit: int, tags: Iterable[str]
    ) -> list[tuple[int, float]]:
        """The best ``limit`` items that have all of ``tags``, best first."""
        wanted = [self._tagged.get(tag, set[int]()) for tag in tags]
        allowed = set[int].intersection(*wanted) if wanted else None
        words = _in_order(log, self._by_words(text), allowed)
        if vector is None:
            return list(islice(words, limit))
        alike = _in_order(log, self._by_vector(vector), allowed)
        fused = _fused(words, alike, max(limit, FUSED))
        return list(islice(_in_order(log, fused), limit))

    def _by_words(self, text: str) -> Ranking:
        terms = self._telling(query(text, READ_TERMS))
        if not terms:
            return ()
        return self._database.execute(_BY_WORDS, (" OR ".join(term.phrase for term in terms),))

    def _by_vector(self, vector: bytes) -> Ranking:
        for digest, score in self._database.execute(_BY_VECTOR, (vector,)):
            if score is None:
                return
            for version in self._with_text.get(digest, ()):
                yield version, score

    def _telling(self, terms: list[Term]) -> list[Term]:
        """Those of ``terms`` that are there and tell items apart, the rarest first."""
        items = {term: self._database.execute(_ITEMS_WITH, term).fetchone()[0] for term in terms}
        there = sorted((term for term in terms if items[term]), key=items.__getitem__)
        if self._items >= MANY_ITEMS:
            there = [term for term in there if items[term] <= self._items / 2] or there
        return there[:USED_TERMS]

    def _documents(self, log: Log, writes: Iterable[Write | None]) -> list[Document]:
        there = [write for write in writes if write is not None and write.written.how != "remove"]
        return [self._document(log, write.seq) for write in sorted(there)]

    def _document(self, log: Log, version: int) -> Document:
        value, tags = item_at(log, version)
        text = text_of(value)
        embedded = self.vectors is not None and text.strip()
        digests = (digest_of_text(text),) if embedded else ()
        return Document(version, document(text), tags, digests)


class Vectors:
    """The vectors of texts, by the texts' digests; each is made once."""

    def __init__(self, name: str, database: Any) -> None:
        self._name = name
        self._database = database
        self._in_work: dict[str, asyncio.Event] = {}
        self._length = 0
        self.known: set[str] = set()

    def recover(self, log: Log) -> None:
        """Take over what earlier processes have recorded with the answers of searches."""
        for envelope in log.envelopes:
            event = envelope.event
            if isinstance(event, CallFinished):
                asked = log.envelopes[event.call].event
                assert isinstance(asked, CallStarted)
                if asked.kind == "search" and asked.name == self._name:
                    self._keep(log.values.decode(event.output).get("vectors", {}))

    def of(self, digest: str) -> bytes:
        """The vector of a known text."""
        found = self._database.execute("SELECT vector FROM vectors WHERE digest = ?", (digest,))
        vector: bytes = found.fetchone()[0]
        return vector

    async def complete(self, texts: Mapping[str, str], embed: Embed) -> dict[str, bytes]:
        """Make what is not known of ``texts``, and return what was made here.

        What another search is making is waited for; if that fails, it is made here.
        """
        made: dict[str, bytes] = {}
        while missing := [digest for digest in texts if digest not in self.known]:
            mine = [digest for digest in missing if digest not in self._in_work]
            if mine:
                mine = mine[:EMBEDDED_AT_ONCE]
                made |= await self._make({digest: texts[digest] for digest in mine}, embed)
            else:
                await self._in_work[missing[0]].wait()
        return made

    async def _make(self, texts: Mapping[str, str], embed: Embed) -> dict[str, bytes]:
        done = asyncio.Event()
        self._in_work.update(dict.fromkeys(texts, done))
        try:
            vectors = self._packed(await embed(list(texts.values())), len(texts))
            made = dict(zip(texts, vectors, strict=True))
            self._keep(made)
            return made
        finally:
            for digest in texts:
                del self._in_work[digest]
            done.set()

    def _packed(self, vectors: list[list[float]], count: int) -> list[bytes]:
        """``vectors`` as sqlite-vec takes them, in 32 bits a number."""
        if len(vectors) != count:
            raise UsageError(
                f"embed of memory {self._name!r} gave {len(vectors)} vectors for {count} texts; "
                "it has to give one for each, in their order"
            )
        for vector in vectors:
            self._length = self._length or len(vector)
            if len(vector) != self._length or not vector:
                raise UsageError(
                    f"embed of memory {self._name!r} gave a vector of {len(vector)} numbers, where "
                    f"others of this run have {self._length}; use one model for all of it"
                )
            if not all(map(math.isfinite, vector)):
                raise UsageError(
                    f"embed of memory {self._name!r} gave a vector that is not all finite numbers"
                )
        return [array("f", vector).tobytes() for vector in vectors]

    def _keep(self, vectors: Mapping[str, bytes]) -> None:
        with self._database:
            self._database.executemany(
                "INSERT OR IGNORE INTO vectors VALUES (?, ?)", vectors.items()
            )
        self.known.update(vectors)
        for vector in vectors.values():
            self._length = self._length or len(vector) // 4


def connect(*, vectors: bool) -> Any:
    """An empty database in memory; raises :class:`accord.errors.UsageError` if it has no vectors.

    It may be closed from any thread: that is where garbage is collected.
    """
    if not vectors:
        return sqlite3.connect(":memory:", check_same_thread=False)
    try:
        extension = import_module("sqlite_vec").loadable_path()
    except ImportError:
        raise UsageError(
            "a memory with embed needs the package sqlite-vec: pip install 'accord[memory]'"
        ) from None
    database = _extensible().connect(":memory:", check_same_thread=False)
    database.enable_load_extension(1)
    database.load_extension(extension)
    database.enable_load_extension(0)
    return database


def _extensible() -> Any:
    """A module like sqlite3 that can load extensions, which not every build of Python can."""
    for name in ("sqlite3", "pysqlite3"):
        try:
            module = import_module(name)
        except ImportError:
            continue
        if hasattr(module.Connection, "enable_load_extension"):
            return module
    raise UsageError(
        "a memory with embed needs an sqlite3 that loads extensions, and this Python's does not: "
        "pip install pysqlite3-binary, or use a Python built with "
        "--enable-loadable-sqlite-extensions"
    )


def item_at(log: Log, version: int) -> tuple[Any, tuple[str, ...]]:
    """The value and the tags that were written with event ``version``."""
    written: Any = log.envelopes[version].event
    item = log.values.decode(written.value)
    return item["value"], tuple(item.get("tags", ()))


def text_of(value: Any) -> str:
    """What is searched, and what a prompt shows: a text as it stands, anything else encoded."""
    return value if isinstance(value, str) else encode(value)


def digest_of_text(text: str) -> str:
    """Names a text."""
    return digest_of(text.encode("utf-8", "surrogatepass"))


def _in_order(
    log: Log, ranking: Ranking, allowed: set[int] | None = None
) -> Iterator[tuple[int, float]]:
    """``ranking`` without what is not allowed; equals in the order of the program."""
    for _, equals in groupby(ranking, key=lambda hit: hit[1]):
        hits = [hit for hit in equals if allowed is None or hit[0] in allowed]
        yield from sorted(hits, key=lambda hit: order_of(log.envelopes[hit[0]].scope))


def _fused(words: Ranking, alike: Ranking, depth: int) -> Ranking:
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in (words, alike):
        for rank, (version, _) in enumerate(islice(ranking, depth), start=1):
            scores[version] += 1 / (FUSION + rank)
    return sorted(scores.items(), key=lambda hit: -hit[1])


def _take_in(sets: dict[str, set[int]], names: Iterable[str], version: int) -> None:
    for name in names:
        sets.setdefault(name, set()).add(version)


def _take_out(sets: dict[str, set[int]], names: Iterable[str], version: int) -> None:
    for name in names:
        sets[name].discard(version)
        if not sets[name]:
            del sets[name]
