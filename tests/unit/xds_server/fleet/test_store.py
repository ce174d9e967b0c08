"""Revisions in SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace

import pytest

from support.fleets import fleet, pool
from xds_server.fleet import store as store_module
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.store import (
    FILE_NAME,
    MAX_UNFINISHED,
    RevisionStore,
    StoreError,
    UnknownRevision,
)


def state(number: int, *, file: FileState | None = None, name: str = "llm") -> FleetState:
    """Return a state with all fields set."""
    revision = Revision(number, 1000 + number, "ann", f"why {number}", (f"line {number}",))
    return FleetState(revision, fleet(pool(name)), {"r1": (1, 0), "r2": (number, 5)}, file)


@pytest.fixture
def folder(tmp_path):
    """Return a folder that does not exist yet."""
    return tmp_path / "deep" / "state"


def test_a_new_store_is_empty() -> None:
    """There is no newest state."""
    with closing(RevisionStore(None)) as store:
        assert store.latest() is None
        assert store.revisions(10) == ()


def test_a_state_survives_a_restart(folder) -> None:
    """All stored values are restored."""
    stored = state(1, file=FileState("hash", fleet(pool("filed"))))
    with closing(RevisionStore(folder)) as store:
        store.append(stored)
    with closing(RevisionStore(folder)) as store:
        assert store.latest() == stored


def test_the_seed_is_drawn_once(folder) -> None:
    """Pickers keep the hashes of prompts over restarts of the control server."""
    with closing(RevisionStore(folder)) as store:
        seed = store.seed()
    with closing(RevisionStore(folder)) as store:
        assert store.seed() == seed
    assert 1 <= seed < 2**64


def test_each_fleet_has_another_seed() -> None:
    """Who knows the seed of one fleet knows nothing of another's."""
    with closing(RevisionStore(None)) as one, closing(RevisionStore(None)) as other:
        assert one.seed() != other.seed()


def test_a_damaged_seed_is_reported(folder) -> None:
    """It is not replaced silently, as all prompts would then be unknown."""
    RevisionStore(folder).close()
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("UPDATE latest SET value = 'x' WHERE key = 'seed'")
        db.commit()
    with closing(RevisionStore(folder)) as store, pytest.raises(StoreError, match="damaged"):
        store.seed()


def test_revisions_come_newest_first() -> None:
    """At most as many as requested."""
    with closing(RevisionStore(None)) as store:
        for number in range(1, 5):
            store.append(state(number))
        assert [revision.number for revision in store.revisions(3)] == [4, 3, 2]
        assert store.revisions(1)[0] == state(4).revision


def test_each_revision_has_its_fleet() -> None:
    """A rollback can load it."""
    with closing(RevisionStore(None)) as store:
        store.append(state(1, name="a"))
        store.append(state(2, name="b"))
        assert store.fleet(1).pools[0].name == "a"


@pytest.mark.parametrize("number", [0, 3, 2**64 - 1])
def test_an_unknown_revision_lists_the_existing_ones(number: int) -> None:
    """Even a number that SQLite cannot hold."""
    with closing(RevisionStore(None)) as store:
        with pytest.raises(UnknownRevision, match="none is stored"):
            store.fleet(number)
        store.append(state(1))
        store.append(state(2))
        with pytest.raises(UnknownRevision, match=f"no revision {number}; kept are 1-2"):
            store.fleet(number)


def test_history_is_bounded_by_number() -> None:
    """The oldest revisions are deleted."""
    with closing(RevisionStore(None, max_revisions=3)) as store:
        for number in range(1, 6):
            store.append(state(number))
        assert [revision.number for revision in store.revisions(10)] == [5, 4, 3]


def test_history_is_bounded_by_bytes() -> None:
    """The newest stays even if it alone is too large."""
    size = len(state(1).fleet.model_dump_json())
    with closing(RevisionStore(None, max_bytes=2 * size)) as store:
        for number in range(1, 6):
            store.append(state(number))
        assert [revision.number for revision in store.revisions(10)] == [5, 4]
    with closing(RevisionStore(None, max_bytes=1)) as store:
        store.append(state(1))
        store.append(state(2))
        assert [revision.number for revision in store.revisions(10)] == [2]


def test_a_failed_append_changes_nothing() -> None:
    """A revision is stored completely or not at all."""
    with closing(RevisionStore(None)) as store:
        store.append(state(1))
        with pytest.raises(StoreError):
            store.append(state(1, file=FileState("other", fleet())))
        assert store.latest() == state(1)


