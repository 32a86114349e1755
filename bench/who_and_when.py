"""What do real teams send of what they write, and what would they under each visibility?

The runs are public (Who&When): Magentic-One's, an orchestrator with its workers, and those of
CaptainAgent, short talks of experts. In both, everyone is sent everything before each turn: that is
"full". Its history is only ever added to, so an engine with a prefix cache reads it once for each
agent, and "diff" sends the same. "New" is what the engine does not keep: vLLM, SGLang and llama.cpp
also keep what they wrote, while hosted APIs may read an agent's own replies again. The agents' own
instructions are not in these logs and not counted. Shares are of what full sends, and for prices (a
cached token at a tenth) of what full costs.

The traces are read from `$ACCORD_TRACES`, or else `../shared/traces`, and left out where there are
none. Tokens are counted by the local model's tokenizer, or estimated where it isn't installed.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import cast

from accord.errors import AccordError
from accord.observe.messages import read_messages
from accord.observe.sent import VisibilityReport, sent_of
from accord.observe.whatif import (
    POLICIES,
    Conversation,
    Count,
    Visibility,
    folded,
    history,
    looks,
)
from accord.tokens.count import estimate
from bench._counting import Tokenizer, with_tokenizer
from bench.encodings import TRACES, TRACES_OF
from bench.harness import Row

QUICK = False  # needs the local model
LOSSLESS: tuple[Visibility, ...] = ("full", "keys", "diff", "summary")
TARGETS: dict[tuple[str, Visibility, str], float] = {
    ("Magentic-One", "diff", "new"): 5,
    ("CaptainAgent", "diff", "new"): 40,
    ("Magentic-One", "summary", "sent"): 20,
    ("CaptainAgent", "summary", "sent"): 60,
}


def run() -> list[Row]:
    teams = _teams()
    if not teams:
        return []
    try:
        return cast("list[Row]", with_tokenizer(lambda count: _counted(teams, count)))
    except AccordError as error:
        print(f"tokens are estimated: {error}")
        return _rows(teams, estimate)


def _teams() -> dict[str, list[Conversation]]:
    found: dict[str, list[Conversation]] = {}
    for name, pattern in TRACES_OF.items():
        if paths := sorted(TRACES.glob(pattern)):
            found[name] = [one for path in paths for one in read_messages(path).conversations]
        else:
            print(f"{name}: left out, no {TRACES / pattern}")
    return found


async def _counted(teams: dict[str, list[Conversation]], count: Tokenizer) -> list[Row]:
    """The tokenizer answers on this loop; who asks is in a thread."""
    loop = asyncio.get_running_loop()

    async def ask(text: str) -> int:
        return await count(text) if text else 0

    @cache
    def exact(text: str) -> int:
        return asyncio.run_coroutine_threadsafe(ask(text), loop).result()

    return await asyncio.to_thread(_rows, teams, exact)


def _rows(teams: dict[str, list[Conversation]], count: Count) -> list[Row]:
    rows: list[Row] = []
    for name, conversations in teams.items():
        report = sent_of(conversations, count=count)
        strict = sent_of(conversations, count=count, replies_kept=False)
        again = 100 * strict.policies["diff"].new / strict.policies["full"].sent
        what = f"{name}: diff, new where an agent's own replies are read again"
        rows += [*_shares(name, report), Row(what=what, measured=again, unit="%")]
        rows.append(_lost(name, conversations))
    return rows


def _shares(name: str, report: VisibilityReport) -> list[Row]:
    full = report.policies["full"]
    broadcast = f"{name}: full, sent {full.sent:,} of {report.written:,} written"
    rows = [Row(what=broadcast, measured=full.sent / report.written, unit="x")]
    for policy in POLICIES:
        spent = report.policies[policy]
        shares = {
            "sent": spent.sent / full.sent,
            "new": spent.new / full.sent,
            "priced": spent.priced / full.priced,
        }
        for what, share in shares.items():
            if (policy, what) in (("full", "sent"), ("full", "priced")):
                continue
            target = TARGETS.get((name, policy, what))
            label = f"{name}: {policy}, {what}"
            rows.append(Row(what=label, measured=100 * share, unit="%", target=target))
    return rows


def _lost(name: str, conversations: Sequence[Conversation]) -> Row:
    """Prompts that, handles followed, are not the whole history, each utterance once."""
    seen = [
        folded(look, conversation.said) == history(look, conversation.said)
        for conversation in conversations
        for policy in LOSSLESS
        for look in looks(conversation.said, policy)
    ]
    what = f"{name}: views that lose something, of {len(seen):,} ({', '.join(LOSSLESS)})"
    return Row(what=what, measured=seen.count(False), unit="views", target=0)
