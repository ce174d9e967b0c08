"""The binary format of messages between workers. Pure.

Rules:

1. A stream consists of frames: a length of 4 bytes, then whole records. All numbers are
   little-endian.
2. Endpoints and pools are sent by number. A number is defined before its first use, and denotes the
   same name as long as the stream lasts.
3. Messages caused by requests are packed; the others are JSON.
4. Bytes that violate the format or its bounds raise ``GarbledError``: the reader closes the stream.
5. Times are those of the sender's monotonic clock, which the processes of one machine share. The
   reader on another machine moves them to its own (``group.clock``).
6. Whoever reads a stream greets first, with ``VERSION``. A sender of another version answers with
   its own greeting, which no frame begins with, and ends the connection.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ext_proc.blame.law import Effect

if TYPE_CHECKING:
    from ext_proc.feedback.entries import Judged
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.news import (
        HeldLease,
        Hello,
        Listed,
        Looked,
        LookWanted,
        OtherVersion,
        OwnerAnswer,
        OwnerAsk,
        Probed,
        SnapshotEnd,
    )

    Message: TypeAlias = (
        ReplicationEvent
        | TelemetryUpdate
        | Judged
        | Probed
        | Looked
        | LookWanted
        | HeldLease
        | Hello
        | Listed
        | OtherVersion
        | OwnerAsk
        | OwnerAnswer
        | SnapshotEnd
    )
    """Content of a record."""

VERSION: Final = 11
"""Raised with each change of the bytes: members of a group with different ones share nothing."""
HELLO: Final = b"tidegate %d " % VERSION
_ANY_HELLO: Final = re.compile(rb"tidegate (\d{1,9}) ")
MAX_FRAME: Final = 2**20
"""Maximum bytes of a frame."""
MAX_NAMES: Final = 2**16
"""Maximum names of one stream."""
MAX_BLOCKS: Final = 2**16
"""Maximum blocks of one insert; further ones are dropped from the leaf's end."""
MAX_JSON: Final = 2**18
"""Maximum bytes of one JSON record."""

LENGTH: Final = struct.Struct("<I")
SHARE: Final = struct.Struct("<BIIIIQdd")
NO_MODEL: Final = 2**32 - 1
"""In place of a name's number: the requests count against no limit."""
SAMPLE: Final = struct.Struct("<BIIddddIB")
INSERTED: Final = struct.Struct("<BIdqQBI")
TRIED: Final = struct.Struct("<BQ")
JUDGED: Final = struct.Struct("<BIIBdddBIQQ")
JSON: Final = struct.Struct("<BI")
BLOCK_BYTES: Final = 8
TAG_NAME: Final = 1
TAG_SHARE: Final = 2
TAG_SAMPLE: Final = 3
TAG_INSERTED: Final = 4
TAG_JSON: Final = 5
TAG_JUDGED: Final = 6
TAG_CONFIRMED: Final = 7
TAG_WITHDRAWN: Final = 8
EFFECTS: Final = tuple(Effect)
EFFECT_NUMBERS: Final = {effect: number for number, effect in enumerate(EFFECTS)}


class GarbledError(ValueError):
    """The bytes are not valid in this format."""


def greeted_version(data: bytes | bytearray) -> int | None:
    """Return the version in a greeting; ``None`` = the bytes do not begin with one."""
    found = _ANY_HELLO.match(data)
    return None if found is None else int(found[1])


def framed(records: bytes | bytearray) -> bytes:
    """Return a frame of whole records of at most ``MAX_FRAME`` bytes in all."""
    return LENGTH.pack(len(records)) + records
