"""Contents of the revision database: the pieces of fleets, and writes of what differs. Pure.

A revision differs from the one before it in few pools. So a pool is a *piece* that is stored once,
however many revisions have it, and a revision's text contains digests in place of pools.

Rules of pieces:

1. A piece's digest is the BLAKE2b hash of its text, so pieces of one digest are equal.
2. A text whose pools are objects is a whole fleet: formats 1 and 2 of the database have such texts.
3. Of an unchanged pool neither text nor digest is computed again (``ByIdentity``).
4. A piece is written with its first use and deleted with its last one: it is in use while a kept
   revision, or the fleet file applied last, names it. Each use is counted, so the number of counts
   is bounded by what is stored.

Rules of the history:

1. An object of ``Written`` follows the writes of a transaction. After one that failed it must be
   thrown away, and read anew before the next write.
2. Beyond ``max_revisions``, or ``max_bytes`` of serialized fleets, the oldest revisions are
   dropped. The newest always stays.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.fleet.memo import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.revision import FileState, Incarnations

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


class History:
    """The kept revisions and the uses of pieces; see the module's rules.

    Args:
        max_revisions: Most revisions.
        max_bytes: Most bytes of serialized fleets.
    """

    def __init__(self, max_revisions: int, max_bytes: int) -> None:
        self._bounds = (max_revisions, max_bytes)
        self._kept: deque[tuple[int, int]] = deque()
        self._total = 0
        self._uses: Counter[str] = Counter()

    def add(self, number: int, size: int) -> None:
        """Add a revision, the newest, whose serialized fleet has ``size`` bytes."""
        self._kept.append((number, size))
        self._total += size

    def beyond(self) -> list[int]:
        """Drop the revisions beyond the bounds; return their numbers, oldest first."""
        most, most_bytes = self._bounds
        dropped = []
        while len(self._kept) > 1 and (len(self._kept) > most or self._total > most_bytes):
            number, size = self._kept.popleft()
            self._total -= size
            dropped.append(number)
        return dropped

    def use(self, digests: Iterable[str]) -> list[str]:
        """Count a use of each piece; return those that were not in use."""
        uses, fresh = self._uses, []
        for digest in digests:
            if digest not in uses:
                fresh.append(digest)
            uses[digest] += 1
        return fresh

    def release(self, digests: Iterable[str]) -> list[str]:
        """Take back a use of each piece; return those that are not in use any more."""
        uses, unused = self._uses, []
        for digest in digests:
            uses[digest] -= 1
            if uses[digest] <= 0:
                del uses[digest]
                unused.append(digest)
        return unused


class Written:
    """What the database contains; see the module's rules.

    Args:
        db: The database.
        max_revisions: Most revisions in the history.
        max_bytes: Most bytes of serialized fleets in the history.

    Raises:
        sqlite3.Error: The database cannot be read, or is damaged.
    """

    def __init__(self, db: sqlite3.Connection, max_revisions: int, max_bytes: int) -> None:
        self._history = History(max_revisions, max_bytes)
        for number, size, text in db.execute(
            "SELECT number, size, fleet FROM revisions ORDER BY number"
        ):
            self._history.add(number, size)
            self._history.use(digests_in(text))
        values = dict(db.execute("SELECT key, value FROM latest").fetchall())
        self._incarnations: Mapping[str, tuple[int, int]] = (
            incarnations_in(db, values["incarnations"]) if "incarnations" in values else {}
        )
        self._file: FileState | None = None
        self._file_pieces: tuple[str, ...] = ()
        if "file" in values:
            self._file_pieces = digests_in(json.loads(values["file"])["fleet"])
            self._history.use(self._file_pieces)

    def use(self, db: sqlite3.Connection, fleet: StoredForm) -> None:
        """Write the pieces of a fleet that are not stored yet."""
        fresh = self._history.use(fleet.pools)
        bodies = ((digest, fleet.pools[digest].model_dump_json()) for digest in fresh)
        db.executemany("INSERT INTO pieces VALUES (?, ?)", bodies)

    def added(self, db: sqlite3.Connection, number: int, size: int) -> None:
        """Note a revision that was written, and delete those beyond the bounds."""
        self._history.add(number, size)
        for dropped in self._history.beyond():
            query = "DELETE FROM revisions WHERE number = ? RETURNING fleet"
            for (text,) in db.execute(query, (dropped,)).fetchall():
                self._release(db, digests_in(text))

    def put_incarnations(self, db: sqlite3.Connection, new: Mapping[str, tuple[int, int]]) -> None:
        """Write the incarnations that differ."""
        old = self._incarnations
        if new is old:
            return
        changed = [(name, *value) for name, value in new.items() if old.get(name) != value]
        db.executemany("INSERT OR REPLACE INTO incarnations VALUES (?, ?, ?)", changed)
        gone = [(name,) for name in old.keys() - new.keys()]
        db.executemany("DELETE FROM incarnations WHERE id = ?", gone)
        _put(db, "incarnations", str(len(new)))
        self._incarnations = new

    def put_file(self, db: sqlite3.Connection, file: FileState | None) -> None:
        """Write the fleet file applied last; ``None`` = there is none."""
        if file is None or file is self._file:
            return
        fleet = stored(file.fleet)
        self.use(db, fleet)
        _put(db, "file", json.dumps({"text_hash": file.text_hash, "fleet": fleet.text}))
        before, self._file_pieces = self._file_pieces, tuple(fleet.pools)
        self._release(db, before)
        self._file = file

    def _release(self, db: sqlite3.Connection, digests: Iterable[str]) -> None:
        unused = [(digest,) for digest in self._history.release(digests)]
        db.executemany("DELETE FROM pieces WHERE digest = ?", unused)


def incarnations_in(db: sqlite3.Connection, count: str) -> Incarnations:
    """Return the stored incarnations.

    Raises:
        sqlite3.DatabaseError: There are not ``count`` of them.
    """
    rows = db.execute("SELECT id, number, joined FROM incarnations").fetchall()
    if len(rows) != int(count):
        raise sqlite3.DatabaseError("replicas are missing")
    return {name: (number, joined) for name, number, joined in rows}


def body_in(db: sqlite3.Connection, digest: str) -> str:
    """Return the text of a piece.

    Raises:
        sqlite3.DatabaseError: It is missing, or is not what was stored.
    """
    found = db.execute("SELECT body FROM pieces WHERE digest = ?", (digest,)).fetchone()
    if found is None or piece_of(found[0]).digest != digest:
        raise sqlite3.DatabaseError("a pool is missing")
    return str(found[0])


def _put(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO latest VALUES (?, ?)", (key, value))
