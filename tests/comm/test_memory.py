"""Memory: found in any script, as of any position, the same again whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord import Agent, gather, sleep
from accord.agent.memory_tool import memory_tool
from accord.clock import VirtualClock, run_virtual
from accord.comm import index
from accord.comm.memory import Found, Memory
from accord.comm.terms import document, query
from accord.engine.base import Reply, Request, ToolCall
from accord.errors import ConflictError, UsageError
from accord.log.codec import decode_envelope
from accord.log.events import CallFinished, CallStarted, Written
from accord.log.store.base import Store
from accord.log.store.memory import MemoryStore
from accord.log.store.open import open_store
from accord.runtime import Result, Runtime
from accord.testing.scripted import ScriptedEngine

Flow = Callable[[], Coroutine[Any, Any, Any]]

memory = Memory()


def play(
    flow: Flow, script: Any = "ok", *, store: Store | None = None, **options: Any
) -> Result[Any]:
    """Run ``flow`` on virtual time; or resume it, if there is a run in ``store``."""
    store = MemoryStore() if store is None else store

    async def main() -> Result[Any]:
        engine = ScriptedEngine(script)
        runtime = Runtime(engine=engine, log=store, clock=VirtualClock(), **options)
        if store.runs():
            return await runtime.aresume("run", flow)
        return await runtime.arun(flow, run_id="run")

    return run_virtual(main())


def cut(full: Store, position: int) -> MemoryStore:
    """What a crash after ``position`` records leaves."""
    store = MemoryStore()
    store.create("run", "flow")
    lease = store.acquire("run", "crashed")
    blobs = dict(full._blobs) if isinstance(full, MemoryStore) else {}
    store.append(lease, 0, full.read("run")[:position], blobs)
    store.release(lease)
    return store


def keys(found: list[Found]) -> list[str]:
    return [item.key for item in found]


def test_what_was_added_is_found_with_its_class_tags_and_version() -> None:
    async def flow() -> Any:
        memory.add({"vault": 7, "coins": [1, 2]}, "a", tags=["money", "old"])
        key = memory.add("a vault by the sea")
        return key, await memory.search("VAULT"), memory.get("a"), memory.get("b", "none")

    key, found, value, default = play(flow).output
    assert key == "1", "the place in the flow"
    assert sorted(keys(found)) == ["1", "a"]
    item = next(item for item in found if item.key == "a")
    assert (item.value, item.tags, item.version) == (value, ("money", "old"), 1)
    assert "vault" in item.text
    assert value == {"vault": 7, "coins": [1, 2]}
    assert default == "none"


def test_overwriting_makes_a_version_and_both_are_found_where_they_stood() -> None:
    async def flow() -> Any:
        memory.add("a red fox", "animal", "wild")
        before = memory.position()
        memory.add("a blue whale", "animal")
        between = memory.position()
        memory.remove("animal")
        return [
            keys(await memory.search(text, at=at, tags=tags))
            for at in (None, before, between, before, 0)
            for text, tags in (("fox", ()), ("whale", ()), ("fox whale", "wild"))
        ], memory.statistics()

    found, statistics = play(flow).output
    one = ["animal"]
    assert found == [[], [], [], one, [], one, [], one, [], one, [], one, [], [], []]
    assert (statistics.items, statistics.writes) == (0, 3)


def test_the_same_again_is_no_write_and_a_blind_overwrite_is_a_conflict() -> None:
    async def flow() -> Any:
        async def branch(delay: int) -> None:
            await sleep(delay)
            memory.add(f"from branch {delay}", "one")

        memory.add("same", "key", "tag")
        memory.add("same", "key", "tag")
        writes = memory.statistics().writes
        with pytest.raises(ConflictError, match="memory/one"):
            await gather(branch(1), branch(2))
        with pytest.raises(ConflictError, match="version 0 was expected"):
            memory.add("other", "key", if_version=0)
        return writes

    assert play(flow).output == 1


def test_tags_narrow_a_search_and_the_limit_counts_what_is_left() -> None:
    async def flow() -> Any:
        for number in range(30):
            memory.add(f"note {number}", f"{number:02}", ["even"] if number % 2 == 0 else "odd")
        found = await memory.search("note", 3, tags=["odd"])
        return keys(found), await memory.search("note", tags=["odd", "even"])

    assert play(flow).output == (["01", "03", "05"], [])


def test_a_memory_holds_what_is_named_below_it_and_no_other_has_a_say() -> None:
    async def flow() -> Any:
        whole, part, other = Memory("team"), Memory("team/ann"), Memory("teams")
        whole.add("a plan", "plan")
        part.add("a plan of ann", "plan")
        before = await whole.search("plan of ann")
        for number in range(5):
            other.add(f"ann {number}")
        return (
            before == await whole.search("plan of ann"),
            keys(before),
            keys(await part.search("plan")),
        )

    assert play(flow).output == (True, ["ann/plan", "plan"], ["plan"])


# ---------------------------------------------------------------------- any script


@pytest.mark.parametrize(
    ("text", "queries", "others"),
    [
        ("東京都の夜景はとても綺麗です", ["夜景", "東京", "景", "とても綺麗"], ["大阪", "朝"]),
        ("ｶﾀｶﾅ と ﾊﾝｶｸ", ["カタカナ", "ハンカク"], ["ひらがな"]),
        ("人工智能正在改变世界", ["智能", "世界", "世", "改变世界"], ["变界", "机"]),
        ("한국어를 공부합니다", ["한국어", "한국", "공부", "를"], ["중국", "일"]),
        ("ภาษาไทยน้ำเชื่อม", ["ภาษา", "น้ำ", "ก่อน ไทย"], ["จีน"]),
        ("ພາສາລາວ", ["ລາວ"], ["ໄທ"]),
        ("ភាសាខ្មែរ", ["ខ្មែរ"], ["ថៃ"]),
        ("မြန်မာဘာသာ", ["မြန်မာ"], ["ထိုင်း"]),
        ("في البدء كان الكلمة", ["البدء", "الكلمة"], ["بدا"]),
        ("می‌خواهم بروم", ["میخواهم", "می‌خواهم"], ["خواهم"]),
        ("हिन्दी में किताबें हैं", ["किताबें", "हिन्दी"], ["किताब", "हिन्द"]),
        ("Η Αθήνα, ο ΔΡΌΜΟΣ", ["αθήνα", "ΑΘΉΝΑ", "Αθη\u0301να", "δρόμος"], ["Αθηνα", "θήνα"]),
        ("Die Straße nach ZÜRICH", ["STRASSE", "zürich", "zu\u0308rich"], ["zurich", "stra"]),
        ("ship it 🚀🚀 👩‍💻 ❤️", ["🚀", "👩", "👩‍💻", "❤"], ["👍", "🛸"]),
        ("C++ costs 5€", ["c", "+", "€"], ["$", "cpp"]),
        ("iPhone用の手机2024年", ["iphone", "手机", "2024", "年"], ["phone", "24"]),
        ("snake_case, co\u00adoperate", ["snake", "case", "cooperate"], ["snak", "co"]),
        ("x" * 1000, ["X" * 1000], ["x"]),
    ],
)
def test_every_script_is_found_by_its_words(
    text: str, queries: list[str], others: list[str]
) -> None:
    async def flow() -> Any:
        memory.add(text, "it")
        memory.add("something else altogether")
        assert [q for q in queries if keys(await memory.search(q)) != ["it"]] == []
        assert [q for q in others if await memory.search(q)] == []

    play(flow)


@pytest.mark.parametrize(
    "text",
    [
        *['"', "*", "'", "(", "NEAR(fox sea, 2)", "fox AND", "NOT", "-fox", "terms:fox", "fox*"],
        *["{terms}: ^fox", "fox OR", "!!! ... ---", "a\0b", "\0", "\ud800", "fox\udfff", "\ufe0f"],
        *["x" * 100_000, "fox " * 25_000, "東" * 100_000, "".join(map(chr, range(33, 9000)))],
        *["\U0010ffff", "\U000f002b", "\ue000", "\u200d", "); DROP TABLE words; --"],
    ],
)
def test_no_query_is_an_error(text: str) -> None:
    async def flow() -> Any:
        memory.add("the fox", "fox")
        memory.add(text, "itself")
        return keys(await memory.search(text)), bool(query(text, 1))

    found, has_terms = play(flow).output
    assert ("itself" in found) == has_terms
    assert ("fox" in found) == ("fox" in text)


@given(st.text(), st.text())
def test_any_text_is_found_by_any_of_its_terms(text: str, other: str) -> None:
    terms = {term.first for term in query(text, 1000)}
    assert all(term in document(text) for term in terms)
    assert (
        " ".join(document(f"{text}\n{other}").split())
        == f"{document(text)} {document(other)}".strip()
    )


def test_what_is_of_no_use_is_said() -> None:
    async def flow() -> Any:
        for text in ("", " \n"):
            with pytest.raises(UsageError, match="needs a query"):
                await memory.search(text)
        with pytest.raises(UsageError, match="at least 1 item"):
            await memory.search("fox", 0)
        with pytest.raises(UsageError, match="cannot be pinned to 10000"):
            await memory.search("fox", at=10_000)
        for key in ("", "a\nb", "\ud800"):
            with pytest.raises(UsageError, match="printable text"):
                memory.add("fox", key)
        with pytest.raises(UsageError, match="printable text"):
            Memory("")

    play(flow)


# ---------------------------------------------------------------------- against a model

WORDS = ["fox", "sea", "red", "夜景", "東京", "लाल", "🚀"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
some_tags = st.sets(st.sampled_from(["a", "b"]))
some_keys = st.sampled_from(["k0", "k1", "k2", "k3"])
actions = st.one_of(
    st.tuples(st.just("add"), some_keys, texts, some_tags),
    st.tuples(st.just("add"), some_keys, texts, some_tags),
    st.tuples(st.just("remove"), some_keys),
    st.tuples(st.just("pin")),
    st.tuples(st.just("search"), texts, some_tags, st.integers(0, 5), st.integers(1, 5)),
)
State = dict[str, tuple[str, set[str]]]


@settings(max_examples=60)
@given(st.lists(actions, max_size=40))
def test_it_ranks_as_a_model_that_holds_only_what_was_there(steps: list[tuple[Any, ...]]) -> None:
    async def flow() -> None:
        now: State = {}
        pins: list[tuple[int | None, State]] = [(0, {})]
        for act, *rest in steps:
            match act, rest:
                case "add", [key, text, tags]:
                    memory.add(text, key, tags)
                    if now.get(key) != (text, tags):
                        now.pop(key, None)
                        now[key] = text, tags
                case "remove", [key]:
                    memory.remove(key)
                    now.pop(key, None)
                case "pin", []:
                    pins.append((memory.position(), dict(now)))
                case _, [text, tags, back, limit]:
                    at, then = [*pins, (None, now)][-1 - back % (len(pins) + 1)]
                    found = await memory.search(text, limit, at=at, tags=tags)
                    check(found, ranked(then, text, tags), limit)
        for at, then in pins:
            check(await memory.search("red 東京", 99, at=at), ranked(then, "red 東京", set()), 99)

    play(flow)


def ranked(state: State, text: str, tags: set[str]) -> dict[str, float]:
    """Scores of what matches, by the textbook's bm25; the first written first."""
    documents = {key: document(each).split() for key, (each, _) in state.items()}
    mean = sum(map(len, documents.values())) / max(1, len(documents))
    scores = dict.fromkeys(documents, 0.0)
    for term in query(text, 99):
        counts = {
            key: sum(term.first <= each <= term.last for each in found)
            for key, found in documents.items()
        }
        there = sum(map(bool, counts.values()))
        weight = max(math.log((len(documents) - there + 0.5) / (there + 0.5)), 1e-6)
        for key, count in counts.items():
            length = 0.25 + 0.75 * len(documents[key]) / max(mean, 1)
            scores[key] += weight * count * 2.2 / (count + 1.2 * length)
    return {key: s for key, s in scores.items() if s and tags <= state[key][1]}


