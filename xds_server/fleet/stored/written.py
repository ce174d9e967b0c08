"""Writes of what differs from the contents of the revision database, and bounds of the history.

Rules:

1. An object of ``Written`` follows the writes of a transaction. After one that failed it must be
   thrown away, and read anew before the next write.
2. A piece (``stored.pieces``) is written with its first use and deleted with its last one: it is in
   use while a kept revision, or the fleet file applied last, names it. Each use is counted, so the
   number of counts is bounded by what is stored.
3. Beyond ``max_revisions``, or ``max_bytes`` of serialized fleets, the oldest revisions are
   dropped. The newest always stays.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, deque
from typing import TYPE_CHECKING

from xds_server.fleet.stored.pieces import digests_in, piece_of, stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.revision import FileState, Incarnations
    from xds_server.fleet.stored.pieces import StoredForm


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
