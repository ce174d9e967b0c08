"""Token ids of rendered chats, cached by piece, so that a turn costs its new text only.

Rules:

1. A text is split before each *boundary*: an added token of the tokenizer that ends what is before
   it, such as ``<|im_start|>``. The ids of a text are then those of its pieces, one after the
   other. Boundaries of which this is not true in a few trials are not used.
2. At most ``MAX_NEW_BYTES`` of pieces that are not cached are tokenized for one text, in at most
   ``MAX_PIECES`` pieces; of the text after that the ids are unknown, until it comes again.
3. Of a piece that is too long the ids up to its last white space within the limit count; they are
   not cached.
4. The cache holds at most ``max_bytes`` of ids, with ``ENTRY_BYTES`` for each piece; what was used
   least recently is dropped. Pieces are named by a digest, so that no text of a client is kept.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.values.scale import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.requests.blocks import Tokenizer

MAX_NEW_BYTES: Final = 65_536
"""Tokenizing blocks the picker for tens of ms."""
MAX_PIECES: Final = 4096
MAX_BYTES: Final = 32 * 2**20
ENTRY_BYTES: Final = 200
MAX_BOUNDARIES: Final = 32
DROPPED_BYTES: Final = 16 * 4
"""Ids at the end of a text without white space that may differ from those of the whole text."""
_TAIL_CHARS: Final = 1024
_LAST_SPACE: Final = re.compile(r"(?<=\S)\s+\S*$")
_TRIALS: Final = ("", "a", "tide gate", " x ", "end\n", "\n\n", "Ä中 ", "1.5")


class Ids(NamedTuple):
    """Token ids at the beginning of a text."""

    packed: bytes
    """Little-endian, four bytes each."""
    tokens: int
    """Tokens of the whole text, estimated if these are not all."""
    whole: bool
    """Whether these are all."""


class Pieces:
    """A tokenizer with a cache; the module states the rules.

    Args:
        tokenizer: Maps pieces to ids, without special tokens around them.
        boundaries: Candidates for boundaries; at most `MAX_BOUNDARIES` are used.
        max_bytes: Bound of the cache.
    """

    def __init__(
        self, tokenizer: Tokenizer, boundaries: Iterable[str] = (), max_bytes: int = MAX_BYTES
    ) -> None:
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self.cached_bytes = 0
        self.boundaries = self._separating(boundaries)
        longest_first = sorted(self.boundaries, key=len, reverse=True)
        self._boundary = (
            re.compile("|".join(map(re.escape, longest_first))) if self.boundaries else None
        )

    def encode(self, text: str, *, partial: bool = False) -> Ids | None:
        """Return the ids of a text, or of its beginning (rule 2); ``None`` if it has none.

        Args:
            text: The text.
            partial: The text goes on, so ids at its end may be others.
        """
        found: list[bytes] = []
        left, done = MAX_NEW_BYTES, 0
        starts = self._starts(text)
        for start, end in zip(starts, (*starts[1:], len(text)), strict=True):
            last = partial and end == len(text)
            piece = text[start:end]
            data = piece.encode("utf-8", "replace")
            name = b"" if last else hashlib.blake2b(data, digest_size=16).digest()
            packed = self._cache.get(name)
            if packed is not None:
                self._cache.move_to_end(name)
            elif len(data) > left or last or len(found) >= MAX_PIECES:
                packed = self._beginning(data[:left])
                if packed is None:
                    return None
                found.append(packed)
                done = start + len(piece) * min(left, len(data)) // max(1, len(data))
                break
            else:
                left -= len(data)
                packed = self._ids(piece)
                if packed is None:
                    return None
                self._keep(name, packed)
            found.append(packed)
            done = end
        joined = b"".join(found)
        whole = done == len(text) and not partial
        tokens = len(joined) // 4
        if not whole:
            left = len(text) - done
            tokens += left * tokens // done if done else int(left / BYTES_PER_TOKEN)
        return Ids(joined, tokens, whole)

    def _starts(self, text: str) -> list[int]:
        starts = [0]
        if self._boundary is not None:
            for match in self._boundary.finditer(text):
                if match.start():
                    starts.append(match.start())
                    if len(starts) > MAX_PIECES:
                        break
        return starts

    def _beginning(self, data: bytes) -> bytes | None:
        """Return the ids that a piece starts with, however it goes on."""
        text = data.decode("utf-8", "ignore")
        tail = _LAST_SPACE.search(text, max(0, len(text) - _TAIL_CHARS))
        if tail is not None:
            return self._ids(text[: tail.start()])
        packed = self._ids(text)
        return None if packed is None else packed[:-DROPPED_BYTES]

    def _ids(self, text: str) -> bytes | None:
        ids = self._tokenizer.encode(text, special=False)
        return None if ids is None else struct.pack(f"<{len(ids)}I", *ids)

    def _keep(self, name: bytes, packed: bytes) -> None:
        self._cache[name] = packed
        self.cached_bytes += len(packed) + ENTRY_BYTES
        while self.cached_bytes > self._max_bytes:
            _, dropped = self._cache.popitem(last=False)
            self.cached_bytes -= len(dropped) + ENTRY_BYTES

    def _separating(self, candidates: Iterable[str]) -> tuple[str, ...]:
        """Return the candidates that separate ids in trials (rule 1)."""
        kept: list[str] = []
        for candidate in candidates:
            if len(kept) < MAX_BOUNDARIES and candidate and self._separates(candidate):
                kept.append(candidate)
        return tuple(kept)

    def _separates(self, candidate: str) -> bool:
        for before in _TRIALS:
            for after in _TRIALS:
                parts = (self._ids(before), self._ids(candidate + after))
                if None in parts or self._ids(before + candidate + after) != b"".join(
                    part or b"" for part in parts
                ):
                    return False
        return True
