"""Events of peer workers are applied once and are not forwarded."""

from __future__ import annotations

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Outcome, Ticket
from ext_proc.workers.account import Account
from support.crew import POOL, decide, key, loads, pool, router

NEVER = "r9"


def share(replica: int = 0, in_flight: int = 1, charges: int | None = None) -> Share:
    """Return a share of requests of 10 tokens each."""
    made = in_flight if charges is None else charges
    return Share(POOL, key(replica), in_flight, 10.0 * in_flight, made, 10.0 * made)


def test_two_routers_that_exchange_events_hold_the_same_loads():
    """After each event both have the same loads, and each reports only its own requests."""
    accounts, sent = [Account(), Account()], [[], []]

    def publish(worker: int, event) -> None:
        sent[worker] += accounts[worker].take(event, 0.0)

    both = [router(on_event=partial(publish, worker)) for worker in (0, 1)]
    open_tickets = []
    rng = random.Random(1)
    for step in range(200):
        worker = rng.randrange(2)
        if open_tickets and rng.random() < 0.5:
            owner, one = open_tickets.pop(rng.randrange(len(open_tickets)))
            both[owner].settle(one, Outcome.DONE, step / 10)
        else:
            made = decide(both[worker], step / 10, (step % 7, 100 + step % 7))
            open_tickets.append((worker, made.ticket))
        for me, other in ((0, 1), (1, 0)):
            for event in (*sent[other], *accounts[other].sums()):
                both[me].peers.follow(other, event, step / 10)
            sent[other].clear()
        in_flight = [{name: count for name, (count, _) in loads(one).items()} for one in both]
        assert in_flight[0] == in_flight[1]
        assert sum(in_flight[0].values()) == len(open_tickets)
        ours = [sum(one.registry.in_flight().values()) for one in both]
        assert ours == [sum(owner == me for owner, _ in open_tickets) for me in (0, 1)]
        assert both[0].index.blocks == both[1].index.blocks
    for owner, one in open_tickets:
        both[owner].settle(one, Outcome.DONE, 30.0)


def test_applying_a_peer_s_event_raises_no_event():
    """Applied events raise no events, or they would circulate for ever."""
    events = []
    made = router(on_event=events.append)
    made.peers.follow(1, share(), 0.0)
    made.peers.follow(1, Inserted(key(0), (1, 2), 0.0), 0.0)
    made.peers.follow(1, share(in_flight=0, charges=1), 1.0)
    assert events == []


def test_prices_include_the_requests_of_peers():
    """A replica that a peer worker has loaded is not chosen."""
    made = router(2, more={"policy": "least-in-flight"})
    made.peers.follow(1, share(in_flight=5), 0.0)
    assert decide(made, 0.0).addresses[0] == "10.0.0.1:8000"


def test_limits_hold_for_all_workers_together():
    """A replica's limit of requests in flight counts those of peer workers."""
    made = router(2, more={"per_endpoint_in_flight": 1})
    made.peers.follow(1, share(1), 0.0)
    assert decide(made, 0.0).addresses[0] == "10.0.0.0:8000"


def test_a_lost_peer_s_charges_are_dropped():
    """Its requests in flight are dropped at once; other peers' and our own stay."""
    made = router()
    ours = decide(made, 0.0)
    for peer_worker in (1, 2):
        for replica, in_flight in enumerate((2, 1, 1)):
            made.peers.follow(peer_worker, share(replica, in_flight), 0.0)
    assert made.peers.lost(1) == 4
    assert made.peers.open_by() == {2: 4}
    assert sum(count for count, _ in loads(made).values()) == 5
    assert made.peers.lost(2) == 4
    assert made.peers.lost(2) == 0
    made.settle(ours.ticket, Outcome.DONE, 1.0)
    assert set(loads(made).values()) == {(0, 0.0)}


def test_the_clock_moves_by_what_was_sent_since():
    """A replica's prefill backlog counts each prompt of the peer workers once."""
    made = router()
    replica = made._members[key(0)]
    per_token = made.learner.seconds_per_token(POOL, key(0))
    before = [Share(POOL, key(0), 2, 2e4, 100, 1e9), Share(POOL, key(0), 2, 2e4, 100, 1e9)]
    for each in before:  # a first share counts only what is in flight
        made.peers.follow(1, each, 5.0)
        assert replica.busy_until == pytest.approx(5.0 + 2e4 * per_token)
        assert replica.prefilled == 2e4
    made.peers.follow(1, Share(POOL, key(0), 3, 3e4, 101, 1e9 + 1e4), 5.0)
    assert replica.busy_until == pytest.approx(5.0 + 3e4 * per_token)
    assert replica.prefilled == 3e4


