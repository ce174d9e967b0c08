"""The store writes what has changed, whatever happens between writes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.store import FILE_NAME, RevisionStore, StoreError
from xds_server.fleet.stored.pieces import digests_in

_OLD = """
CREATE TABLE revisions (number INTEGER PRIMARY KEY, at_unix_ms INTEGER NOT NULL,
  author TEXT NOT NULL, reason TEXT NOT NULL, changes TEXT NOT NULL, fleet TEXT NOT NULL,
  size INTEGER NOT NULL, file_hash TEXT, outcome TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE latest (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO latest VALUES ('seed', '77');
PRAGMA user_version = 2;
"""
POOLS = "abcd"


def wanted(content: dict[str, int]) -> Fleet:
    """Return a fleet with these pools, each of which differs by a number."""
    return fleet(
        *(
            pool(name, endpoints=[endpoint(10 * POOLS.index(name) + 1, capacity=1.0 + number)])
            for name, number in content.items()
        )
    )


def state(number: int, content: Fleet, *, file: FileState | None = None) -> FleetState:
    """Return a state whose incarnations follow the revision."""
    found = {each.id: (number // 2, 5) for one in content.pools for each in one.endpoints}
    return FleetState(Revision(number, 1, "ann", "", ()), content, found, file)


def pieces_of(store: RevisionStore) -> tuple[set[str], set[str]]:
    """Return the digests of the stored pieces, and those that are named."""
    texts = [row[0] for row in store._rows("SELECT fleet FROM revisions")]
    texts += [
        json.loads(row[0])["fleet"]
        for row in store._rows("SELECT value FROM latest WHERE key = 'file'")
    ]
    named = {digest for text in texts for digest in digests_in(text)}
    return {row[0] for row in store._rows("SELECT digest FROM pieces")}, named


CONTENT = st.dictionaries(st.sampled_from(POOLS), st.integers(0, 2), min_size=1)
ACTIONS = st.one_of(
    st.tuples(st.just("append"), CONTENT, st.none() | CONTENT),
    st.tuples(st.just("file"), CONTENT, st.none()),
    st.tuples(st.just("fail"), CONTENT, st.none() | CONTENT),
    st.tuples(st.just("reopen"), st.none(), st.none()),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=12))
def test_any_walk_keeps_what_it_must_and_nothing_else(tmp_path_factory, walk) -> None:
    """Kept revisions are read back as they were; no piece is missing and none is left over."""
    folder = tmp_path_factory.mktemp("state")
    store, kept = RevisionStore(folder, max_revisions=3), list[FleetState]()
    file: FileState | None = None
    try:
        for action, content, filed in walk:
            if action == "reopen":
                store.close()
                store = RevisionStore(folder, max_revisions=3)
            elif action == "file" and kept:
                file = FileState("comment", wanted(content))
                store.remember_file(file)
            elif action in {"append", "fail"}:
                given_file = file if filed is None else FileState("hash", wanted(filed))
                number = kept[-1].revision.number + 1 if kept else 1
                new = state(number, wanted(content), file=given_file)
                if action == "fail":
                    store._open().execute("PRAGMA query_only = 1")
                    with pytest.raises(StoreError):
                        store.append(new)
                    store._open().execute("PRAGMA query_only = 0")
                else:
                    store.append(new)
                    file, kept = given_file, [*kept, new][-3:]
            stored, named = pieces_of(store)
            assert stored == named
            latest = store.latest()
            if kept:
                assert latest is not None
                assert latest.fleet == kept[-1].fleet
                assert latest.incarnations == kept[-1].incarnations
                assert latest.file == file
            for each in kept:
                assert store.fleet(each.revision.number) == each.fleet
    finally:
        store.close()


def test_an_unchanged_pool_is_stored_once() -> None:
    """A revision writes the pools that differ from all stored ones."""
    with closing(RevisionStore(None)) as store:
        store.append(state(1, wanted({"a": 0, "b": 0, "c": 0})))
        store.append(state(2, wanted({"a": 0, "b": 1, "c": 0})))
        store.append(state(3, wanted({"a": 0, "b": 0, "c": 0})))
        assert len(pieces_of(store)[0]) == 4


def test_the_second_format_is_upgraded(tmp_path) -> None:
    """Its whole fleets are still read, and dropped like others."""
    old = state(4, wanted({"a": 1, "b": 2}), file=FileState("hash", wanted({"a": 1})))
    text = old.fleet.model_dump_json()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.executescript(_OLD)
        db.execute(
            "INSERT INTO revisions VALUES (4, 1, 'ann', '', '[]', ?, ?, 'hash', '')",
            (text, len(text)),
        )
        filed = json.dumps({"text_hash": "hash", "fleet": wanted({"a": 1}).model_dump_json()})
        db.execute("INSERT INTO latest VALUES ('file', ?)", (filed,))
        known = json.dumps(old.incarnations)
        db.execute("INSERT INTO latest VALUES ('incarnations', ?)", (known,))
        db.commit()
    with closing(RevisionStore(tmp_path, max_revisions=2)) as store:
        assert store.seed() == 77
        assert store.latest() == old
        new = state(5, wanted({"a": 1, "b": 0}), file=FileState("next", wanted({"b": 0})))
        store.append(new)
        assert store.latest() == new
        assert store.fleet(4) == old.fleet
        store.append(state(6, wanted({"c": 0})))
        assert [each.number for each in store.revisions(9)] == [6, 5]
        stored, named = pieces_of(store)
        assert stored == named


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM pieces",
        "UPDATE pieces SET body = replace(body, '90', '91')",
        "DELETE FROM incarnations",
    ],
)
def test_missing_or_altered_rows_are_damage(tmp_path, damage: str) -> None:
    """A state is never put together from other parts than were stored."""
    with closing(RevisionStore(tmp_path)) as store:
        store.append(state(1, wanted({"a": 0})))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.execute(damage)
        db.commit()
    with closing(RevisionStore(tmp_path)) as store, pytest.raises(StoreError, match="damaged"):
        store.latest()


_WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_store_pieces import state, wanted, POOLS
from xds_server.fleet.revision import FileState
from xds_server.fleet.store import RevisionStore
store = RevisionStore(Path(sys.argv[1]), max_revisions=5)
found = store.latest()
number = 0 if found is None else found.revision.number
while True:
    number += 1
    content = wanted({name: (number >> at) % 3 for at, name in enumerate(POOLS)})
    store.append(state(number, content, file=FileState(str(number), content)))
    print(number, flush=True)
"""


def test_a_kill_between_any_two_instructions_loses_nothing_that_was_stored(tmp_path) -> None:
    """A confirmed revision is there; one that was not confirmed is whole or absent."""
    here = __file__.rpartition("/")[0]
    paths = [here, *filter(None, sys.path)]
    confirmed = 0
    for turn in range(4):
        command = [sys.executable, "-c", _WRITER, str(tmp_path), *paths]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                for _ in range(8 + turn):
                    confirmed = int(process.stdout.readline())
            finally:
                process.kill()
            rest = process.stdout.read().splitlines()
            confirmed = int(rest[-1]) if rest else confirmed
        with closing(RevisionStore(tmp_path, max_revisions=5)) as store:
            latest = store.latest()
            assert latest is not None
            assert latest.revision.number in {confirmed, confirmed + 1}
            assert latest.file is not None
            assert latest.file.fleet == latest.fleet
            for each in store.revisions(9):
                content = {name: (each.number >> at) % 3 for at, name in enumerate(POOLS)}
                assert store.fleet(each.number) == wanted(content)
            stored, named = pieces_of(store)
            assert stored == named
