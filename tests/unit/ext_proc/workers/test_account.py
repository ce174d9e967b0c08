"""Peer workers receive sums of requests, from which the in-flight load follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted, Purged
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import LeaseKey, Released
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Settled
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Outcome, Ticket
from ext_proc.workers.account import ALL_SAMPLES, THEN_EVERY, Account
from support.crew import POOL, key, loads, router


def ticket(number: int, replica: int = 0, work: float = 10.0, **more) -> Ticket:
    return Ticket(
        number, key(replica), POOL, work, 0.0, **{"prompted": True, "drain_s": 0.0, **more}
    )


def test_a_batch_has_one_share_for_each_replica():
    """However many requests came and went, a replica has one share per batch, its current load."""
    account = Account()
    for number in range(5):
        assert account.take(Charged(ticket(number)), 1.0) == ()
    account.take(Charged(ticket(9, 1, prompted=False)), 1.0)
    account.take(Settled(0, Outcome.ABORTED), 2.0)
    assert account.sums() == [
        Share(POOL, key(0), 4, 40.0, 5, 50.0),
        Share(POOL, key(1), 1, 10.0, 1, 0.0),
    ]
    assert account.sums() == []


def test_who_begins_to_listen_hears_what_stands():
    """Replicas without requests in flight are not named."""
    account = Account()
    account.take(Charged(ticket(1)), 1.0)
    account.take(Charged(ticket(2, 1)), 1.0)
    account.take(Settled(2, Outcome.DONE), 1.0)
    assert list(account.standing()) == [Share(POOL, key(0), 1, 10.0, 1, 10.0)]


def test_an_unknown_settle_tells_nothing():
    """A ticket that was not charged, or whose replica was removed, changes no sum."""
    account = Account()
    account.take(Charged(ticket(1)), 1.0)
    account.take(EndpointRemoved(key(0)), 1.0)
    assert account.sums() == []
    assert account.take(Settled(1, Outcome.DONE), 2.0) == ()
    assert account.sums() == []
    assert list(account.standing()) == []


def test_early_requests_teach_one_by_one_and_later_ones_each_fourth():
    """Peer workers receive enough samples to learn, and none that would change little."""
    account, samples = Account(), []
    for number in range(ALL_SAMPLES + 10 * THEN_EVERY):
        account.take(Charged(ticket(number)), 1.0)
        samples += account.take(Settled(number, Outcome.DONE), 2.0)
    assert len(samples) == ALL_SAMPLES + 10
    assert samples[0] == LatencySample(ticket(0), 2.0)


@pytest.mark.parametrize(
    ("outcome", "changes"),
    [
        (Outcome.ABORTED, {"drain_s": 0.0}),
        (Outcome.DONE, {"drain_s": None}),
        (Outcome.DONE, {"coming": 64.0}),
    ],
)
def test_what_teaches_nothing_here_is_no_sample(outcome, changes):
    """Only requests of known work that ended normally, on their first replica, are samples."""
    account = Account()
    account.take(Charged(ticket(1, **changes)), 1.0)
    assert account.take(Settled(1, outcome), 2.0) == ()


def test_good_answers_are_told_by_their_means():
    """Those of one batch are one message per replica; unknown values are in no mean."""
    account = Account()
    for first_byte_s, answer_s in ((0.1, 1.0), (None, 2.0), (0.3, 6.0)):
        judged = Judged(POOL, key(0), Effect.GOOD, first_byte_s, answer_s)
        assert account.take(judged, 1.0) == ()
    assert account.take(Judged(POOL, key(1), Effect.GOOD), 1.0) == ()
    first, second = account.sums()
    assert first == Judged(POOL, key(0), Effect.GOOD, pytest.approx(0.2), 3.0, times=3)
    assert second == Judged(POOL, key(1), Effect.GOOD)
    assert account.sums() == []


def test_a_failure_keeps_its_place_among_good_answers():
    """Consecutive failures are interrupted by earlier good answers, not by later ones."""
    account = Account()
    good, bad = (Judged(POOL, key(0), each) for each in (Effect.GOOD, Effect.AT_ONCE))
    account.take(good, 1.0)
    account.take(good, 1.0)
    assert account.take(bad, 1.0) == (good._replace(times=2), bad)
    assert account.take(bad, 1.0) == (bad,)
    account.take(good, 1.0)
    assert account.sums() == [good]


def test_what_peers_learn_by_themselves_is_not_told():
    """Blocks and leases are sent unchanged; purges and membership are not sent."""
    account = Account()
    for unchanged in (
        Inserted(key(0), (1, 2), 1.0),
        Confirmed(1),
        Withdrawn(2),
        Released(LeaseKey(POOL, SequenceKey("m", "", 7))),
    ):
        assert account.take(unchanged, 1.0) == (unchanged,)
    assert account.take(Purged(key(0)), 1.0) == ()
    assert account.take(EndpointRemoved(key(0)), 1.0) == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["charge", "settle", "tell", "lose"]),
            st.integers(0, 5),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_who_follows_the_sums_knows_what_is_in_flight(steps):
    """After each batch and each snapshot, loads equal those of the open tickets."""
    account, follower = Account(), router(3)
    model: dict[int, Ticket] = {}
    for what, number, replica in steps:
        if what == "charge" and number not in model:
            model[number] = ticket(number, replica, 0.1 + number)
            account.take(Charged(model[number]), 1.0)
        elif what == "settle" and model.pop(number, None) is not None:
            account.take(Settled(number, Outcome.DONE), 2.0)
        elif what == "lose":
            follower.peers.lost(1)
            assert set(loads(follower).values()) == {(0, 0.0)}
            account.sums()
            for share in account.standing():
                follower.peers.follow(1, share, 3.0)
        for share in account.sums():
            follower.peers.follow(1, share, 3.0)
        for each in range(3):
            open_ = [one.work for one in model.values() if one.endpoint == key(each)]
            assert loads(follower)[f"r{each}"] == (len(open_), pytest.approx(sum(open_)))
        assert len(follower.peers) == len(model)
        assert not any(follower.registry.in_flight().values())
