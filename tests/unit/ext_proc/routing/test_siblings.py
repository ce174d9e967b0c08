"""What siblings did counts here, once, and is told to nobody."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.leases import Lease, Leased, LeaseKey, Released
from ext_proc.routing.ledger import Charged, Settled
from ext_proc.routing.prefix_index import Inserted
from ext_proc.routing.siblings import Siblings
from ext_proc.routing.types import EndpointKey, Outcome, SequenceKey, Ticket
from support.crew import POOL, decide, key, loads, pool, router

NEVER = "r9"


def ticket(number: int, replica: int = 0, work: float = 10.0) -> Ticket:
    return Ticket(number, key(replica), POOL, work, 0.0, True, 0.0, 0)


def test_two_routers_that_hear_all_hold_the_same_loads():
    """After each event both know what is in flight on whom, and each reports only its own."""
    heard = [[], []]
    both = [router(on_event=heard[0].append), router(on_event=heard[1].append)]
    open_tickets = []
    chance = random.Random(1)
    for step in range(200):
        who = chance.randrange(2)
        if open_tickets and chance.random() < 0.5:
            owner, one = open_tickets.pop(chance.randrange(len(open_tickets)))
            both[owner].settle(one, Outcome.DONE, step / 10)
        else:
            made = decide(both[who], step / 10, (step % 7, 100 + step % 7))
            open_tickets.append((who, made.ticket))
        for me, other in ((0, 1), (1, 0)):
            for event in heard[other]:
                both[me].siblings.follow(other, event, step / 10)
            heard[other].clear()
        in_flight = [{name: count for name, (count, _) in loads(one).items()} for one in both]
        assert in_flight[0] == in_flight[1]
        assert sum(in_flight[0].values()) == len(open_tickets)
        ours = [sum(one.in_flight().values()) for one in both]
        assert ours == [sum(owner == me for owner, _ in open_tickets) for me in (0, 1)]
        assert both[0].index.blocks == both[1].index.blocks
    for owner, one in open_tickets:
        both[owner].settle(one, Outcome.DONE, 30.0)


def test_a_siblings_deeds_are_no_events():
    """Whoever follows says nothing, or events would go round for ever."""
    events = []
    made = router(on_event=events.append)
    made.siblings.follow(1, Charged(ticket(1)), 0.0)
    made.siblings.follow(1, Inserted(key(0), (1, 2), 0.0), 0.0)
    made.siblings.follow(1, Settled(1, Outcome.DONE), 1.0)
    assert events == []


def test_prices_see_what_siblings_sent():
    """A replica that a sibling has loaded is not chosen."""
    made = router(2, more={"policy": "least-in-flight"})
    for number in range(5):
        made.siblings.follow(1, Charged(ticket(number, 0)), 0.0)
    assert decide(made, 0.0).addresses[0] == "10.0.0.1:8000"


def test_limits_hold_for_all_workers_together():
    """A replica's limit of requests in flight counts those of siblings."""
    made = router(2, more={"per_endpoint_in_flight": 1})
    made.siblings.follow(1, Charged(ticket(1, 1)), 0.0)
    assert decide(made, 0.0).addresses[0] == "10.0.0.0:8000"


def test_a_lost_sibling_takes_its_charges_with_it():
    """Its tickets end at once; those of others and our own stay."""
    made = router()
    ours = decide(made, 0.0)
    for number in range(4):
        made.siblings.follow(1, Charged(ticket(number, number % 3)), 0.0)
        made.siblings.follow(2, Charged(ticket(number, number % 3)), 0.0)
    assert made.siblings.lost(1) == 4
    assert made.siblings.open_by() == {2: 4}
    assert sum(count for count, _ in loads(made).values()) == 5
    assert made.siblings.lost(2) == 4
    made.settle(ours.ticket, Outcome.DONE, 1.0)
    assert set(loads(made).values()) == {(0, 0.0)}


def test_a_late_settle_of_a_lost_sibling_changes_nothing():
    """What was ended by the loss does not end twice."""
    made = router()
    made.siblings.follow(1, Charged(ticket(1)), 0.0)
    made.siblings.lost(1)
    made.siblings.follow(1, Settled(1, Outcome.DONE), 1.0)
    assert loads(made)["r0"] == (0, 0.0)


def test_an_endpoint_that_left_is_not_counted():
    """Charges on it end with it, and later ones are not taken."""
    made = router(2)
    made.siblings.follow(1, Charged(ticket(1, 1)), 0.0)
    made.set_pools({POOL: pool(1)}, 1.0)
    made.siblings.follow(1, Charged(ticket(2, 1)), 1.0)
    made.siblings.follow(1, Settled(1, Outcome.DONE), 1.0)
    assert len(made.siblings) == 0
    assert loads(made) == {"r0": (0, 0.0)}


