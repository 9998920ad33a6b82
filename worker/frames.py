"""A byte stream cut into whole frames, decoded only at their borders."""

from __future__ import annotations

from worker.routes import Framing

_BORDERS = {Framing.NDJSON: (b"\n",), Framing.SSE: (b"\n\n", b"\r\n\r\n")}


class FrameCutter:
    """Feed it bytes as they come; it returns text frames that end where the server ended them.

    An NDJSON frame is one line without its newline; an SSE frame keeps its closing blank line, so that frames
    can be joined; a JSON answer is one frame, given at the end.
    """

    def __init__(self, framing: Framing) -> None:
        """Start with an empty buffer."""
        self._borders = _BORDERS.get(framing, ())
        self._keep_border = framing is Framing.SSE
        self._buffer = bytearray()
        self._scanned = 0

    def feed(self, data: bytes) -> list[str]:
        """Take bytes, return the frames they complete."""
        self._buffer += data
        found = self._next_border()
        if found is None:
            frames = []
        elif len(self._borders) == 1 or b"\r" not in self._buffer:
            frames = self._split(self._borders[0])
        else:
            frames = self._cut(found)
        # A border can lie across two reads: look at the last bytes again next time.
        self._scanned = max(0, len(self._buffer) - 3)
        return [frame for frame in frames if frame.strip()]

    def close(self) -> str | None:
        """Return what is left when the stream ends without a border, or None."""
        rest, self._buffer = _decode(bytes(self._buffer)), bytearray()
        return rest if rest.strip() else None

    def _split(self, border: bytes) -> list[str]:
        """Take every frame at once: most servers know one border only."""
        *parts, rest = bytes(self._buffer).split(border)
        self._buffer = bytearray(rest)
        kept = border.decode() if self._keep_border else ""
        return [_decode(part) + kept for part in parts]

    def _cut(self, found: tuple[int, int] | None) -> list[str]:
        """Take one frame after the other, each up to whichever border comes first."""
        frames = []
        while found is not None:
            start, end = found
            frames.append(_decode(bytes(self._buffer[: end if self._keep_border else start])))
            del self._buffer[:end]
            self._scanned = 0
            found = self._next_border()
        return frames

    def _next_border(self) -> tuple[int, int] | None:
        hits = [(at, at + len(b)) for b in self._borders if (at := self._buffer.find(b, self._scanned)) >= 0]
        return min(hits) if hits else None


def _decode(data: bytes) -> str:
    # Frames end on ASCII, so a character is never split here; what is still invalid came so from the server.
    return data.decode("utf-8", errors="replace")
