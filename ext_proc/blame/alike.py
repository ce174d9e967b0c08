"""Near copies: which bodies differ from that of a suspect by a few bytes. Pure.

Rules:

1. Two bodies are *alike* if one becomes the other by at most ``allowance`` bytes that are changed,
   inserted or removed: ``MAX_EDITS``, and at most one in ``BYTES_PER_EDIT``, but always one. The
   bound is absolute, so that requests that have a long beginning in common (a system prompt, an
   example) but ask something else are not alike.
2. Bodies that gzip or zlib wrote are compared as they read, because one byte changes all that
   follows it in a compressed body.
3. Each kept body belongs to one kind or more: to those of the bodies that it was alike when it was
   kept, else to its own. A client that changes a few bytes each time stays within the first kind.
4. At most ``MAX_BODIES`` bodies of at most ``MAX_BYTES`` each and ``TOTAL_BYTES`` in all are kept.
   Those that were kept once go before those that were kept again, the oldest first. A longer body
   is alike none.
5. A look-up compares with at most ``MAX_COMPARED`` bodies, and ``COMPARED_BYTES`` of them, byte by
   byte, those kept again first. Most bodies differ in length by more than the allowance, and all
   but a few of the others have none of its pieces at its place; neither is counted.

Source of the algorithm: G. M. Landau and U. Vishkin, "Fast parallel and serial approximate string
matching", 1989: O(edits squared) searches for the end of a common run, each at the speed of memcmp.
"""

from __future__ import annotations

