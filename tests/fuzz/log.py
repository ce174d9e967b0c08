"""What is fuzzed of the access log: our reader beside Envoy's own messages, on any bytes.

Rules:

1. What our reader refuses Envoy's messages refuse too. The reverse need not hold: it does not look
   into what it skips.
2. Where Envoy's messages accept the bytes, what they understood, written anew, reads the same; and
   so do the bytes themselves where no message comes twice (see ``ext_proc.feedback.wire``).
3. Nothing but a ``DecodeError`` is raised, and what is remembered stays bounded.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ext_proc.feedback import wire
from support import full_log


def one_message(data: bytes) -> None:
    """Read ``data`` both ways and hold the rules."""
    try:
        ours = list(wire.entries_of(data))
    except DecodeError:
        ours = None
    assert len(wire._known_addresses) <= wire.MAX_KNOWN
    assert len(wire._known_statuses) <= wire.MAX_KNOWN
    try:
        message = full_log.parse(data)
    except DecodeError:
        return
    assert ours is not None, "ours is stricter than Envoy's"
    anew = message.SerializeToString()
    theirs = full_log.entries_of(anew)
    assert list(wire.entries_of(anew)) == theirs
    if len(anew) == len(data):
        assert ours == theirs
