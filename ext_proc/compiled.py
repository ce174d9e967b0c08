"""Whether this picker runs compiled (``tools/compiling.py``)."""

from __future__ import annotations

from importlib.util import find_spec


def compiled() -> bool:
    """Tell whether the modules that a request passes are compiled, by one of them."""
    found = find_spec("ext_proc.server.wire")
    return found is not None and not str(found.origin).endswith(".py")
