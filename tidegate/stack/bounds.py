"""Default bounds of an Envoy process."""

from __future__ import annotations

from typing import Final

MAX_HEAP_MIB: Final = 1024
"""Bound of Envoy's heap, MiB."""

MAX_CONNECTIONS: Final = 10_000
"""Bound of the connections of clients."""

MIN_HEAP_MIB: Final = 128
"""Smallest bound of the heap, MiB; an idle Envoy needs about 30."""

STOP_PAUSE_S: Final = 5.0
"""Time in which an Envoy that stops still takes new connections, seconds."""

STOP_TIMEOUT_S: Final = 300.0
"""Time that an Envoy's stop waits for answers, the pause included, seconds."""
