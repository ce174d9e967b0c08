"""Fleets as texts in which each pool is named by the digest of its serialized form. Pure.

A revision differs from the one before it in few pools. So a pool is a *piece* that is stored once,
however many revisions have it, and a revision's text contains digests in place of pools.

Rules:

1. A piece's digest is the BLAKE2b hash of its text, so pieces of one digest are equal.
2. A text whose pools are objects is a whole fleet: formats 1 and 2 of the database have such texts.
3. Of an unchanged pool neither text nor digest is computed again (``ByIdentity``).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.fleet.memo import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_DIGEST_BYTES: Final = 16
_END: Final = re.compile(r'"pools":\[((?:"[0-9a-f]{32}",?)+)\]\}\Z')


class Piece(NamedTuple):
    """Identity of a pool's serialized form."""

    digest: str
    """32 hexadecimal digits."""
    size: int
    """Its length, characters."""


class StoredForm(NamedTuple):
    """A fleet in the form in which it is stored."""

    text: str
    """JSON of the fleet with digests in place of pools."""
    size: int
    """Length of the whole fleet's JSON, characters."""
    pools: dict[str, PoolSpec]
    """By digest, in the order of the fleet."""


def piece_of(text: str) -> Piece:
    """Return the piece of a pool's serialized form."""
    encoded = text.encode(errors="surrogatepass")
    return Piece(hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest(), len(text))


@ByIdentity
def _piece(pool: PoolSpec) -> Piece:
    return piece_of(pool.model_dump_json())


def stored(fleet: Fleet) -> StoredForm:
    """Return a fleet in the form in which it is stored."""
    head = fleet.model_dump_json(exclude={"pools"})[:-1]
    pieces = [_piece(pool) for pool in fleet.pools]
    digests = '","'.join(piece.digest for piece in pieces)
    whole = f'{head},"pools":[]}}'
    return StoredForm(
        f'{head},"pools":["{digests}"]}}',
        len(whole) + sum(piece.size + 1 for piece in pieces) - 1,
        {piece.digest: pool for piece, pool in zip(pieces, fleet.pools, strict=True)},
    )


def digests_in(text: str) -> tuple[str, ...]:
    """Return the digests in a stored text; none if it is a whole fleet."""
    found = _END.search(text, max(0, text.rfind('"pools":[')))
    return () if found is None else tuple(found[1].strip('"').split('","'))


def whole(text: str, find: Callable[[str], str]) -> str:
    """Return the JSON of the fleet of a stored text.

    Args:
        text: The text, in any form.
        find: Returns the text of a piece by its digest.

    Raises:
        LookupError: What ``find`` raises.
    """
    digests = digests_in(text)
    if not digests:
        return text
    fields = json.loads(text)
    del fields["pools"]
    parts = [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields.items()]
    pools = ",".join(map(find, digests))
    return "{" + ",".join([*parts, f'"pools":[{pools}]']) + "}"
