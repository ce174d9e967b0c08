"""The revision database in a store that several control servers share.

Each of them has a copy of the database in memory. The store has an *image* of it and *records* of
the transactions since then; the head names both (``epochs``).

Rules:

1. A transaction is in the store before it is in the leader's copy: its record first, then the head
   that names it, by compare-and-swap. A swap whose outcome is unknown is repeated until it is known
   or the lease ends: the repetition compares with the same head, so it takes effect once.
2. Where another has changed the head, this server leads no more: ``deposed`` is called.
3. A new leader's image replaces all records, and so does one when the records have grown. Then
   older ones are deleted. A follower that misses a deleted one begins with the newest head.
4. A server reads no head that is older than one that it has read, as after a restored backup,
   also where it has been started again (``HistoryMarks``), until the loss is accepted. A leader
   that accepts it goes on ``LEAP`` above, as others that are to follow it may have read more.
5. Values are split into chunks of ``CHUNK_BYTES``, far below etcd's bound of 1.5 MiB for a request.

Calls block. The copy is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from xds_server.fleet.stored import changed
from xds_server.fleet.stored.epochs import HistoryHead, HistoryMark, StoredPart, led
from xds_server.fleet.stored.schema import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES: Final = 2**19
HEAD: Final = "head"
LEAP: Final = HistoryMark(1_000, 1_000_000_000)
"""More than is lost."""
MAX_TURNS: Final = 10
"""Most attempts to read a history, or to lead it, while others change it."""


class SharedFault(Exception):  # noqa: N818 - it is no error of this server
    """The shared store refuses a request, which has not changed anything."""


class Unreachable(SharedFault):
    """The store does not answer, or the lease has ended; what a request has changed is unknown."""


class Keys(Protocol):
    """Values by key in a store of several servers, each with a version; all calls block.

    All raise ``SharedFault``, ``Unreachable`` included.
    """

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return the newest value and its version; ``None`` = there is none."""

    def write(self, key: str, value: bytes) -> None:
        """Write a value."""

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        """Write a value in place of that version, 0 = of none.

        Returns:
            Its version; ``None`` = another version is stored, and nothing was written.
        """

    def delete(self, first: str, beyond: str) -> None:
        """Delete the keys from ``first`` to before ``beyond``."""


class HistoryMarks(Protocol):
    """Keeps how far a server has read, for when it is started again; all calls block."""

    def read(self) -> HistoryMark:
        """Return the mark; that of nothing if none was kept."""

    def write(self, mark: HistoryMark) -> None:
        """Keep a mark in place of the one before."""


