"""Revision store in SQLite.

Rules:

1. A revision, its replicas' incarnations and the state of the fleet file are written in one
   transaction, which is flushed to disk before ``append`` returns.
2. One process owns the database; a second process gets an error.
3. The history is bounded to the newest ``MAX_REVISIONS`` and, of these, to ``MAX_HISTORY_BYTES``.
   The newest revision is always kept.
4. A revision writes only the pools and the incarnations that differ from what is stored
   (``stored.written``). A pool that no kept revision has any more is deleted with the last one.
5. The fleet's seed is drawn when the database is created and never changes; it leaves the store
   only towards pickers.
6. Any database error is raised as one ``StoreError`` that names the file and the remedy.
7. Opening a database of the present format writes nothing, so that a start succeeds on a full disk.
8. A database that may only be read is copied to a temporary folder, with its log, and read there.
   Each write fails until the folder can be written, and then uses the database itself, unless
   another process has added revisions meanwhile.
9. A database that several control servers share is in memory, and each transaction is in the shared
   store before it is in the database (``stored.shared``). A new one begins as a copy of that of a
   folder, if there is one; later the folder is not read, and a warning says so.

Calls block, so asynchronous code must make them in a worker thread. Any thread may call.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.revision import FileState, FleetState, Revision, lasting_outcome, reached
from xds_server.fleet.stored.copied import Copy, copy_into, writable
from xds_server.fleet.stored.schema import VERSION, upgrade
from xds_server.fleet.stored.shared import SharedFault, Unreachable
from xds_server.fleet.stored.written import Written, body_in, incarnations_in, stored, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xds_server.fleet.stored.shared import SharedHistory

MAX_REVISIONS = 1000
MAX_HISTORY_BYTES = 256 * 2**20
FILE_NAME = "tidegate.db"
_MAX_NUMBER = 2**62
"""SQLite's integers are signed 64-bit; no revision has a number beyond this."""

MAX_UNFINISHED = 64
"""Most fleets that ``RevisionStore.unfinished`` returns."""
MAX_UNFINISHED_BYTES = 4 * 2**20
"""Most bytes of serialized fleets that it reads."""


_log = structlog.get_logger(__name__)


class StoreError(RuntimeError):
    """The database cannot be used."""


class StoreSilent(StoreError):  # noqa: N818 - reads as the sentence it is
    """The shared store does not answer, or this server leads no more."""


class UnknownRevision(LookupError):  # noqa: N818 - reads as the sentence it is
    """The revision does not exist (any more)."""


