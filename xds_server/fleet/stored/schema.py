"""Tables of the revision database, and upgrades from its earlier formats."""

from __future__ import annotations

from typing import Final

VERSION: Final = 3

SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS revisions (
  number INTEGER PRIMARY KEY,
  at_unix_ms INTEGER NOT NULL,
  author TEXT NOT NULL,
  reason TEXT NOT NULL,
  changes TEXT NOT NULL,
  fleet TEXT NOT NULL,
  size INTEGER NOT NULL,
  file_hash TEXT,
  outcome TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE IF NOT EXISTS latest (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS pieces (digest TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS incarnations (
  id TEXT PRIMARY KEY,
  number INTEGER NOT NULL,
  joined INTEGER NOT NULL
) STRICT;
PRAGMA user_version = {VERSION};
"""
"""``latest`` has the seed, the file applied last, and the number of rows of ``incarnations``."""

_OUTCOMES: Final = "ALTER TABLE revisions ADD COLUMN outcome TEXT NOT NULL DEFAULT '';"
"""Format 1 stored no outcomes."""

_INCARNATIONS: Final = """
INSERT OR REPLACE INTO incarnations
  SELECT each.key, json_extract(each.value, '$[0]'), json_extract(each.value, '$[1]')
  FROM latest, json_each(latest.value) AS each
  WHERE latest.key = 'incarnations' AND json_type(latest.value) = 'object';
UPDATE latest SET value = CAST((SELECT count(*) FROM incarnations) AS TEXT)
  WHERE key = 'incarnations';
"""
"""Formats 1 and 2 stored all incarnations as one value."""


def upgrade(version: int) -> str:
    """Return the statements from a format, 0 for a new database, to the present one."""
    before = _OUTCOMES if version == 1 else ""
    return f"{before} {SCHEMA} {_INCARNATIONS if version else ''}"