class SharedHistory:
    """A copy of the shared database; see the module's rules.

    Args:
        keys: The store.
        name: Its name, for messages.
        writer: What no other process has that writes to it.
        holds: Returns whether this server may lead.
        deposed: Called when another leads.
        pause: Waits before the store is asked again.
        marks: Keeps what was read; ``None`` = for the time of this object.
        accepts_loss: The first head that is read may be older than that.
    """

    def __init__(
        self,
        keys: Keys,
        name: str,
        writer: str,
        holds: Callable[[], bool],
        deposed: Callable[[], None],
        pause: Callable[[], None],
        marks: HistoryMarks | None = None,
        *,
        accepts_loss: bool = False,
    ) -> None:
        self.name = name
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._keys, self._writer = keys, writer
        self._holds, self._deposed, self._pause = holds, deposed, pause
        self._head: HistoryHead | None = None
        self._version = 0
        """Of the head; 0 = there is none."""
        self._marks, self._accepts_loss = marks, accepts_loss
        self._mark = HistoryMark() if marks is None else marks.read()
        """Of the newest head that was read."""
        self._leaps = accepts_loss
        self._tries = itertools.count()
        self._lost = ""
        """The key that was missed last."""

    @property
    def head(self) -> HistoryHead | None:
        """The head of what the copy has; ``None`` = nothing."""
        return self._head

    def follow(self) -> None:
        """Bring the copy to the newest state.

        Raises:
            SharedFault: The store cannot be read, or what it has.
        """
        missed = 0
        for _ in range(MAX_TURNS):
            found = self._keys.read(HEAD)
            head = None if found is None else self._loaded(found[0])
            self._refuse_older(head)
            if found is None or head is None:
                self._forget()
                self._read_to(HistoryMark())
                return
            if found[1] == self._version and head == self._head:
                return
            if self._reached(head):
                self._version = found[1]
                self._read_to(head.mark)
                return
            if found[1] == missed:
                raise SharedFault(
                    f"{self.name} has lost {self._lost}, a part of its state: servers that ran"
                    " before have all of it, and the next of them to lead writes it anew; if none"
                    " runs, delete the store and start with --accept-loss, from the fleet file"
                )
            missed = found[1]
        raise SharedFault(f"{self.name} changes faster than it can be read")

    def lead(self, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        """Make this server the one that writes; return the copy.

        Args:
            prepare: Brings the database to the present format.

        Raises:
            SharedFault: It cannot.
        """
        fault = f"another control server writes to {self.name}"
        for _ in range(MAX_TURNS):
            try:
                self.follow()
                prepare(self.db)
                before = self._mark.plus(LEAP) if self._leaps else self._mark
                image = self._written("image", before.number, zlib.compress(self.db.serialize()))
                head = led(before, image)
                if self._swapped(head):
                    changed.follow(self.db)
                    self._tidy(head)
                    return self.db
            except Unreachable as error:
                fault = str(error)
                self._pause()
            self._forget()  # after a late change of the leader before, too
        raise SharedFault(fault)

    def append(self) -> None:
        """Store what the copy's open transaction has changed (rule 1).

        Raises:
            SharedFault: It was not stored, and the transaction must be rolled back.
        """
        if self._head is None or not self._holds():
            raise Unreachable("this control server does not lead")
        record = self._written("record", self._head.number + 1, changed.taken(self.db))
        if not self._swapped(self._head.appended(record)):
            self._deposed()
            raise SharedFault("another control server leads")

    def shorten(self) -> None:
        """Replace the records by an image if they have grown; between transactions (rule 3)."""
        if self._head is None or not self._head.grown:
            return
        with contextlib.suppress(SharedFault):  # the next change tries again
            image = self._written("image", self._head.number, zlib.compress(self.db.serialize()))
            head = replace(self._head, image=image, records=())
            if self._swapped(head):
                self._tidy(head)

    def _forget(self) -> None:
        self.db.close()
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._head, self._version = None, 0

    def _refuse_older(self, head: HistoryHead | None) -> None:
        known, now = self._mark, HistoryMark() if head is None else head.mark
        if known.above(now) and not self._accepts_loss:
            has = "nothing" if head is None else f"change {now.number} of leader {now.epoch}"
            raise SharedFault(
                f"{self.name} is older than what this server has read: it has {has}, not change "
                f"{known.number} of leader {known.epoch}; restore a newer backup, or start this "
                "server once with --accept-loss to go on from there"
            )

    def _read_to(self, mark: HistoryMark) -> None:
        """Note how far the copy goes."""
        self._accepts_loss = False
        if mark != self._mark:
            self._mark = mark
            if self._marks is not None:
                self._marks.write(mark)

    def _loaded(self, text: bytes) -> HistoryHead:
        try:
            return HistoryHead.load(text)
        except ValueError as error:
            raise SharedFault(f"{self.name} has {error}") from None

    def _reached(self, head: HistoryHead) -> bool:
        """Bring the copy to a head; return False if a part of it is not there any more."""
        try:
            known = self._head
            if known is None or not head.continues(known):
                image = self._read("image", head.image)
                self._forget()
                self.db.deserialize(zlib.decompress(image))
                known = self._head = HistoryHead(head.epoch, head.image)
            for part in head.records[len(known.records) :]:
                changed.replay(self.db, self._read("record", part))
                known = self._head = known.appended(part)
            self._head = head
            format_ = self.db.execute("PRAGMA user_version").fetchone()[0]
        except LookupError:
            return False
        except (sqlite3.Error, ValueError, zlib.error) as error:
            self._forget()
            raise SharedFault(f"{self.name} is damaged: {error}") from None
        if format_ > VERSION:
            self._forget()
            raise SharedFault(f"{self.name} was written by a newer Tidegate; use that one here too")
        return True

    def _written(self, kind: str, number: int, value: bytes) -> StoredPart:
        name = f"{self._writer}-{next(self._tries)}"
        chunks = [value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
        part = StoredPart(number, name, len(chunks), len(value))
        for place, chunk in enumerate(chunks):
            self._keys.write(_key(kind, part, place), chunk)
        return part

    def _read(self, kind: str, part: StoredPart) -> bytes:
        chunks = []
        for place in range(part.chunks):
            found = self._keys.read(_key(kind, part, place))
            if found is None:
                self._lost = _key(kind, part, place)
                raise LookupError(self._lost)
            chunks.append(found[0])
        return b"".join(chunks)

    def _swapped(self, head: HistoryHead) -> bool:
        """Change the head; return False if another has changed it."""
        text, unknown = head.dump(), False
        while True:
            try:
                version = self._keys.swap(HEAD, text, self._version)
                if version is None and unknown:
                    found = self._keys.read(HEAD)
                    version = None if found is None or found[0] != text else found[1]
                break
            except Unreachable:
                unknown = True
                if not self._holds():
                    raise
                self._pause()
        if version is None:
            return False
        self._head, self._version = head, version
        self._read_to(head.mark)
        return True

    def _tidy(self, head: HistoryHead) -> None:
        """Delete what a head with a new image no longer names."""
        at = head.image.number
        with contextlib.suppress(SharedFault):  # the next image does it
            self._keys.delete(_first("record", 0), _first("record", at + 1))
            self._keys.delete(_first("image", 0), _first("image", at))


def _first(kind: str, number: int) -> str:
    return f"{kind}/{number:016}/"


def _key(kind: str, part: StoredPart, place: int) -> str:
    return f"{_first(kind, part.number)}{part.name}/{place}"
