"""Leases: idle time, bound, endpoint loss."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.leases import Lease, LeaseKey, Leases
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import SequenceKey

A, B = EndpointKey("a", 1), EndpointKey("b", 1)


def key(number: int | str, pool: str = "llm") -> LeaseKey:
    return LeaseKey(pool, SequenceKey("m", "", number))


def test_a_lease_is_found_until_it_expires() -> None:
    """From its expiry on, a lease is not returned."""
    leases = Leases()
    leases.keep(key(1), Lease(A, "stable", 10.0), 0.0)
    assert leases.find(key(1), 9.9) == Lease(A, "stable", 10.0)
    assert leases.find(key(1), 10.0) is None
    assert len(leases) == 0


def test_types_of_ids_and_pools_are_kept_apart() -> None:
    """The integer 1, the string "1" and the 1 of another pool are three sequences."""
    leases = Leases()
    leases.keep(key(1), Lease(A, "stable", 10.0), 0.0)
    assert leases.find(key("1"), 0.0) is None
    assert leases.find(key(1, "other"), 0.0) is None


def test_the_number_of_leases_is_bounded() -> None:
    """Beyond the bound the least recently used lease is evicted and counted."""
    leases = Leases(max_leases=2)
    for number in (1, 2):
        leases.keep(key(number), Lease(A, "stable", 10.0), 0.0)
    leases.keep(key(1), Lease(A, "stable", 11.0), 1.0)
    leases.keep(key(3), Lease(A, "stable", 12.0), 2.0)
    assert leases.find(key(2), 2.0) is None
    assert leases.find(key(1), 2.0) is not None
    assert (len(leases), leases.evicted) == (2, 1)
    assert repr(leases) == "<Leases 2/2>"


def test_expired_leases_leave_as_new_ones_come() -> None:
    """Expired leases of abandoned sequences are freed."""
    leases = Leases()
    for number in range(4):
        leases.keep(key(number), Lease(A, "stable", 1.0), 0.0)
    leases.keep(key("x"), Lease(A, "stable", 20.0), 10.0)
    leases.keep(key("y"), Lease(A, "stable", 20.0), 10.0)
    assert (len(leases), leases.evicted) == (2, 0)


def test_a_lease_that_is_over_when_kept_leaves_nothing() -> None:
    """An idle time of 0 keeps no lease."""
    leases = Leases()
    leases.keep(key(1), Lease(A, "stable", 5.0), 5.0)
    assert len(leases) == 0


def test_a_lease_is_released_once() -> None:
    """Releasing returns whether there was a lease."""
    leases = Leases()
    leases.keep(key(1), Lease(A, "stable", 10.0), 0.0)
    assert leases.release(key(1))
    assert not leases.release(key(1))


def test_an_endpoint_takes_its_leases_with_it() -> None:
    """Dropping an endpoint ends its leases and no others."""
    leases = Leases()
    leases.keep(key(1), Lease(A, "stable", 10.0), 0.0)
    leases.keep(key(2), Lease(B, "stable", 10.0), 0.0)
    assert leases.drop_endpoint(A) == 1
    assert leases.find(key(2), 0.0) is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "find", "release", "drop", "count"]),
        st.integers(1, 6),
        st.sampled_from([A, B]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_counts_are_those_of_the_leases(
    steps: list[tuple[str, int, EndpointKey, int]],
) -> None:
    """Whatever ends a lease: release, expiry, the bound, or the loss of its endpoint."""
    leases, now = Leases(max_leases=4), 0.0
    for what, number, endpoint, passed in steps:
        now += passed
        if what == "keep":
            leases.keep(key(number), Lease(endpoint, "stable", now + 5), now)
        elif what == "find":
            leases.find(key(number), now)
        elif what == "release":
            leases.release(key(number))
        elif what == "drop":
            leases.drop_endpoint(endpoint)
        else:
            live = [e for _, e in leases.items() if e.endpoint == endpoint and e.expires > now]
            assert leases.open_on(endpoint, now) == len(live)
        counted = Counter(each.endpoint for _, each in leases.items())
        assert leases._on == dict(counted)
        assert set(leases.endpoints()) == set(counted)