import zlib
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EDITS: Final = 8
BYTES_PER_EDIT: Final = 16
MAX_BODIES: Final = 128
MAX_BYTES: Final = 160 * 1024
TOTAL_BYTES: Final = 4 * 2**20
MAX_KINDS: Final = 8
"""Maximum kinds of one body."""
MAX_COMPARED: Final = 8
COMPARED_BYTES: Final = 256 * 1024
_PIECE: Final = 32
"""Longest piece whose place is looked up, bytes."""
_SHORTEST: Final = 4
_FIRST_RUN: Final = 64
_LONGEST_RUN: Final = 65_536
_PACKED: Final = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""How gzip and zlib streams begin (RFC 1952, RFC 1950)."""
_ANY_WINDOW: Final = 47
"""``wbits`` for either of both."""
_NOWHERE: Final = -(2**60)


def allowance(size: int) -> int:
    """Return by how many bytes a body of a size may differ from one that it is alike."""
    return max(1, min(MAX_EDITS, size // BYTES_PER_EDIT))


def plain(body: bytes) -> bytes:
    """Return a body as it reads, at most ``MAX_BYTES + 1`` bytes of one that is compressed."""
    if body[:2] not in _PACKED:
        return body
    try:
        return zlib.decompressobj(_ANY_WINDOW).decompress(body, MAX_BYTES + 1)
    except zlib.error:
        return body


def within(one: bytes, other: bytes, most: int) -> bool:
    """Return whether at most ``most`` bytes changed, inserted or removed make one the other."""
    size, goal = len(one), len(other) - len(one)
    if abs(goal) > most:
        return False
    before: dict[int, int] = {}
    for edits in range(most + 1):
        left = most - edits
        reached: dict[int, int] = {}
        for shift in range(max(-edits, goal - left), min(edits, goal + left) + 1):
            at = 0
            if edits:
                at = max(
                    before.get(shift, _NOWHERE) + 1,
                    before.get(shift - 1, _NOWHERE),
                    before.get(shift + 1, _NOWHERE) + 1,
                )
            at = min(at, size, len(other) - shift)
            if at < 0 or at + shift < 0:
                continue
            reached[shift] = at = at + _common(one, other, at, at + shift)
            if shift == goal and at == size:
                return True
        before = reached
    return False


def _common(one: bytes, other: bytes, start: int, begin: int) -> int:
    """Return how many bytes from ``start`` and ``begin`` are the same."""
    least, most, run = 0, min(len(one) - start, len(other) - begin), _FIRST_RUN
    while least < most:
        end = min(least + run, most)
        if one[start + least : start + end] != other[begin + least : begin + end]:
            most = end - 1
            break
        least, run = end, min(4 * run, _LONGEST_RUN)
    while least < most:
        end = (least + most + 1) // 2
        if one[start + least : start + end] == other[begin + least : begin + end]:
            least = end
        else:
            most = end - 1
    return least


class _Kept:
    """The body of a suspect."""

    __slots__ = ("again", "body", "kinds", "most", "pieces", "pool")

    def __init__(self, pool: str, body: bytes, kinds: tuple[bytes, ...]) -> None:
        self.pool = pool
        self.body = body
        self.kinds = kinds
        self.again = False
        self.most = allowance(len(body))
        length = len(body) // (self.most + 1)
        width = min(_PIECE, length)
        self.pieces = (
            [(at, body[at : at + width]) for at in range(0, length * (self.most + 1), length)]
            if width >= _SHORTEST
            else []
        )
        """One more than there may be edits, so that one of them stays as it is."""

    def may_be(self, body: bytes) -> bool:
        """Return whether a body has one of the pieces about where it was."""
        most = self.most
        return not self.pieces or any(
            body.find(piece, max(0, at - most), at + len(piece) + most) >= 0
            for at, piece in self.pieces
        )


class Alike:
    """Bodies of suspects, by fingerprint, and the kinds of those that are alike them."""

    def __init__(self) -> None:
        self._kept: dict[bytes, _Kept] = {}
        self._by_size: dict[int, dict[bytes, _Kept]] = {}
        self._left = TOTAL_BYTES

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all bodies."""
        self._kept.clear()
        self._by_size.clear()
        self._left = TOTAL_BYTES

    def keep(
        self, fingerprint: bytes, pool: str, body: bytes, kinds: tuple[bytes, ...] = ()
    ) -> tuple[bytes, ...]:
        """Keep the body of a suspect; return its kinds, at least one.

        Args:
            fingerprint: The body's.
            pool: Its pool: bodies of other pools are not alike it.
            body: The body, as sent.
            kinds: Further kinds of it, which a peer worker has found.
        """
        known = self._kept.get(fingerprint)
        if known is not None:
            known.again = True
            known.kinds = _union(known.kinds, kinds)
            return known.kinds
        body = plain(body)
        kinds = _union(kinds, self._kinds(pool, body)) or (fingerprint,)
        if len(body) > MAX_BYTES:
            return kinds
        while len(self._kept) >= MAX_BODIES or self._left < len(body):
            self.forget(self._oldest())
        kept = self._kept[fingerprint] = _Kept(pool, body, kinds)
        self._by_size.setdefault(len(body), {})[fingerprint] = kept
        self._left -= len(body)
        return kinds

    def kept(self) -> Iterator[tuple[bytes, str, bytes, tuple[bytes, ...]]]:
        """Yield fingerprint, pool, body and kinds of each, those first that were kept first."""
        for fingerprint, each in self._kept.items():
            yield fingerprint, each.pool, each.body, each.kinds

    def _oldest(self) -> bytes:
        once = (key for key, each in self._kept.items() if not each.again)
        return next(chain(once, self._kept))

    def forget(self, fingerprint: bytes) -> None:
        """Forget a body, if it is kept."""
        kept = self._kept.pop(fingerprint, None)
        if kept is not None:
            size = len(kept.body)
            self._left += size
            del self._by_size[size][fingerprint]
            if not self._by_size[size]:
                del self._by_size[size]

    def kinds(self, pool: str, body: bytes) -> tuple[bytes, ...]:
        """Return the kinds of the kept bodies of a pool that a body is alike; often none."""
        return self._kinds(pool, plain(body)) if self._kept else ()

    def _kinds(self, pool: str, body: bytes) -> tuple[bytes, ...]:
        size, found, compared = len(body), dict[bytes, None](), 0
        near = [
            each
            for length in range(size - MAX_EDITS, size + MAX_EDITS + 1)
            for each in self._by_size.get(length, {}).values()
            if each.pool == pool
        ]
        for each in sorted(near, key=_later) if len(near) > 1 else near:
            if found.keys() >= set(each.kinds) or not each.may_be(body):
                continue
            compared += 1
            if compared > MAX_COMPARED or (compared - 1) * size > COMPARED_BYTES:
                break
            if within(each.body, body, each.most):
                found |= dict.fromkeys(each.kinds)
        return tuple(found)


def _union(some: tuple[bytes, ...], more: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the kinds of both, at most ``MAX_KINDS``."""
    return tuple(dict.fromkeys((*some, *more)))[:MAX_KINDS]


def _later(kept: _Kept) -> bool:
    return not kept.again
