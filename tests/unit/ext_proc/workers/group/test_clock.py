"""Times of another machine's clock."""

from __future__ import annotations

from math import inf

from ext_proc.routing.peers import LatencySample
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey
from ext_proc.routing.suspicion import CallerLeft, Died, Gone, SuspectRun
from ext_proc.routing.values.listing import Listing
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Ticket
from ext_proc.telemetry.news import ReadingsUpdate
from ext_proc.workers.group.clock import LONGEST_S, WINDOW_S, ClockOffset, moved
from ext_proc.workers.news import Looked

KEY = EndpointKey("r1", 1)


def test_the_shortest_way_counts():
    """What waited in a queue does not move times."""
    offset = ClockOffset()
    assert offset.seconds == inf
    for sent, received in ((10.0, 1010.5), (11.0, 1011.1), (12.0, 1012.9)):
        offset.note(sent, received)
    assert abs(offset.seconds - 1000.1) < 1e-9


def test_clocks_that_run_unequally_are_followed():
    """A difference that grows is known after two windows."""
    offset = ClockOffset()
    for number in range(4):
        offset.note(number * WINDOW_S, number * (WINDOW_S + 1.0))
    assert offset.seconds == 2.0


def test_every_time_is_moved():
    """A message of each kind that has a time has it on this machine's clock."""
    ticket = Ticket(1, KEY, "llm", 5.0, 10.0, True, 0.1, 0)
    lease = Leased(LeaseKey("llm", SequenceKey("m", "", 7)), Lease(KEY, "stable", 70.0))
    assert moved(LatencySample(ticket, 12.0), 5.0, 100.0) == LatencySample(
        ticket._replace(at=15.0), 17.0
    )
    assert moved(lease, 5.0, 100.0).lease.expires == 75.0
    heard = moved(ReadingsUpdate("r1", "push", (Reading(9.0),), 10.0), 5.0, 100.0)
    assert (heard.at, heard.readings[0].at) == (15.0, 14.0)
    assert moved(Looked(KEY, Listing(10.0, ())), 5.0, 100.0).listing.at == 15.0
    who = object()
    for made in (Died("r1", who, 10.0, False), Gone("r1", 10.0), CallerLeft("r1", 10.0)):
        assert moved(made, 5.0, 100.0).at == 15.0
    assert moved(SuspectRun(b"", None, 10.0), 5.0, 100.0).at == 15.0


def test_what_a_member_says_counts_for_a_day_at_most():
    """Else one could make entries that never expire, and samples that last for years."""
    now, ticket = 2.0 * LONGEST_S, Ticket(1, KEY, "llm", 5.0, -1e9, True, 0.1, 0)
    sample = moved(LatencySample(ticket, 1e9), 0.0, now)
    assert (sample.ticket.at, sample.ended) == (now - LONGEST_S, now)
    assert moved(Gone("r1", 1e9), 0.0, now).at == now
    lease = Leased(LeaseKey("llm", SequenceKey("m", "", 7)), Lease(KEY, "stable", 1e9))
    assert moved(lease, 0.0, now).lease.expires == now + LONGEST_S