def check(found: list[Found], expected: dict[str, float], limit: int) -> None:
    best = sorted(expected.values(), reverse=True)[:limit]
    assert [item.score for item in found] == pytest.approx(best)
    assert {item.key: item.score for item in found} == pytest.approx(
        {item.key: expected[item.key] for item in found}
    )
    assert found == sorted(found, key=lambda item: (-item.score, item.version))


# ---------------------------------------------------------------------- side by side


def test_equals_stand_in_the_order_of_the_program_whoever_was_faster() -> None:
    def flow(pauses: list[int]) -> Flow:
        async def branch(number: int) -> list[str]:
            await sleep(pauses[number])
            key = memory.add("the same words", tags="copy")
            await sleep(pauses[-1 - number])
            memory.add(f"only in {number}")
            return [*keys(await memory.search("words", at=0)), key]

        async def whole() -> Any:
            made = await gather(branch(number) for number in range(4))
            found = await memory.search("words", 9)
            return made, [(item.key, item.score) for item in found]

        return whole

    one = play(flow([1, 2, 3, 4])).output
    assert one == play(flow([4, 3, 2, 1])).output == play(flow([2, 2, 1, 7])).output
    assert one[0] == [[key] for key, _ in one[1]]


def test_a_search_that_was_cut_off_is_made_as_of_its_beginning(tmp_path: Path) -> None:
    async def flow() -> Any:
        async def look() -> Any:
            return [(item.key, item.score) for item in await memory.search("fox")]

        async def add() -> None:
            memory.add("a fox that came later")

        memory.add("a fox", "first")
        memory.add("the sea", "second")
        found, *_ = await gather(look(), add(), sleep(1))
        return found, keys(await memory.search("later"))

    # In such a log a search waits between its start and its work, and others may write.
    with closing(open_store(tmp_path / "log", clock=VirtualClock(), durability="sync")) as kept:
        first = play(flow, store=kept, durability="sync").output
        store = cut(kept, 99)
    events = [decode_envelope(record).event for record in store.read("run")]
    assert [type(event) for event in events[3:5]] == [CallStarted, Written]
    assert [key for key, _ in first[0]] == ["first"]
    for position in range(1, len(events)):
        assert play(flow, store=cut(store, position)).output == first


