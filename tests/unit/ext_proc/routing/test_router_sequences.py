"""Sequences stay on the replica of their state; charges move to the replica that served."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ext_proc.routing.state.leases import Leased
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Ledger, Settled
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.ticket import Outcome
from support.routing import decide, end, refuse

if TYPE_CHECKING:
    from .conftest import Build


def test_a_charge_moves_to_the_replica_that_served(build: Build) -> None:
    """V115: after a retry the replica that served has the charge, under a new ticket."""
    events: list[object] = []
    router = build.router(build.pool(3), on_event=events.append)
    decision = decide(router, build.request())
    assert decision.ticket is not None
    moved = router.served(decision.ticket, decision.addresses[1], 1.0)
    other = moved.endpoint.id
    assert (router.registry.in_flight()[other], sum(router.registry.in_flight().values())) == (1, 1)
    assert moved.work == decision.ticket.work
    assert not router.settle(decision.ticket, Outcome.DONE, 1.0)
    assert router.settle(moved, Outcome.DONE, 1.0)
    assert router.ledger.outcomes == {Outcome.MOVED: 1, Outcome.DONE: 1}
    follower = Ledger()
    for event in events:
        if isinstance(event, Charged | Settled | EndpointRemoved):
            follower.apply(event)
    assert follower.outcomes == router.ledger.outcomes


def test_a_charge_stays_where_nothing_is_known(build: Build) -> None:
    """V29: for the pick itself, an unknown address or a settled ticket, the ticket is the same."""
    router = build.router(build.pool(2))
    decision = decide(router, build.request())
    ticket = decision.ticket
    assert ticket is not None
    assert router.served(ticket, decision.addresses[0], 1.0) is ticket
    assert router.served(ticket, "10.9.9.9:1", 1.0) is ticket
    end(router, decision)
    assert router.served(ticket, decision.addresses[1], 1.0) is ticket
    assert len(router.ledger) == 0


def test_a_sequence_stays_on_its_replica(build: Build) -> None:
    """All further requests have one address, with no retry elsewhere, until the sequence ends."""
    router = build.router(build.pool(8))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    for _ in range(10):
        again = decide(router, build.request(sequence_id=5))
        assert (again.addresses, again.reason) == (first.addresses[:1], "sequence")
        assert (again.retriable, again.repeatable) == (False, False)
    last = decide(router, build.request(sequence_id=5, sequence_end=True))
    assert last.addresses == first.addresses[:1]
    assert len(router.leases) == 0


def test_the_start_of_a_sequence_has_fallbacks_but_is_read_once(build: Build) -> None:
    """Where no replica has read it, any of them may start the sequence."""
    router = build.router(build.pool(8))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert (len(first.addresses), first.retriable, first.repeatable) == (8, True, False)


def test_a_lease_follows_a_start_to_the_replica_that_served(build: Build) -> None:
    """The log names it after the request; peers learn of the new lease."""
    events: list[object] = []
    router = build.router(build.pool(3), on_event=events.append)
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert first.ticket is not None
    end(router, first)
    there = router.registry.at("llm", first.addresses[2])
    assert there is not None
    router.starts.served(first.ticket.id, there, 1.0)
    again = decide(router, build.request(sequence_id=5), 2.0)
    assert again.addresses == first.addresses[2:]
    moves = [event for event in events if isinstance(event, Leased)]
    assert [move.lease.endpoint for move in moves[:2]] == [first.ticket.endpoint, there]


def test_a_lease_follows_a_start_past_a_refused_connection(build: Build) -> None:
    """The second request of a sequence may come before the log names the replica that served."""
    router = build.router(build.pool(3))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert first.ticket is not None
    router.starts.unreached(first.ticket.id, first.addresses[0], 1.0)
    assert decide(router, build.request(sequence_id=5), 1.0).addresses == first.addresses[1:2]


def test_a_lease_follows_a_start_beyond_its_list(build: Build) -> None:
    """Where the one that is listed refuses the connection, the proxy tries those that are not."""
    pool = build.pool(2)
    listed, other = pool.endpoints
    router = build.router(replace(pool, endpoints=(listed, replace(other, draining=True))))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    there = router.registry.at("llm", other.http)
    assert first.ticket is not None
    assert there is not None
    assert first.addresses == (listed.http,)
    router.starts.served(first.ticket.id, there, 1.0)
    assert decide(router, build.request(sequence_id=5), 2.0).addresses == (other.http,)
    assert len(router.starts) == 1


def test_a_lease_ends_with_its_idle_time(build: Build) -> None:
    """Each request prolongs the lease; after the idle time the sequence is routed afresh."""
    router = build.router(build.pool(4, sequence_idle_s=10.0))
    decide(router, build.request(sequence_id=5), 0.0)
    assert decide(router, build.request(sequence_id=5), 9.0).reason == "sequence"
    assert decide(router, build.request(sequence_id=5), 18.0).reason == "sequence"
    assert decide(router, build.request(sequence_id=5), 28.0).reason == "least"


def test_a_lease_outlives_draining_but_a_new_start_does_not(build: Build) -> None:
    """A sequence continues on a draining replica; a new start moves it to another one."""
    router = build.router(build.pool(2))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    gone = first.addresses[0]
    endpoints = tuple(
        replace(each, draining=each.http == gone) for each in router.pools["llm"].endpoints
    )
    router.set_pools({"llm": build.pool(endpoints=endpoints)}, 1.0)
    assert decide(router, build.request(sequence_id=5)).addresses == (gone,)
    restarted = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert restarted.addresses != (gone,)
    assert decide(router, build.request(sequence_id=5)).addresses == restarted.addresses


def test_a_second_start_stays_where_the_state_is(build: Build) -> None:
    """A duplicate start keeps the replica if that takes new work."""
    router = build.router(build.pool(8))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    again = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert again.addresses == first.addresses[:1]


def test_a_sequence_keeps_its_variant(build: Build) -> None:
    """The lease overrides a new draw of Envoy's route."""
    router = build.canaried()
    decide(router, build.request(sequence_id=5, variant="canary"))
    decision = decide(router, build.request(sequence_id=5, variant="stable"))
    assert (decision.variant, decision.addresses) == ("canary", ("10.0.0.1:8000",))