def test_an_endpoint_that_left_is_not_counted():
    """Its charges are dropped with it, and later ones are ignored."""
    made = router(2)
    made.peers.follow(1, share(1), 0.0)
    made.set_pools({POOL: pool(1)}, 1.0)
    made.peers.follow(1, share(1, 2), 1.0)
    assert len(made.peers) == 0
    assert made.peers.lost(1) == 0
    assert loads(made) == {"r0": (0, 0.0)}


def test_events_about_unknown_endpoints_change_nothing():
    """An endpoint that is not registered here gets no load, no blocks and no lease."""
    made = router()
    unknown = EndpointKey(NEVER, 1)
    made.peers.follow(1, share()._replace(endpoint=unknown), 0.0)
    late = Ticket(1, unknown, POOL, 10.0, 0.0, True, 0.0, 0)
    made.peers.follow(1, LatencySample(late, 1.0), 1.0)
    made.peers.follow(1, Inserted(unknown, (1, 2), 0.0), 0.0)
    lease = Leased(LeaseKey(POOL, SequenceKey("m", "", 1)), Lease(unknown, "stable", 9.0))
    made.peers.follow(1, lease, 0.0)
    assert NEVER not in loads(made)
    assert made.index.blocks == 0
    assert len(made.leases) == 0


def test_a_sequence_continues_where_a_peer_began_it():
    """A lease that a peer worker granted is followed here until the peer releases it."""
    made = router(8)
    where = LeaseKey(POOL, SequenceKey("m", "", 7))
    made.peers.follow(1, Leased(where, Lease(key(5), "stable", 60.0)), 0.0)
    assert decide(made, 1.0, sequence_id=7).addresses == ("10.0.0.5:8000",)
    made.peers.follow(1, Released(where), 2.0)
    assert len(made.leases) == 0


def test_an_older_lease_does_not_shorten_a_newer_one():
    """A late event, e.g. from a snapshot, does not replace a lease that expires later."""
    made = router()
    where = LeaseKey(POOL, SequenceKey("m", "", 7))
    made.peers.follow(1, Leased(where, Lease(key(1), "stable", 60.0)), 0.0)
    made.peers.follow(2, Leased(where, Lease(key(2), "stable", 50.0)), 0.0)
    assert made.leases.find(where, 0.0) == Lease(key(1), "stable", 60.0)


def test_leases_are_read_before_a_sequence_is_decided():
    """``on_sequence`` is called for requests of sequences only."""
    calls = []
    made = router(on_sequence=lambda: calls.append(1))
    decide(made, 0.0)
    assert calls == []
    decide(made, 0.0, sequence_id=7)
    assert calls == [1]


def test_latency_models_learn_from_peers():
    """A slow replica is detected although only a peer worker sends to it."""
    made = router(2)
    for number in range(400):
        at, replica = number / 10, number % 2
        one = Ticket(number, key(replica), POOL, 200.0 + number % 5 * 300, at, True, 0.0, 0)
        slow = 4.0 if replica else 1.0
        seconds = slow * (0.05 + one.work * 1e-3)
        made.peers.follow(1, LatencySample(one, at + seconds), at + seconds)
    slowness = [made._members[key(n)].latency_models[POOL].slowness for n in (0, 1)]
    assert slowness[1] > 1.5 * slowness[0]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 5), st.integers(0, 2)),
        max_size=60,
    )
)
def test_loads_are_the_sum_of_the_peers_last_shares(steps):
    """In any order of shares and losses a load is the sum of the last shares."""
    made = router(3)
    model: dict[tuple[int, int], int] = {}
    for peer_worker, is_lost, in_flight, replica in steps:
        if is_lost:
            made.peers.lost(peer_worker)
            model = {one: count for one, count in model.items() if one[0] != peer_worker}
        else:
            made.peers.follow(peer_worker, share(replica, in_flight), 0.0)
            model[peer_worker, replica] = in_flight
        for each in range(3):
            count = sum(count for (_, where), count in model.items() if where == each)
            assert loads(made)[f"r{each}"] == (count, pytest.approx(10.0 * count))
            assert made.registry.in_flight()[f"r{each}"] == 0
        assert len(made.peers) == sum(model.values())
