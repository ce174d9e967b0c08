"""Databases of earlier releases: what these wrote is read, and goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.record_store import TEXT
from xds_server.fleet.load import load_text
from xds_server.fleet.store import FILE_NAME, RevisionStore

RECORDED = sorted((Path(__file__).parents[3] / "fixtures").glob("store-*.sql"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_database_of_an_earlier_release_goes_on(path, tmp_path) -> None:
    """Revisions, outcomes, incarnations and seed; the fleet keeps that release's defaults."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        db.executescript(path.read_text())
        (seed,) = db.execute("SELECT value FROM latest WHERE key = 'seed'").fetchone()
    with closing(RevisionStore(tmp_path)) as store:
        found = store.latest()
        assert found is not None
        for pool, wanted in zip(found.fleet.pools, load_text(TEXT).pools, strict=True):
            assert (pool.name, pool.match) == (wanted.name, wanted.match)
            assert (pool.endpoints, pool.variants) == (wanted.endpoints, wanted.variants)
        assert found.file is not None
        assert found.file.fleet == found.fleet
        assert found.incarnations == {"llm/r1": (1, 1), "llm/r2": (2, 1), "llm/r3": (1, 2)}
        assert [each.outcome for each in store.revisions(9)] == ["", "acknowledged"]
        assert str(store.seed()) == seed
        store.append(replace(found, revision=replace(found.revision, number=3)))
        assert store.fleet(3) == store.fleet(1) == found.fleet
