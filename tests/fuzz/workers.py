"""Fuzz target of the workers: the bytes that one reads from another, in two pieces.

The result is messages or ``GarbledError``. The messages are applied to a router of three replicas:
nothing is raised, what it keeps stays within its bounds, and a worker that starts can be sent it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ext_proc.blame import deaths
from ext_proc.feedback.entries import Judged
from ext_proc.feedback.fold import Feedback
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, Released
from ext_proc.routing.suspicion import SUSPICION_EVENTS, Died, SuspectRun
from ext_proc.workers.decode import Decoder
from ext_proc.workers.encode import Encoder
from ext_proc.workers.records import GarbledError, framed
from support.streams import llm, router

if TYPE_CHECKING:
    from ext_proc.routing.router import Router
    from ext_proc.workers.records import Message

FOLLOWED = (
    *(Share, LatencySample, Inserted, Confirmed, Withdrawn, Leased, Released),
    *SUSPICION_EVENTS,
)
PEER = 1


def one_stream(data: bytes) -> None:
    """Read ``data`` as a stream and as one frame, and apply what is in it."""
    half = len(data) // 2
    for stream in (data, framed(data)):
        decoder = Decoder()
        messages: list[Message] = []
        with suppress(GarbledError):
            for piece in (stream[:half], stream[half:]):
                messages += decoder.feed(piece)
        if messages:
            _apply(messages)


def _apply(messages: list[Message]) -> None:
    made = router(llm())
    feedback = Feedback(made, picker="p", life="x-")
    for number, message in enumerate(messages):
        now = 1.0 + number
        if isinstance(message, FOLLOWED):
            made.peers.follow(PEER, message, now)
        elif isinstance(message, Judged):
            feedback.follow(message, now)
        made.suspicion.sweep(now)
    found = made.suspicion.deaths
    for message in messages:
        if isinstance(message, SuspectRun):
            found.standing(message.fingerprint, message.at)
        elif isinstance(message, Died):
            found.confined(message.who, message.at)
            found.repeatable(message.who, message.at)
    found.describe(1.0)
    assert len(found._deaths) <= deaths.MAX_DEATHS
    assert found._size <= deaths.MAX_SUSPECTS
    assert found._size == sum(len(each.suspects) for each in found._deaths)
    assert len(found.condemned) <= deaths.MAX_CONDEMNED
    assert set(found._marked) == {mark for each in found._deaths for mark in each.marks}
    _begin(made)
    made.peers.lost(PEER)
    assert not len(made.peers)
    assert len(made.ledger) == 0
    assert all(load.in_flight == 0 for _, load in made.ledger.loads())


def _begin(made: Router) -> None:
    """Send what is kept to a worker that starts."""
    encoder = Encoder()
    sent: list[Message] = [*made.peers.suspicions(), *made.peers.index_uses()]
    sent += [Leased(*each) for each in made.peers.leases_in_force()]
    for each in sent:
        encoder.put(each)
    assert list(Decoder().feed(framed(encoder.batch))) == sent