def test_a_replay_asks_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> Any:
        memory.add("a fox")
        return await memory.search("fox")

    store = MemoryStore()
    first = play(flow, store=store).output
    monkeypatch.setattr(index, "Index", None)
    assert play(flow, store=cut(store, len(store.read("run")) - 1)).output == first


def test_an_index_goes_with_its_log() -> None:
    async def flow() -> Any:
        memory.add("a fox")
        return await memory.search("fox")

    result = play(flow)
    database: Any = result.log.fold(index.Indexes).of(result.log, "memory", vectors=False)._database
    database.execute("SELECT 1")
    del result
    gc.collect()
    with pytest.raises(Exception, match="closed"):
        database.execute("SELECT 1")


def test_terms_that_most_items_have_are_searched_for_only_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def flow() -> Any:
        for number in range(9):
            memory.add("the fox" if number == 3 else "the sea", str(number))
        return [len(await memory.search(text, 9)) for text in ("the fox", "the", "the sea", "no")]

    assert play(flow).output == [9, 9, 9, 0]
    monkeypatch.setattr(index, "MANY_ITEMS", 9)
    assert play(flow).output == [1, 9, 9, 0]
    monkeypatch.setattr(index, "MANY_ITEMS", 1000)
    monkeypatch.setattr(index, "USED_TERMS", 1)
    assert play(flow).output == [1, 9, 8, 0], "the rarest tell most"


