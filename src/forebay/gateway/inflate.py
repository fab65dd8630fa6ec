"""gzip bodies, inflated piece by piece, never further than allowed.

      feed                feed, the stream's end
    ────────▶ INFLATING ────────────────────────▶ ENDED ──▶ anything more is refused

- No more than `limit` + 1 bytes are ever inflated, whatever a bomb promises: the one byte too many
  is how it shows.
- One step takes at most `TAKEN_BYTES` and gives at most `STEP_BYTES`, which is a millisecond or two
  of work, also for the costliest stream; whoever feeds lets others run between steps.
- One gzip stream and nothing after it. RFC 1952 allows several in a row, which no client of an
  API sends, and a million empty ones would cost far more than their bytes.

Not here: the socket and the limit of the compressed bytes (`body.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from forebay.core.errors import InvalidRequest, RequestTooLarge

# Half a millisecond for text; zeros, which inflate the furthest, take 0.8.
STEP_BYTES = 256 * 1024
# Nothing but the tables of tiny blocks, the costliest stream, takes two.
TAKEN_BYTES = 64 * 1024
# zlib's own number for: a gzip header, then a window of any size.
_GZIP = 16 + zlib.MAX_WBITS
_HOW = "Send one gzip stream and nothing else, or the body as it is, without a Content-Encoding."


class Inflater:
    """One body's. `steps` with each part that arrives, then `end`."""

    def __init__(self, limit: int) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._limit = limit
        self._may_give = limit + 1

    def steps(self, part: bytes) -> Iterator[bytes]:
        """What this part inflates to. Raises RequestTooLarge, InvalidRequest."""
        for start in range(0, len(part), TAKEN_BYTES):
            yield from self._some(part[start : start + TAKEN_BYTES])

    def _some(self, part: bytes) -> Iterator[bytes]:
        while part:
            if self._stream.eof:
                raise _invalid("goes on after the end of its gzip stream")
            try:
                found = self._stream.decompress(part, min(STEP_BYTES, self._may_give))
            except zlib.error:
                raise _invalid("is not valid gzip") from None
            self._may_give -= len(found)
            if not self._may_give:
                raise RequestTooLarge(
                    f"The request body inflates to more than {self._limit} bytes, which is the "
                    "limit. Send fewer or shorter messages."
                )
            part = self._stream.unused_data or self._stream.unconsumed_tail
            yield found

    def end(self) -> None:
        """The last part has arrived. Raises InvalidRequest if the stream goes on."""
        if not self._stream.eof:
            raise _invalid("ends before its gzip stream does")


def _invalid(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"The request body says Content-Encoding: gzip, but {what}. {_HOW}",
        code="invalid_encoding",
    )