def test_a_sequence_without_its_replica_is_routed_as_usual(build: Build) -> None:
    """When the endpoint is removed the lease is dropped and the request is routed afresh."""
    pool, other = build.pool(2), build.pool(2, name="other", models=frozenset())
    router = build.router(pool, other)
    first = decide(router, build.request(sequence_id=5))
    left = tuple(each for each in pool.endpoints if each.http != first.addresses[0])
    router.set_pools({"llm": build.pool(endpoints=left), "other": other}, 1.0)
    assert decide(router, build.request(sequence_id=5)).addresses == (left[0].http,)
    router.set_pools({"llm": build.pool(endpoints=(build.endpoint(9),))}, 1.0)
    assert len(router.leases) == 0


def test_a_sequence_is_refused_rather_than_torn_from_its_state(build: Build) -> None:
    """A sequence is refused if its replica is full, excluded, or lacks the protocol."""
    endpoints = (build.endpoint(0, grpc=None),)
    router = build.router(build.pool(endpoints=endpoints, per_endpoint_in_flight=1))
    decide(router, build.request(sequence_id=5))
    endpoints += (build.endpoint(1),)
    router.set_pools({"llm": build.pool(endpoints=endpoints, per_endpoint_in_flight=1)}, 0.0)
    assert refuse(router, build.request(sequence_id=5)).kind is RefusalKind.SATURATED
    outside = build.request(sequence_id=5, subset=frozenset({"10.0.0.1"}))
    assert refuse(router, outside).kind is RefusalKind.NO_ENDPOINTS
    grpc = build.request(sequence_id=5, protocol="grpc")
    assert refuse(router, grpc).kind is RefusalKind.NO_ENDPOINTS
