"""Events as bytes, between the workers of one machine. Pure.

Rules:

1. A stream is frames: a length of 4 bytes, then whole records. All numbers are little-endian.
2. Endpoints and pools are sent by number. A number is told before its first use, and stands for
   the same name as long as the stream lasts.
3. What requests make is packed, the rest is JSON.
4. What does not fit the format or its bounds is ``GarbledError``: the reader gives up the stream.
5. Times are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ext_proc.feedback.entries import Judged, Verdict

if TYPE_CHECKING:
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.news import Begun, Indexed, Probed

    Word: TypeAlias = ReplicationEvent | TelemetryUpdate | Judged | Probed | Indexed | Begun
    """What a record says."""

VERSION: Final = 2
MAX_FRAME: Final = 2**20
"""Bytes of a frame."""
MAX_NAMES: Final = 2**16
"""Names that one stream may tell."""
MAX_BLOCKS: Final = 2**16
"""Blocks of one insert; more are left out from the leaf's end."""
MAX_JSON: Final = 2**18
"""Bytes of one record of JSON."""

LENGTH: Final = struct.Struct("<I")
SHARE: Final = struct.Struct("<BIIIQdd")
LESSON: Final = struct.Struct("<BIIddddIB")
INSERTED: Final = struct.Struct("<BIdI")
JUDGED: Final = struct.Struct("<BIIBdddBI")
JSON: Final = struct.Struct("<BI")
BLOCK_BYTES: Final = 8
TAG_NAME: Final = 1
TAG_SHARE: Final = 2
TAG_LESSON: Final = 3
TAG_INSERTED: Final = 4
TAG_JSON: Final = 5
TAG_JUDGED: Final = 6
VERDICTS: Final = tuple(Verdict)
VERDICT_NUMBERS: Final = {verdict: number for number, verdict in enumerate(VERDICTS)}


class GarbledError(ValueError):
    """These bytes are not of this format."""


def framed(records: bytes | bytearray) -> bytes:
    """Return a frame of whole records; at most ``MAX_FRAME`` bytes of them."""
    return LENGTH.pack(len(records)) + records