def test_events_about_strangers_change_nothing():
    """An endpoint that is no member here gets no load, no blocks and no lease."""
    made = router()
    stranger = EndpointKey(NEVER, 1)
    made.siblings.follow(1, Charged(ticket(1)._replace(endpoint=stranger)), 0.0)
    made.siblings.follow(1, Inserted(stranger, (1, 2), 0.0), 0.0)
    lease = Leased(LeaseKey(POOL, SequenceKey("m", "", 1)), Lease(stranger, "stable", 9.0))
    made.siblings.follow(1, lease, 0.0)
    assert NEVER not in loads(made)
    assert made.index.blocks == 0
    assert len(made.leases) == 0


def test_open_tickets_are_bounded():
    """A charge beyond the bound is not counted, nor is its settle."""
    made = router()
    few = Siblings(
        made.ledger,
        made.index,
        made.leases,
        made.conditions,
        made._replicas,
        made._per_token,
        made._teach,
        max_tickets=2,
    )
    for number in range(3):
        few.follow(1, Charged(ticket(number)), 0.0)
    assert (len(few), loads(made)["r0"][0]) == (2, 2)
    for number in range(3):
        few.follow(1, Settled(number, Outcome.DONE), 1.0)
    assert (len(few), loads(made)["r0"]) == (0, (0, 0.0))


def test_a_sequence_goes_on_where_a_sibling_began_it():
    """A lease that a sibling granted binds here, and what it released binds no more."""
    made = router(8)
    where = LeaseKey(POOL, SequenceKey("m", "", 7))
    made.siblings.follow(1, Leased(where, Lease(key(5), "stable", 60.0)), 0.0)
    assert decide(made, 1.0, sequence_id=7).addresses == ("10.0.0.5:8000",)
    made.siblings.follow(1, Released(where), 2.0)
    assert len(made.leases) == 0


def test_an_older_lease_does_not_shorten_a_newer_one():
    """What comes late, as in a snapshot, gives way to what is known already."""
    made = router()
    where = LeaseKey(POOL, SequenceKey("m", "", 7))
    made.siblings.follow(1, Leased(where, Lease(key(1), "stable", 60.0)), 0.0)
    made.siblings.follow(2, Leased(where, Lease(key(2), "stable", 50.0)), 0.0)
    assert made.leases.find(where, 0.0) == Lease(key(1), "stable", 60.0)


def test_leases_are_read_before_a_sequence_is_decided():
    """Whoever brings leases is called for requests of sequences only."""
    calls = []
    made = router(on_sequence=lambda: calls.append(1))
    decide(made, 0.0)
    assert calls == []
    decide(made, 0.0, sequence_id=7)
    assert calls == [1]


def test_paces_learn_from_siblings():
    """A slow replica is found although only a sibling sends to it."""
    made = router(2)
    for number in range(400):
        at, replica = number / 10, number % 2
        one = Ticket(number, key(replica), POOL, 200.0 + number % 5 * 300, at, True, 0.0, 0)
        made.siblings.follow(1, Charged(one), at)
        slow = 4.0 if replica else 1.0
        seconds = slow * (0.05 + one.work * 1e-3)
        made.siblings.follow(1, Settled(number, Outcome.DONE), at + seconds)
    slowness = [made._replicas[key(n)].paces[POOL].slowness for n in (0, 1)]
    assert slowness[1] > 1.5 * slowness[0]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["charge", "settle", "lost"]),
            st.integers(0, 5),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_loads_are_the_open_tickets(steps):
    """In any order of charges, settles and losses a load is the sum of what is open, never less."""
    made = router(3)
    model: dict[tuple[int, int], int] = {}
    for sibling, what, number, replica in steps:
        if what == "charge":
            made.siblings.follow(sibling, Charged(ticket(number, replica)), 0.0)
            model.setdefault((sibling, number), replica)
        elif what == "settle":
            made.siblings.follow(sibling, Settled(number, Outcome.ABORTED), 0.0)
            model.pop((sibling, number), None)
        else:
            made.siblings.lost(sibling)
            model = {one: where for one, where in model.items() if one[0] != sibling}
        for replica_ in range(3):
            count = sum(where == replica_ for where in model.values())
            assert loads(made)[f"r{replica_}"] == (count, pytest.approx(10.0 * count))
            assert made.in_flight()[f"r{replica_}"] == 0
        assert len(made.siblings) == len(model)