# ---------------------------------------------------------------------- by meaning


@pytest.fixture
def sent() -> list[str]:
    """The texts that :func:`meaning` was asked for; skips where there are no vectors."""
    try:
        index.connect(vectors=True).close()
    except UsageError as error:
        pytest.skip(str(error))
    return []


def embedding(sent: list[str]) -> index.Embed:
    """Puts words of one field close together."""
    fields = [{"fox", "wolf", "animal"}, {"sea", "ocean", "water"}, {"coin", "money"}]

    async def embed(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(1)
        sent.extend(texts)
        return [[0.1 + len(field & set(text.split())) for field in fields] for text in texts]

    return embed


def test_what_means_the_same_is_found_and_each_text_is_sent_once(sent: list[str]) -> None:
    async def flow() -> Any:
        vectors = Memory("v", embedding(sent))
        vectors.add("a wolf", "wolf", "wild")
        vectors.add("the ocean", "ocean")
        vectors.add("a coin", "coin")
        vectors.add("", "empty")
        pin = vectors.position()
        first, second = await gather(vectors.search("animal"), vectors.search("animal", at=pin))
        assert keys(first) == keys(second)
        vectors.add("the ocean", "again")
        vectors.remove("coin")
        both = keys(await vectors.search("water ocean"))
        return keys(first), both, keys(await vectors.search("animal", at=pin, tags="wild"))

    first, both, wild = play(flow).output
    assert first == ["wolf", "ocean", "coin"]
    assert both == ["ocean", "again", "wolf"]
    assert wild == ["wolf"]
    assert (
        sorted(sent)
        == sorted(set(sent))
        == [*["a coin", "a wolf", "animal", "the ocean", "water ocean"]]
    )


def test_cut_anywhere_the_same_is_found_and_nothing_recorded_is_sent_again(
    sent: list[str],
) -> None:
    async def flow() -> Any:
        vectors = Memory("v", embedding(sent))

        async def look(text: str, at: int | None = None) -> Any:
            found = await vectors.search(text, 9, at=at)
            return [(item.key, item.score) for item in found]

        async def branch(number: int) -> Any:
            await sleep(number / 2)
            vectors.add(f"wolf number {number}")
            return await look("animal", 0), await look("animal", pin)

        vectors.add("a fox", "fox")
        vectors.add("the sea", "sea")
        pin = vectors.position()
        made = await gather(look("water"), *(branch(number) for number in range(3)))
        return made, await look("a wolf")

    store = MemoryStore()
    first = play(flow, store=store).output
    assert [key for key, _ in first[0][0]] == ["sea", "fox"], "as it was when the search began"
    assert [key for key, _ in first[0][1][1]] == ["fox", "sea"]
    everything = set(sent)
    events = [decode_envelope(record).event for record in store.read("run")]
    for position in range(1, len(events)):
        sent.clear()
        assert play(flow, store=cut(store, position)).output == first
        ended = [event for event in events[:position] if isinstance(event, CallFinished)]
        known = b" ".join(bytes(event.output) for event in ended)
        assert [text for text in sent if index.digest_of_text(text).encode() in known] == []
        assert len(sent) == len(set(sent) & everything), "each once"


def test_a_failed_embedding_fails_its_search_and_others_make_it_themselves(
    sent: list[str],
) -> None:
    good, failures = embedding(sent), [OSError("no route")]

    async def flaky(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(1)
        if failures:
            raise failures.pop()
        return await good(texts)

    async def flow() -> Any:
        vectors = Memory("v", flaky)
        vectors.add("a wolf", "wolf")
        return await gather([vectors.search("animal") for _ in range(2)], policy="isolate")

    failed, found = play(flow).output
    assert isinstance(failed, OSError)
    assert keys(found) == ["wolf"]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0]], "1 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], "a vector of 2 numbers, where others of this run have 1"),
        ([[], []], "a vector of 0 numbers"),
        ([[1.0], [math.nan]], "not all finite"),
    ],
)
@pytest.mark.usefixtures("sent")
def test_vectors_that_do_not_fit_are_refused(vectors: list[list[float]], message: str) -> None:
    async def embed(_: list[str]) -> list[list[float]]:
        return vectors

    async def flow() -> Any:
        wrong = Memory("v", embed)
        wrong.add("a wolf")
        with pytest.raises(UsageError, match=message):
            await wrong.search("animal")

    play(flow)


