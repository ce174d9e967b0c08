"""Counts the work of reading a request, in units that do not depend on the machine.

A unit is about 6 ns on a core of 2.5 GHz: an executed bytecode of ours is one. What C code does for
us counts by what it is given; the weights were measured, with the costliest input of each kind.
"""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.cost.guard import Bytecodes
from ext_proc.requests import BadRequest, read_body, read_head, token_blocks
from ext_proc.requests.parsing import replica_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNIT_NS: Final = 6
BOUND: Final = 2_000_000 // UNIT_NS
"""Units of a reading: 2 ms."""
_CONTAINER_NS: Final = 60
_COMMA_NS: Final = 15
_AGAIN_NS: Final = 80
"""Of the units of ``budget.MAX_SECOND_UNITS``."""
_BYTE_NS: Final = 1
_INFLATED_NS: Final = 4
_COMPRESSED_NS: Final = 95


class Work:
    """What a reading did."""

    def __init__(self) -> None:
        self.bytecodes = 0
        self.parsed: list[bytes] = []
        self.parsed_again: list[bytes] = []
        """By the replica's own parser."""
        self.compressed = 0
        self.inflated = 0

    @property
    def units(self) -> int:
        """The whole work, in units."""
        of_c = sum(
            (text.count(b"[") + text.count(b"{")) * _CONTAINER_NS
            + text.count(b",") * _COMMA_NS
            + len(text) * _BYTE_NS
            for text in self.parsed
        )
        of_c += sum(
            (text.count(b"[") + 4 * (text.count(b"{") + text.count(b":"))) * _AGAIN_NS
            + text.count(b",") * _AGAIN_NS // 4
            + len(text) * _BYTE_NS
            for text in self.parsed_again
        )
        # The longest tables come with the least content, so the costlier of the two counts.
        of_c += max(self.inflated * _INFLATED_NS, self.compressed * _COMPRESSED_NS)
        return self.bytecodes + of_c // UNIT_NS


def _counting(parse: Any, work: Work) -> Any:
    def counted_parse(text: str) -> Any:
        work.parsed_again.append(text.encode())
        return parse(text)

    return counted_parse


class _Inflater:
    def __init__(self, work: Work, *options: Any) -> None:
        self._work = work
        self._inner = zlib.decompressobj(*options)

    def decompress(self, data: Any, most: int) -> bytes:
        made = self._inner.decompress(data, most)
        self._work.compressed += len(data) - len(self._inner.unconsumed_tail)
        self._work.inflated += len(made)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def counted(patch: Any) -> Iterator[Work]:
    """Count the work of the block; ``patch`` is pytest's ``monkeypatch``."""
    work = Work()
    loads = orjson.loads

    def counting(text: Any) -> Any:
        work.parsed.append(bytes(text if not isinstance(text, str) else text.encode()))
        return loads(text)

    with patch.context() as patched, Bytecodes() as executed:
        patched.setattr(orjson, "loads", counting)
        for name in ("_decode", "_loads"):
            patched.setattr(replica_json, name, _counting(getattr(replica_json, name), work))
        patched.setattr(
            "ext_proc.requests.parsing.inflate.decompressobj",
            lambda *options: _Inflater(work, *options),
        )
        yield work
    work.bytecodes = executed.count


def read(
    path: str, headers: Mapping[str, str], body: bytes, *, complete: bool = True
) -> BadRequest | None:
    """Read a request up to the blocks of its prompt; return why it could not be read."""
    features = read_head("POST", path, headers)
    error = None
    try:
        features = read_body(features, headers, body, complete=complete)
    except BadRequest as mistake:
        error = mistake
        features = mistake.features or features
    token_blocks(features, 256, 64, None)
    return error
