"""Record the bytes that pickers of a group exchange: the greeting, and one record of each kind.

Run it after each change of them, once ``VERSION`` of ``ext_proc.workers.records`` is raised::

    PYTHONPATH=tests:. python -m support.record_group > tests/unit/fixtures/group-records.json
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

from ext_proc.blame.deaths import Who
from ext_proc.blame.fingerprint import BYTES
from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.suspicion import (
    CallerLeft,
    Died,
    Gone,
    SuspectBody,
    SuspectCleared,
    SuspectRun,
)
from ext_proc.routing.values.listing import Listing, PlacementState, Row
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Ticket
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.encode import Encoder
from ext_proc.workers.news import (
    HeldLease,
    Hello,
    Listed,
    Looked,
    LookWanted,
    OwnerAnswer,
    OwnerAsk,
    Probed,
    SnapshotEnd,
)
from ext_proc.workers.records import HELLO, framed

if TYPE_CHECKING:
    from ext_proc.workers.records import Message

_PRINT: Final = bytes(range(BYTES))
_REPLICA: Final = EndpointKey("replica-1", 3)
_SEQUENCE: Final = SequenceKey("model", "1", 17)
_KEY: Final = LeaseKey("pool", _SEQUENCE)
_LEASE: Final = Lease(_REPLICA, "stable", 60.5)
MESSAGES: Final[tuple[Message, ...]] = (
    Hello("picker-1", 1.5, 7, "view"),
    Listed(2, 7, ("picker-1", "picker-2")),
    Share("pool", _REPLICA, 2, 1024.0, 5, 512.0, "model"),
    LatencySample(Ticket(0, _REPLICA, "pool", 1024.0, 1.0, True, 0.5, 3), 2.5),
    Inserted(_REPLICA, (1, -2), 1.5, 9, 11),
    Confirmed(11),
    Withdrawn(12),
    Judged("pool", _REPLICA, Effect.ALIVE, 0.25, 1.5, 100.0, True, 1, 2, 3),
    Leased(_KEY, _LEASE),
    Released(_KEY),
    HeldLease(_KEY, _LEASE, 8, _REPLICA),
    OwnerAsk(4, Proposal("pool", _SEQUENCE, _REPLICA, "stable", 60.0), "view"),
    OwnerAnswer(4, PlacedAs.AS_PROPOSED),
    ReadingsUpdate("replica-1", "page", (Reading(1.0, model="model", queued=2.0),), 1.5),
    Restarted("replica-1"),
    ScrapeFailed("replica-1", 3),
    PushEnded("replica-1"),
    Probed("pool", _REPLICA, False, "it answered 503"),
    Looked(_REPLICA, Listing(1.0, (Row("model", "1", PlacementState.LOADING, "why"),), True)),
    LookWanted(_REPLICA),
    Died("replica-1", Who(_PRINT, (_PRINT,), None), 1.5, True),
    SuspectBody(_PRINT, "path", b"body", (_PRINT,)),
    SuspectCleared(_PRINT),
    SuspectRun(_PRINT, "replica-1", 1.5),
    Gone("replica-1", 1.5),
    CallerLeft("replica-1", 1.5),
    SnapshotEnd(),
)
"""One of each kind."""


def recorded() -> dict[str, str]:
    """Return the greeting, and the frame of each message by its kind, as hexadecimal digits."""
    encoder, frames = Encoder(), {"greeting": HELLO.hex()}
    for message in MESSAGES:
        encoder.put(message)
        frames[type(message).__name__] = framed(encoder.batch).hex()
        encoder.batch.clear()
    return frames


def main() -> None:
    """Print what is recorded."""
    sys.stdout.write(json.dumps(recorded(), indent=1) + "\n")


if __name__ == "__main__":
    main()
