"""Exchanges of new sequences that another picker of a group places."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ext_proc.exchange import Body, BodySending, Exchange, Lost
from ext_proc.exchange.machine import ASKED_MORE_S, DECIDED, MAX_ASKS, QUEUED, SPARE_S
from ext_proc.routing.state.leases import PLACED_S, Lease, LeaseKey
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.proposal import PlacedAs
from support.exchanges import PROMPT, head, in_flight, run
from support.streams import llm, replicas, router
from tidegate_api.names import SEQUENCE_HEADER

AT_S = 1.0
"""When ``run`` decides, monotonic seconds."""
BODY = Body(PROMPT, True)
SENT = head(request_body=BodySending.BUFFERED, headers={SEQUENCE_HEADER: "7"})


@dataclass
class Group:
    """Owners of which another one places all sequences."""

    asked: list = field(default_factory=list)
    told: list = field(default_factory=list)
    latest: list = field(default_factory=list)
    left: int = 0

    def places(self, _):
        """Return whether this picker may."""
        return False

    def unsure(self, _):
        """Return whether too few may hold a lease."""
        return False

    def ask(self, proposal, told, latest):
        """Keep the question."""
        self.latest.append(latest)
        self.asked.append(proposal)
        self.told.append(told)
        return self.leave

    def leave(self):
        """Count a question that is taken back."""
        self.left += 1


@pytest.fixture
def made():
    """Return a router that reads what peers lease, and is in a group."""
    made = router(llm(endpoints=replicas(3)))
    made._on_sequence = lambda: None
    made.owners = Group()
    return made


def asked(made):
    """Return an exchange whose sequence's owner has been asked."""
    exchange, wait = run(made, SENT, BODY)
    assert exchange.state is QUEUED
    assert wait.ask_s == PLACED_S + ASKED_MORE_S
    return exchange


def grant(made, endpoint):
    """Lease a replica as a peer does."""
    proposal = made.owners.asked[-1]
    key = LeaseKey(proposal.pool, proposal.sequence)
    made.leases.keep(key, Lease(endpoint, proposal.variant, 100.0), 1.0)


def test_a_lease_as_proposed_has_fallbacks(made):
    """No replica has seen the sequence: one that cannot be reached is succeeded by another."""
    exchange = asked(made)
    (proposal,) = made.owners.asked
    assert in_flight(made) == 0
    grant(made, proposal.endpoint)
    made.owners.told[0](PlacedAs.AS_PROPOSED, 1.5, 1000.0)
    (reply,) = exchange.released()
    decision = reply.pick.decision
    assert (decision.addresses, decision.retriable) == (proposal.addresses, True)
    assert len(decision.addresses) == 3
    assert decision.ticket.endpoint == proposal.endpoint


def test_an_earlier_lease_has_none(made):
    """Its replica has the sequence's state."""
    exchange = asked(made)
    other = next(each.key for each in replicas(3) if each.key != made.owners.asked[0].endpoint)
    grant(made, other)
    made.owners.told[0](PlacedAs.EARLIER, 1.5, 1000.0)
    (reply,) = exchange.released()
    decision = reply.pick.decision
    assert (decision.ticket.endpoint, len(decision.addresses)) == (other, 1)


def test_without_an_owner_it_is_refused(made):
    """Sequences prefer a refusal to a wrong replica."""
    exchange = asked(made)
    made.owners.told[0](PlacedAs.NOWHERE, 2.0, 1000.0)
    (refusal,) = exchange.released()
    assert (refusal.status, refusal.reason) == (503, "unplaced")
    assert ("retry-after", "1") in refusal.headers
    assert (exchange.state, in_flight(made)) == (DECIDED, 0)


def test_a_lease_on_a_replica_that_is_unknown_here_is_replaced(made):
    """The owner is asked to replace it, and not more than ``MAX_ASKS`` times in all."""
    exchange = asked(made)
    for _ in range(MAX_ASKS):
        grant(made, EndpointKey("r99", 1))
        made.owners.told[-1](PlacedAs.EARLIER, 1.5, 1000.0)
    assert [each.instead for each in made.owners.asked] == [None, EndpointKey("r99", 1)]
    assert exchange.released()[0].reason == "unplaced"


def test_a_caller_that_leaves_takes_the_question_back(made):
    """An answer after that charges nothing."""
    exchange = asked(made)
    exchange.on(Lost(clean=True), 1.2, 1000.0)
    grant(made, made.owners.asked[0].endpoint)
    made.owners.told[0](PlacedAs.AS_PROPOSED, 1.5, 1000.0)
    assert (made.owners.left, in_flight(made)) == (1, 0)


def test_what_waited_for_room_asks_then():
    """A request that leaves the queue asks the owner before it goes."""
    made = router(llm(endpoints=replicas(1), per_endpoint_in_flight=1, hold_s=4.0))
    first, _ = run(made, head(end_of_stream=True))
    made._on_sequence, made.owners = (lambda: None), Group()
    exchange, wait = run(made, SENT, BODY)
    assert (exchange.state, made.queue.count, made.owners.asked) == (QUEUED, 1, [])
    first.on(Lost(clean=True), 2.0, 1000.0)
    made.pump(2.0, 1000.0)
    assert (exchange.state, made.queue.count, len(made.owners.asked)) == (QUEUED, 0, 1)
    assert made.owners.latest == [pytest.approx(AT_S + wait.ask_s - SPARE_S)]  # in time for it
    grant(made, made.owners.asked[0].endpoint)
    made.owners.told[0](PlacedAs.AS_PROPOSED, 2.5, 1000.0)
    assert exchange.released()[0].pick.decision.ticket is not None


def test_other_requests_ask_nobody(made):
    """Requests without a sequence are decided at once."""
    exchange = Exchange(made)
    exchange.on(head(end_of_stream=True), 1.0, 1000.0)
    assert (exchange.state, made.owners.asked) == (DECIDED, [])
