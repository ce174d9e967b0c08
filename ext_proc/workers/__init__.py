"""Several picker processes on one machine that decide as one; see ``docs/workers.md``."""
