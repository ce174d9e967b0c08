"""Detects whether this picker runs compiled (``tools/compiling.py``)."""

from __future__ import annotations

from importlib.util import find_spec


def compiled() -> bool:
    """Return whether the request path is compiled, judged by one of its modules."""
    found = find_spec("ext_proc.server.wire")
    return found is not None and not str(found.origin).endswith(".py")
