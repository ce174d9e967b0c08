"""Bounds of the libnghttp2 transport on what a peer may hold, send and delay; see `connection`."""

from __future__ import annotations

from typing import Final

import ngh2

MAX_STREAMS: Final = 100_000
"""Streams of one connection: each HTTP request in flight holds one. Envoy opens another connection
when it needs more. The library refuses streams that a peer opens beyond the bound."""
STREAM_WINDOW: Final = 2**18
CONNECTION_WINDOW: Final = 2**24
"""Maximum bytes received on one connection and not yet read, besides the beginnings of messages;
`held` bounds both, over all connections."""
UNSENT: Final = 2**24
"""Unsent bytes of all streams, waiting for the peer's windows, above which every writer waits."""
GREETING_S: Final = 10.0
"""Seconds within which a peer must have started to speak HTTP/2."""
LINGER_S: Final = 5.0
"""Seconds within which a peer must have read the last bytes of a closing connection."""

SETTINGS: Final = {
    ngh2.Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    ngh2.Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    ngh2.Setting.MAX_HEADER_LIST_SIZE: 2**16,
}
CONFIG: Final = ngh2.Configuration(
    auto_window_update=False,
    # (burst, per second). Envoy resets a stream when it needs nothing more of it, so resets come as
    # often as requests; these rates are three times what one process decides. Below them they cost
    # their own connection only (`turns`).
    stream_reset_rate_limit=(50_000, 20_000),
    glitch_rate_limit=(50_000, 20_000),
    max_inbound_header_list_size=2**16,
    max_inbound_header_count=256,
)
