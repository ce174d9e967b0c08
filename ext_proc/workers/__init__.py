"""Several picker processes that decide as one; see ``docs/explanation/workers.md``."""
