"""The store writes what has changed, whatever happens between writes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stored_pieces import POOLS, pieces_of, state, wanted
from xds_server.fleet.revision import FileState, FleetState
from xds_server.fleet.store import FILE_NAME, RevisionStore, StoreError

_OLD = """
CREATE TABLE revisions (number INTEGER PRIMARY KEY, at_unix_ms INTEGER NOT NULL,
  author TEXT NOT NULL, reason TEXT NOT NULL, changes TEXT NOT NULL, fleet TEXT NOT NULL,
  size INTEGER NOT NULL, file_hash TEXT, outcome TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE latest (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO latest VALUES ('seed', '77');
PRAGMA user_version = 2;
"""
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