@pytest.mark.usefixtures("sent")
def test_a_vector_of_zeros_is_like_nothing_and_words_still_count() -> None:
    async def embed(asked: list[str]) -> list[list[float]]:
        return [[0.0, 0.0] if "fox" in text else [1.0, 2.0] for text in asked]

    async def flow() -> Any:
        vectors = Memory("v", embed)
        vectors.add("a fox", "fox")
        vectors.add("the sea", "sea")
        return [keys(await vectors.search(text)) for text in ("fox", "no", "sea")]

    assert play(flow).output == [["fox"], ["sea"], ["sea"]]


async def never(_: list[str]) -> list[list[float]]:
    raise AssertionError


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sqlite_vec", None)
    with pytest.raises(UsageError, match=r"pip install 'accord\[memory\]'"):
        Memory(embed=never)


def test_an_sqlite_without_extensions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(Connection=object, loadable_path=lambda: "vec0")
    monkeypatch.setattr(index, "import_module", lambda _: bare)
    with pytest.raises(UsageError, match="pip install pysqlite3-binary"):
        Memory(embed=never)


# ---------------------------------------------------------------------- for agents


def test_an_agent_searches_with_a_tool() -> None:
    agent = Agent("scout", "Look it up.", tools=[memory_tool(memory, 2)])

    def script(request: Request) -> Any:
        last = request.messages[-1]
        if last.role != "tool":
            arguments = ('{"query": "fox"}', '{"query": ""}')
            calls = [
                ToolCall(id=str(i), name="search_memory", arguments=each)
                for i, each in enumerate(arguments)
            ]
            return Reply(text="", tool_calls=tuple(calls))
        return " | ".join(m.content for m in request.messages if m.role == "tool")

    async def flow() -> Any:
        memory.add("a red fox", "red")
        memory.add("fox " * 1000, "long")
        memory.add("a third fox")
        return await agent("where is the fox?")

    found, _, refused = play(flow, script).output.partition(" | ")
    assert "a red fox" in found
    assert "third" not in found
    assert len(found) < 1200
    assert "UsageError" in refused
