"""A reply that is read while it is being written, and ways to cut it.

Pieces come as the engine sends them, or all at once when the log answers: what is made of them must
not depend on where they were cut. So cut them by what they say, with :func:`sentences` or
:func:`lines`, before making calls of them.

A request that is tried again writes anew. As far as that goes as the reader was told before, it is
not told again, and then goes on; if it goes otherwise, the reader gets a
:class:`accord.errors.StreamError`.

A writer is never held up by its reader: a request that waited would hold a place at the engine that
the reader may need. What is kept for the reader is at most one reply, which ``max_tokens`` bounds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Self

from accord.errors import StreamError
from accord.flow.scope import Scope
from accord.log.waiters import Waiters


class Stream:
    """One reply, between who writes and who reads it: an :class:`accord.flow.scope.Tap`."""

    def __init__(self, writer: str) -> None:
        self._writer = writer
        self._text = ""
        """What the writer has written, in its present attempt."""
        self._told = ""
        """What the reader has been given."""
        self._follows: tuple[int, ...] = ()
        """What the text so far follows from."""
        self.attempts: set[int] = set()
        """The events from which attempts followed: the writer's end comes after them."""
        self._over = False
        self._failure: BaseException | None = None
        self._news = Waiters()
        self.read_to_its_end = False

    def begin(self, seq: int) -> None:
        """An attempt begins that follows from event ``seq``."""
        self._text = ""
        self._follows = (seq,)
        self.attempts.add(seq)

    def take(self, text: str) -> None:
        """The next piece."""
        self._text += text
        self._news.wake()

    def finish(self, text: str, ends: tuple[int, ...]) -> None:
        """``text`` is the answer; ``ends`` are the last events of its writer."""
        self._text, self._follows, self._over = text, ends, True
        self._news.wake()

    def fail(self, error: BaseException) -> None:
        """There will be no answer."""
        self._failure, self._over = error, True
        self._news.wake()

    async def whole(self) -> None:
        """Return when the writer has ended; raises if what was read is not what it has written."""
        while not self._over:
            await self._news.wait()
        self._check()

    def read(self, reader: Scope) -> AsyncIterator[str]:
        """The text, as it comes; what ``reader`` does next follows from it."""
        return _Reading(self, reader)

    async def next_piece(self, reader: Scope) -> str:
        """What has come since the last one; raises ``StopAsyncIteration`` at the end."""
        while True:
            self._check()
            piece = self._text[len(self._told) :]
            if piece or self._over:
                break
            await self._news.wait()
        for seq in self._follows:
            if seq not in reader.frontier:
                reader.follow(seq)
        if not piece:
            self.read_to_its_end = True
            raise StopAsyncIteration
        self._told += piece
        return piece

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        text, told = self._text, self._told
        if text.startswith(told) or (told.startswith(text) and not self._over):
            return
        same = next(i for i in range(len(told)) if text[i : i + 1] != told[i])
        raise StreamError(
            f"{self._writer!r} was tried again, and what it writes now differs from what had been "
            f"passed on, after {same} characters: {told[same:][:40]!r}, now {text[same:][:40]!r}; "
            "let the stage read whole replies (streams=False), or ask with temperature=0 and a seed"
        )


# A terminator ends a sentence if white space follows; a CJK one, whatever follows. Both want the
# next character, so that a sentence ends in the same place wherever the pieces were cut.
_SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”’）]*(?=[^。！？」』”’）])|\n")
_LINE = re.compile(r"\n")


def sentences(chunks: AsyncIterable[str]) -> AsyncIterator[str]:
    """The sentences of a text that comes in pieces, each as soon as it is whole.

    They end with a full stop, an exclamation or a question mark, or with their line; white space
    around them is dropped.
    """
    return _Cut(chunks, _SENTENCE, str.strip, keeps_empty=False)


def lines(chunks: AsyncIterable[str]) -> AsyncIterator[str]:
    r"""The lines of a text that comes in pieces, each as soon as it is whole, without its ``\n``.

    As with ``text.split("\n")``, except that nothing follows a last line break.
    """
    return _Cut(chunks, _LINE, lambda line: line.removesuffix("\n"), keeps_empty=True)


# Iterators, not generators: a generator that is left in the middle is closed by a task of its own.
class _Reading:
    def __init__(self, stream: Stream, reader: Scope) -> None:
        self._stream = stream
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await self._stream.next_piece(self._reader)


class _Cut:
    def __init__(
        self,
        chunks: AsyncIterable[str],
        end: re.Pattern[str],
        trim: Callable[[str], str],
        *,
        keeps_empty: bool,
    ) -> None:
        self._chunks = aiter(chunks)
        self._end = end
        self._trim = trim
        self._keeps_empty = keeps_empty
        self._rest = ""
        self._ready: deque[str] = deque()
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            self._take(await anext(self._chunks, None))
        return self._ready.popleft()

    def _take(self, chunk: str | None) -> None:
        self._over = chunk is None
        self._rest += chunk or ""
        cut = 0
        for match in self._end.finditer(self._rest):
            self._add(self._rest[cut : match.end()])
            cut = match.end()
        self._rest = self._rest[cut:]
        if self._over and self._rest:
            self._add(self._rest)

    def _add(self, part: str) -> None:
        trimmed = self._trim(part)
        if trimmed or self._keeps_empty:
            self._ready.append(trimmed)
