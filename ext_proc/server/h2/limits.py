"""What a peer of the libnghttp2 transport may hold, send and wait for; see also `connection`."""

from __future__ import annotations

from typing import Final

import ngh2

MAX_STREAMS: Final = 100_000
"""Of one connection: each HTTP request in flight holds one. Envoy opens another connection where it
needs more; a peer that opens more all the same is refused by the library."""
STREAM_WINDOW: Final = 2**18
CONNECTION_WINDOW: Final = 2**24
"""Most bytes that are received on one connection and not read, beside long messages (`Stream`)."""
UNSENT: Final = 2**24
"""Bytes of all streams that wait for the peer's windows before every writer waits."""
MAX_DETAILS: Final = 500
"""Characters of a status' text: callers take some 8 KiB of headers."""
GREETING_S: Final = 10.0
"""In which a peer must have begun to speak HTTP/2."""
LINGER_S: Final = 5.0
"""In which a peer must have read the last bytes of a connection that ends."""

SETTINGS: Final = {
    ngh2.Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    ngh2.Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    ngh2.Setting.MAX_HEADER_LIST_SIZE: 2**16,
}
CONFIG: Final = ngh2.Configuration(
    auto_window_update=False,
    # At once, and then in each second. Envoy resets a stream where it needs nothing more of it: as
    # often as requests come, which is beyond what one process decides.
    stream_reset_rate_limit=(200_000, 100_000),
    glitch_rate_limit=(200_000, 100_000),
    max_inbound_header_list_size=2**16,
    max_inbound_header_count=256,
)