def test_the_file_is_remembered_without_a_revision(folder) -> None:
    """A comment in the fleet file makes no revision, but its text is stored."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
        store.remember_file(FileState("hash", fleet()))
        latest = store.latest()
        assert latest is not None
        assert latest.file == FileState("hash", fleet())
        assert latest.revision.number == 1


def test_one_server_owns_the_store(folder) -> None:
    """Two would overwrite each other's revisions."""
    with (
        closing(RevisionStore(folder)),
        pytest.raises(StoreError, match="in use by another control server"),
    ):
        RevisionStore(folder)


def test_a_damaged_file_is_reported_with_its_fix(folder) -> None:
    """The message names the file."""
    folder.mkdir(parents=True)
    (folder / FILE_NAME).write_bytes(b"this is no database, " * 100)
    with pytest.raises(StoreError, match=rf"{FILE_NAME} is damaged .* move it away"):
        RevisionStore(folder)


def test_a_damaged_page_is_reported(folder) -> None:
    """Damage after the header is found at the start."""
    with closing(RevisionStore(folder)) as store:
        for number in range(1, 40):
            store.append(state(number))
    path = folder / FILE_NAME
    content = bytearray(path.read_bytes())
    content[8192:16384] = b"\xff" * 8192
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        RevisionStore(folder)


def test_the_outcome_of_a_revision_is_stored(folder) -> None:
    """Across restarts; a revision that is no longer stored is ignored."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
        store.note(1, "refused by envoy-1")
        store.note(7, "acknowledged")
    with closing(RevisionStore(folder)) as store:
        (only,) = store.revisions(10)
        assert only.outcome == "refused by envoy-1"


def test_the_first_format_is_upgraded(folder) -> None:
    """It had no outcomes; all other values are kept."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("ALTER TABLE revisions DROP COLUMN outcome")
        db.execute("PRAGMA user_version = 1")
    with closing(RevisionStore(folder)) as store:
        assert store.latest() == state(1)
        store.append(state(2))
        assert [revision.outcome for revision in store.revisions(10)] == ["", ""]


def test_a_newer_format_is_rejected(folder) -> None:
    """A downgrade is an error."""
    RevisionStore(folder).close()
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer Tidegate"):
        RevisionStore(folder)


def test_a_fleet_that_is_no_longer_valid_is_reported(folder) -> None:
    """The error names the revision of the invalid fleet."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("UPDATE revisions SET fleet = '{}'")
        db.commit()
    with closing(RevisionStore(folder)) as store, pytest.raises(StoreError, match="revision 1 in"):
        store.latest()


def test_missing_rows_are_damage(folder) -> None:
    """A database edited by hand is reported as damaged."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("DELETE FROM latest")
        db.commit()
    with closing(RevisionStore(folder)) as store, pytest.raises(StoreError, match="damaged"):
        store.latest()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path) -> None:
    """A file in its place is not overwritten."""
    (tmp_path / "state").write_text("mine")
    with pytest.raises(StoreError, match="cannot be created"):
        RevisionStore(tmp_path / "state")


def test_a_closed_store_raises_an_error() -> None:
    """Closing twice is allowed, using it afterwards is not."""
    store = RevisionStore(None)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.latest()


