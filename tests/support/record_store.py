"""Record the revision database of a release, as SQL, for tests of later ones.

Run it with a checkout of that release as the first folder of ``PYTHONPATH``::

    PYTHONPATH=CHECKOUT python -P tests/support/record_store.py > store-VERSION.sql
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from xds_server.fleet.load import load_text
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.store import FILE_NAME, RevisionStore

TEXT = """
listener: {address: "0.0.0.0:10000"}
pickers: {addresses: ["127.0.0.1:18001"]}
pools:
- name: llm
  match: {models: [llama-3-8b, llama-3-70b]}
  default: true
  variants:
  - {name: stable, weight: 90}
  - {name: canary, weight: 10}
  endpoints:
  - {id: r1, http: "10.0.0.1:8000", grpc: "10.0.0.1:8001", variant: stable, zone: a}
  - {id: r2, http: "10.0.0.2:8000", grpc: "10.0.0.2:8001", variant: stable, draining: true}
  - {id: r3, http: "10.0.0.3:8000", grpc: "10.0.0.3:8001", variant: canary}
- name: rank
  match: {models: [reranker]}
  endpoints:
  - {id: k1, http: "10.0.1.1:8000"}
"""


def main() -> None:
    """Write two revisions, and print the database."""
    fleet = load_text(TEXT, "fleet.yaml")
    file = FileState("hash", fleet)
    with tempfile.TemporaryDirectory() as folder:
        store = RevisionStore(Path(folder))
        first = Revision(1, 1795471200000, "fleet.yaml", "fleet file", ("fleet created",))
        known = {"llm/r1": (1, 1), "llm/r2": (2, 1)}
        store.append(FleetState(first, fleet, known, file))
        store.note(1, "acknowledged")
        second = Revision(2, 1795471260000, "ann", "maintenance", ("endpoint r1 draining",))
        store.append(FleetState(second, fleet, {**known, "llm/r3": (1, 2)}, file))
        store.close()
        db = sqlite3.connect(Path(folder) / FILE_NAME)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        lines = (*db.iterdump(), f"PRAGMA user_version = {version};", "")
        sys.stdout.write("\n".join(lines))
        db.close()


if __name__ == "__main__":
    main()
