"""Default bounds of an Envoy process."""

from __future__ import annotations

from typing import Final

MAX_HEAP_MIB: Final = 1024
"""Bound of Envoy's heap, MiB."""

MAX_CONNECTIONS: Final = 10_000
"""Bound of the connections of clients."""

MIN_HEAP_MIB: Final = 128
"""Smallest bound of the heap, MiB; an idle Envoy needs about 30."""