@pytest.mark.parametrize(
    ("pragma", "why"),
    [("query_only = 1", "readonly database"), ("max_page_count = 1", "full")],
)
def test_a_store_that_cannot_be_written_can_be_read(folder, pragma: str, why: str) -> None:
    """A full disk or a read-only one; nothing of what failed is seen, and it works again after."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
        store._db.execute(f"PRAGMA {pragma}")
        large = state(2, name="x" * 60)
        wide = replace(large, revision=replace(large.revision, changes=("y" * 65536,)))
        with pytest.raises(StoreError, match=rf"{why}.*; check the folder's permissions"):
            store.append(wide)
        assert store.latest() == state(1)
        assert store.outcome(1) == ""
        store._db.execute("PRAGMA query_only = 0")
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.check_writable()
        store.append(wide)
        assert store.latest() == wide


def test_opening_a_store_of_the_present_format_writes_nothing(folder) -> None:
    """A start succeeds on a full disk."""
    with closing(RevisionStore(folder)) as store:
        store.append(state(1))
        store.note(1, "fine")
    before = (folder / FILE_NAME).read_bytes()
    with closing(RevisionStore(folder)) as store:
        assert [path.name for path in folder.iterdir() if path.stat().st_size] == [FILE_NAME]
        assert store.outcome(1) == "fine"
        assert store.outcome(2**70) == ""
    assert (folder / FILE_NAME).read_bytes() == before


def numbered(*outcomes: str, name: str = "p") -> RevisionStore:
    """Return a store with a revision for each outcome; the pool of the first is called p1."""
    store = RevisionStore(None)
    for number, outcome in enumerate(outcomes, 1):
        store.append(state(number, name=f"{name}{number}"))
        store.note(number, outcome)
    return store


def unfinished(store: RevisionStore) -> list[str]:
    """Return the names of the pools that clients may still have."""
    with closing(store):
        return [each.pools[0].name for each in store.unfinished()]


@pytest.mark.parametrize(
    ("outcomes", "names"),
    [
        ((), []),
        (("acknowledged by 2 of 2",), []),
        (("acknowledged by 2 of 2", "", "superseded", ""), ["p1", "p2", "p3"]),
        (("", "acknowledged by 2 of 2", ""), ["p2"]),
        (("", "acknowledged by 0 of 0", "acknowledged by 0 of 0"), ["p1", "p2"]),
        (("", "refused by envoy-1", "acknowledged by 12 of 13"), []),
    ],
)
def test_clients_may_have_what_came_since_they_accepted(outcomes, names) -> None:
    """That no client was connected, as after each start, says nothing of what clients have."""
    assert unfinished(numbered(*outcomes)) == names


def test_unfinished_fleets_are_bounded() -> None:
    """In number and bytes; the newest of them count."""
    found = unfinished(numbered(*[""] * (MAX_UNFINISHED + 3)))
    assert len(found) == MAX_UNFINISHED
    assert found[-1] == f"p{MAX_UNFINISHED + 2}"


def test_unfinished_fleets_are_bounded_in_bytes(monkeypatch) -> None:
    """A start is not to read the whole history of a large fleet."""
    store = numbered("", "", "")
    ((size,),) = store._rows("SELECT size FROM revisions WHERE number = 2")
    monkeypatch.setattr(store_module, "MAX_UNFINISHED_BYTES", size)
    assert unfinished(store) == ["p2"]


@pytest.fixture
def read_only(folder, monkeypatch):
    """Store one revision, with a log as after a kill, and let nothing be written there."""
    owner = RevisionStore(folder)
    owner.append(state(1))
    killed = folder.parent / "killed"
    shutil.copytree(folder, killed)
    owner.close()
    allowed = []
    monkeypatch.setattr(store_module, "writable", lambda _: bool(allowed))
    return killed, allowed


def test_a_store_in_a_read_only_folder_can_be_read(read_only) -> None:
    """A start succeeds, with what only the log holds; each write says why it failed."""
    folder, _ = read_only
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with closing(RevisionStore(folder)) as store:
        assert store.read_only
        assert store.latest() == state(1)
        with pytest.raises(StoreError, match="is read-only; make it and its folder writable"):
            store.append(state(2))
        with pytest.raises(StoreError, match="is read-only"):
            store.check_writable()
        assert [revision.number for revision in store.revisions(10)] == [1]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_store_that_has_become_writable_is_written(read_only) -> None:
    """What is appended then is in the database itself."""
    folder, allowed = read_only
    with closing(RevisionStore(folder)) as store:
        seed = store.seed()
        allowed.append(True)
        store.append(state(2))
        assert not store.read_only
    with closing(RevisionStore(folder)) as store:
        assert (store.latest(), store.seed()) == (state(2), seed)


def test_a_store_that_another_has_written_meanwhile_stays_unwritten(read_only) -> None:
    """Two histories cannot be merged."""
    folder, allowed = read_only
    with closing(RevisionStore(folder)) as store:
        allowed.append(True)
        with closing(RevisionStore(folder)) as other:
            other.append(state(2))
        with pytest.raises(StoreError, match="revisions of another control server"):
            store.append(state(2))
        assert store.latest() == state(1)


def test_the_copy_of_a_store_is_deleted(read_only, tmp_path, monkeypatch) -> None:
    """It holds the fleet's seed; also if it cannot be used."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, _ = read_only
    with closing(RevisionStore(folder)):
        assert list(tmp_path.glob("tidegate-state-*"))
    for path in folder.iterdir():
        path.write_bytes(b"x" * 4096)
    with pytest.raises(StoreError, match="damaged"):
        RevisionStore(folder)
    assert not list(tmp_path.glob("tidegate-state-*"))