class RevisionStore:
    """Revisions on disk or in memory; see the module's rules.

    Args:
        folder: Folder of the database; created if missing. ``None`` = in memory only. With
            ``shared``: of the database with which that begins, if it has one.
        max_revisions: Most revisions in the history.
        max_bytes: Most bytes of serialized fleets in the history.
        shared: The database in a shared store, which is led from now on.

    Raises:
        StoreError: The database is damaged, in use, or cannot be created.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        max_revisions: int = MAX_REVISIONS,
        max_bytes: int = MAX_HISTORY_BYTES,
        shared: SharedHistory | None = None,
    ) -> None:
        self._bounds = (max_revisions, max_bytes)
        self._lock = threading.Lock()
        self._written: Written | None = None
        """``None`` = unknown; read before the next write."""
        self._name = "the in-memory store" if folder is None else str(folder / FILE_NAME)
        self._shared = shared
        self._db: sqlite3.Connection | None = None
        self._copy: Copy | None = None
        self._first: Path | None = None
        """The database with which a shared one begins."""
        self._folder = folder
        with self._explained():
            if shared is not None:
                self._folder = None
                self._first = None if folder is None else folder / FILE_NAME
                self._name = shared.name
                self._db = shared.lead(self._prepare)
                return
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not writable(folder / FILE_NAME):
                    self._copy = Copy(folder / FILE_NAME)
            try:
                self._db = self._connect(folder if self._copy is None else self._copy.folder)
            except BaseException:
                self.close()
                raise

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._name

    @property
    def read_only(self) -> bool:
        """The database may only be read (rule 8)."""
        return self._copy is not None

    def _connect(self, folder: Path | None) -> sqlite3.Connection:
        target = ":memory:" if folder is None else folder / FILE_NAME
        db = sqlite3.connect(target, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _leave_copy(self) -> None:
        """Use the database itself if it can be written now (rule 8).

        Raises:
            StoreError: It cannot, or it is no longer what was copied.
        """
        if self._copy is None or self._folder is None:
            return
        if not writable(self._folder / FILE_NAME):
            raise StoreError(f"{self._name} is read-only; make it and its folder writable")
        last = "SELECT max(number) FROM revisions"
        db = self._connect(self._folder)
        if db.execute(last).fetchone() != self._open().execute(last).fetchone():
            db.close()
            raise StoreError(
                f"{self._name} has revisions of another control server; stop that one and restart"
            )
        self._open().close()
        self._copy.remove()
        self._db, self._copy = db, None

    def _prepare(self, db: sqlite3.Connection) -> None:
        if self._shared is None:  # an image in WAL mode could not be opened in memory
            # EXCLUSIVE before WAL: a single owner, and no shared-memory file beside the database.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        if self._first is not None and self._first.is_file():
            if version:
                _log.warning(
                    "state_not_read",
                    state=str(self._first),
                    reason=f"{self._name} has a history of its own; apply what that lacks",
                )
            else:
                copy_into(self._first, db)
                version = db.execute("PRAGMA user_version").fetchone()[0]
                _log.info("state_taken_over", state=str(self._first), store=self._name)
        if version > VERSION:
            raise StoreError(
                f"{self._name} was written by a newer Tidegate (format {version}); "
                "use that one, or another --state folder"
            )
        if version == VERSION:
            # Rule 7: nothing is written. The lock is taken as with a write, for rule 2.
            db.executescript("BEGIN EXCLUSIVE; COMMIT;")
        else:
            db.executescript(f"BEGIN EXCLUSIVE; {upgrade(version)} COMMIT;")
        if not db.execute("SELECT 1 FROM latest WHERE key = 'seed'").fetchall():
            drawn = secrets.randbelow(2**64 - 1) + 1
            db.execute("INSERT INTO latest VALUES ('seed', ?)", (str(drawn),))
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    def close(self) -> None:
        """Close the database; may be called twice."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            if self._copy is not None:
                self._copy.remove()
                self._copy = None

    def seed(self) -> int:
        """Return the seed of prompt hashes, 1 to 2**64 - 1: a secret of the fleet.

        Raises:
            StoreError: It cannot be read.
        """
        with self._explained():
            return int(self.value("seed") or "")

    def value(self, key: str) -> str | None:
        """Return a value of the newest state by its key; ``None`` = it was never stored.

        Raises:
            StoreError: It cannot be read.
        """
        with self._lock, self._explained():
            rows = self._rows("SELECT value FROM latest WHERE key = ?", key)
            return rows[0][0] if rows else None

    def put_value(self, key: str, value: str) -> None:
        """Store a value of the newest state.

        Raises:
            StoreError: It was not stored.
        """
        with self._lock, self._explained(), self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO latest VALUES (?, ?)", (key, value))

    def latest(self) -> FleetState | None:
        """Return the newest state; ``None`` if nothing was ever stored.

        Raises:
            StoreError: The state cannot be read.
        """
        with self._lock, self._explained():
            rows = self._rows("SELECT * FROM revisions ORDER BY number DESC LIMIT 1")
            if not rows:
                return None
            row = rows[0]
            values = dict(self._rows("SELECT key, value FROM latest"))
            file = values.get("file")
            return FleetState(
                revision=_revision(row),
                fleet=self._fleet(row[5], row[0]),
                incarnations=incarnations_in(self._open(), values["incarnations"]),
                file=None if file is None else self._file(file, row[0]),
            )

    def append(self, state: FleetState) -> None:
        """Store a new revision.

        Raises:
            StoreError: The revision was not stored; nothing has changed.
        """
        revision, file = state.revision, state.file
        with self._lock, self._explained(), self._change() as (db, written):
            fleet = stored(state.fleet)
            written.use(db, fleet)
            db.execute(
                "INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    revision.number,
                    revision.at_unix_ms,
                    revision.author,
                    revision.reason,
                    json.dumps(revision.changes),
                    fleet.text,
                    fleet.size,
                    None if file is None else file.text_hash,
                    revision.outcome,
                ),
            )
            written.put_incarnations(db, state.incarnations)
            written.put_file(db, file)
            written.added(db, revision.number, fleet.size)

    def note(self, number: int, outcome: str) -> None:
        """Store the outcome of a publication (``lasting_outcome``).

        It has no effect if the revision is no longer stored.

        Raises:
            StoreError: The outcome was not stored.
        """
        with self._lock, self._explained(), self._transaction() as db:
            rows = db.execute("SELECT outcome FROM revisions WHERE number = ?", (number,))
            (known,) = rows.fetchone() or ("",)
            values = (lasting_outcome(known, outcome), number)
            db.execute("UPDATE revisions SET outcome = ? WHERE number = ?", values)

    def remember_file(self, file: FileState) -> None:
        """Store that the fleet file was applied without changing the fleet.

        Raises:
            StoreError: This was not stored.
        """
        with self._lock, self._explained(), self._change() as (db, written):
            written.put_file(db, file)

    def check_writable(self) -> None:
        """Write a value that changes nothing, to find out whether the store takes writes.

        Raises:
            StoreError: It does not.
        """
        with self._lock, self._explained(), self._transaction() as db:
            db.execute("UPDATE latest SET value = value WHERE key = 'seed'")

    def outcome(self, number: int) -> str:
        """Return the outcome of a revision; empty if it has none or is not stored.

        Raises:
            StoreError: It cannot be read.
        """
        with self._lock, self._explained():
            query = "SELECT outcome FROM revisions WHERE number = ?"
            rows = self._rows(query, min(number, _MAX_NUMBER))
            return str(rows[0][0]) if rows else ""

    def revisions(self, limit: int) -> tuple[Revision, ...]:
        """Return at most ``limit`` revisions, newest first.

        Raises:
            StoreError: They cannot be read.
        """
        with self._lock, self._explained():
            rows = self._rows("SELECT * FROM revisions ORDER BY number DESC LIMIT ?", limit)
            return tuple(map(_revision, rows))

    def fleet(self, number: int) -> Fleet:
        """Return the fleet of a revision.

        Raises:
            UnknownRevision: The revision does not exist (any more).
            StoreError: It cannot be read.
        """
        with self._lock, self._explained():
            query = "SELECT fleet FROM revisions WHERE number = ?"
            rows = self._rows(query, min(number, _MAX_NUMBER))
            if not rows:
                bounds = self._rows("SELECT min(number), max(number) FROM revisions")[0]
                kept = (
                    "none is stored" if bounds[0] is None else f"kept are {bounds[0]}-{bounds[1]}"
                )
                raise UnknownRevision(f"no revision {number}; {kept}")
            return self._fleet(rows[0][0], number)

    def unfinished(self) -> tuple[Fleet, ...]:
        """Return the fleets before the newest that clients may still have, oldest first.

        These are the fleets back to the last one that clients accepted, at most ``MAX_UNFINISHED``
        and of at most ``MAX_UNFINISHED_BYTES``; none if they have accepted the newest.

        Raises:
            StoreError: They cannot be read.
        """
        with self._lock, self._explained():
            query = "SELECT number, size, outcome FROM revisions ORDER BY number DESC LIMIT ?"
            rows = self._rows(query, MAX_UNFINISHED + 1)
        found: list[Fleet] = []
        left = MAX_UNFINISHED_BYTES
        for place, (number, size, outcome) in enumerate(rows):
            left -= size if place else 0
            if left < 0:
                break
            if place:
                found.insert(0, self.fleet(number))
            if reached(outcome):
                break
        return tuple(found)

    def _rows(self, query: str, *arguments: int | str) -> list[Any]:
        return self._open().execute(query, arguments).fetchall()

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreError(f"{self._name} is closed")
        return self._db

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._leave_copy()
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            if self._shared is not None:
                self._shared.append()
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        if self._shared is not None:
            self._shared.shorten()

    @contextlib.contextmanager
    def _change(self) -> Iterator[tuple[sqlite3.Connection, Written]]:
        """Return a transaction and what was written before, which follows the writes in it."""
        try:
            with self._transaction() as db:
                if self._written is None:
                    self._written = Written(db, *self._bounds)
                yield db, self._written
        except BaseException:
            self._written = None
            raise

    def _file(self, text: str, number: int) -> FileState:
        of = json.loads(text)
        return FileState(of["text_hash"], self._fleet(of["fleet"], number))

    def _fleet(self, text: str, number: int) -> Fleet:
        try:
            return Fleet.model_validate_json(whole(text, partial(body_in, self._open())))
        except ValidationError as error:
            raise StoreError(
                f"revision {number} in {self._name} is not a valid fleet for this version of "
                f"Tidegate ({error.error_count()} errors); apply a newer revision, or start with "
                "another --state folder"
            ) from None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of the database: what cannot be done, and the remedy."""
        name = self._name
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise StoreError(
                    f"{name} is in use by another control server; stop that one, "
                    "or use another --state folder"
                ) from None
            raise StoreError(
                f"{name} cannot be used: {error}; check the folder's permissions and free space"
            ) from None
        except (sqlite3.DatabaseError, KeyError, ValueError) as error:
            raise StoreError(
                f"{name} is damaged ({error}); move it away and start again: "
                "the fleet file becomes revision 1"
            ) from None
        except OSError as error:
            raise StoreError(f"{name} cannot be created: {error.strerror}") from None
        except Unreachable as error:
            raise StoreSilent(f"{name} cannot be used: {error}") from None
        except SharedFault as error:
            raise StoreError(f"{name} cannot be used: {error}") from None


def _revision(row: Any) -> Revision:
    return Revision(row[0], row[1], row[2], row[3], tuple(json.loads(row[4])), row[8])
