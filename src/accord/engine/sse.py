"""Server-sent events: bytes in, payloads out. No I/O, and a bound on what is kept."""

from __future__ import annotations

from accord.errors import EngineProtocolError

MAX_LINE_BYTES = 16 * 1024 * 1024


class EventDecoder:
    r"""The payloads of ``data`` fields, however the bytes are cut.

    Lines end at ``\n`` alone, less one trailing ``\r``: JSON payloads may hold U+2028 or U+0085,
    which ``str.splitlines`` would break at. A line is decoded once it is whole, so a character that
    is split between chunks stays whole: no UTF-8 sequence holds the byte of ``\n``. Comments and
    the fields ``event``, ``id`` and ``retry`` are ignored. ``where`` names the sender in errors.
    """

    def __init__(self, where: str = "the engine", *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._where = where
        self._max_line_bytes = max_line_bytes
        self._buffer = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """Payloads that ``chunk`` completes.

        Raises EngineProtocolError when a line or an event passes the bound.
        """
        searched = len(self._buffer)
        self._buffer += chunk
        payloads: list[str] = []
        start = 0
        while (end := self._buffer.find(b"\n", max(start, searched))) >= 0:
            payloads += self._line(bytes(self._buffer[start:end]))
            start = end + 1
        del self._buffer[:start]
        self._check(len(self._buffer))
        return payloads

    def finish(self) -> list[str]:
        """What is left at the end of the stream, for servers that omit the last blank line."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return self._line(rest) + self._line(b"")

    def _line(self, line: bytes) -> list[str]:
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        line = line.removesuffix(b"\r")
        if line:
            self._field(line)
            return []
        payloads = ["\n".join(self._data)] if self._data else []
        self._data.clear()
        self._size = 0
        return payloads

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._size += len(value)
            self._check(self._size)
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))

    def _check(self, size: int) -> None:
        if size > self._max_line_bytes:
            message = (
                f"{self._where} sent an event of more than {self._max_line_bytes} bytes; "
                "check that the URL is an OpenAI-compatible server"
            )
            raise EngineProtocolError(message)
