"""Changes of the revision database as records, which bring a copy of it to the same state. Pure.

Rules:

1. ``follow`` notes the keys of rows that a transaction writes or deletes, in a temporary table.
   ``taken`` returns these rows as one record and forgets the keys.
2. A record names tables of ``_KEYS`` only, and contains no SQL.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import sqlite3

_KEYS: Final = {
    "revisions": "number",
    "latest": "key",
    "pieces": "digest",
    "incarnations": "id",
}
"""The tables, and their primary keys."""


def follow(db: sqlite3.Connection) -> None:
    """Note what transactions of this connection change from now on."""
    db.execute("CREATE TEMP TABLE changed (of TEXT NOT NULL, key NOT NULL)")
    for table, key in _KEYS.items():
        for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
            noted = f"INSERT INTO changed VALUES ('{table}', {row}.{key})"  # noqa: S608 - names of this module
            name = f"changed_{table}_{event}"
            when = f"AFTER {event} ON main.{table}"
            db.execute(f"CREATE TEMP TRIGGER {name} {when} BEGIN {noted}; END")


def taken(db: sqlite3.Connection) -> bytes:
    """Return the record of what the open transaction has changed."""
    changes: dict[str, Any] = {}
    for table, key in _KEYS.items():
        query = "SELECT DISTINCT key FROM changed WHERE of = ?"
        keys = [each for (each,) in db.execute(query, (table,))]
        find = f"SELECT * FROM {table} WHERE {key} = ?"  # noqa: S608 - as above
        found = {each: db.execute(find, (each,)).fetchone() for each in keys}
        if keys:
            changes[table] = {
                "rows": [row for row in found.values() if row is not None],
                "gone": [each for each, row in found.items() if row is None],
            }
    db.execute("DELETE FROM changed")
    return zlib.compress(json.dumps(changes).encode())


def replay(db: sqlite3.Connection, record: bytes) -> None:
    """Make the changes of a record.

    Raises:
        ValueError: It is no record.
        sqlite3.Error: It is one of another database.
    """
    try:
        changes = json.loads(zlib.decompress(record))
    except zlib.error as error:
        raise ValueError(f"a record is damaged: {error}") from None
    db.execute("BEGIN")
    try:
        for table, key in _KEYS.items():
            change = changes.get(table, {"rows": (), "gone": ()})
            for row in change["rows"]:
                marks = ", ".join("?" for _ in row)
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)  # noqa: S608 - as above
            delete = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608 - as above
            db.executemany(delete, [(each,) for each in change["gone"]])
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
