"""Leases of starts that no replica had read follow the request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.leases import Lease, LeaseKey, Leases
from ext_proc.routing.state.starts import SequenceStarts
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import SequenceKey
from ext_proc.routing.values.ticket import Ticket

ADDRESSES = ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")
ENDPOINTS = dict(zip(ADDRESSES, (EndpointKey(f"r{n}", 1) for n in (1, 2, 3)), strict=True))
FIRST, SECOND, THIRD = ENDPOINTS.values()


class Starts:
    """Starts with their leases."""

    def __init__(self, most: int = 10) -> None:
        self.leases = Leases()
        self.starts = SequenceStarts(
            self.leases, lambda _pool, address: ENDPOINTS.get(address), self._grant, most
        )

    def _grant(self, key: LeaseKey, lease: Lease | None, now: float) -> None:
        assert lease is not None
        self.leases.keep(key, lease, now)

    def begin(self, number: int, addresses: tuple[str, ...] = ADDRESSES) -> LeaseKey:
        """Start sequence ``number`` with a ticket of that number."""
        key = LeaseKey("llm", SequenceKey("m", "", number))
        self.leases.keep(key, Lease(FIRST, "stable", 60.0), 0.0)
        self.starts.note(Ticket(number, FIRST, "llm", 1.0, 0.0), key, addresses)
        return key

    def holder(self, key: LeaseKey) -> EndpointKey | None:
        """Return the endpoint of a lease."""
        lease = self.leases.find(key, 1.0)
        return None if lease is None else lease.endpoint


def test_each_refused_connection_moves_the_lease_on() -> None:
    """Envoy walks the list in order; past its end it goes to an unknown place."""
    starts = Starts()
    key = starts.begin(1)
    for address, then in zip(ADDRESSES, (SECOND, THIRD, THIRD), strict=True):
        starts.starts.unreached(1, address, 1.0)
        assert starts.holder(key) == then


def test_the_replica_that_served_is_the_last_word() -> None:
    """The log's final entry corrects what refused connections made likely."""
    starts = Starts()
    key = starts.begin(1)
    starts.starts.unreached(1, ADDRESSES[0], 1.0)
    starts.starts.served(1, THIRD, 1.0)
    assert starts.holder(key) == THIRD


@pytest.mark.parametrize("granted", [None, SECOND])
def test_a_lease_of_a_later_decision_stays(granted: EndpointKey | None) -> None:
    """A lease that ended or was granted anew meanwhile is not this start's any more."""
    starts = Starts()
    key = starts.begin(1)
    starts.leases.release(key)
    if granted is not None:
        starts.leases.keep(key, Lease(granted, "stable", 60.0), 0.5)
    starts.starts.served(1, THIRD, 1.0)
    assert starts.holder(key) == granted
    assert len(starts.starts) == 0


def test_a_start_with_one_address_is_followed_beyond_it() -> None:
    """The proxy goes on with replicas that are not in the list."""
    starts = Starts()
    key = starts.begin(1, ADDRESSES[:1])
    starts.starts.unreached(1, ADDRESSES[0], 1.0)
    assert starts.holder(key) == FIRST
    starts.starts.served(1, SECOND, 1.0)
    assert starts.holder(key) == SECOND


def test_a_start_without_a_ticket_is_not_kept() -> None:
    """Nothing is heard of it."""
    starts = Starts()
    starts.starts.note(None, LeaseKey("llm", SequenceKey("m", "", 2)), ADDRESSES)
    assert len(starts.starts) == 0


def test_the_oldest_starts_are_dropped_at_the_bound() -> None:
    """Their leases stay where they are."""
    starts = Starts(most=2)
    keys = [starts.begin(number) for number in (1, 2, 3)]
    assert len(starts.starts) == 2
    for number in (1, 2, 3):
        starts.starts.served(number, SECOND, 1.0)
    assert [starts.holder(key) for key in keys] == [FIRST, SECOND, SECOND]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["begin", "unreached", "served", "release"]),
            st.integers(1, 5),
            st.sampled_from([*ADDRESSES, "10.9.9.9:1"]),
        ),
        max_size=40,
    )
)
def test_any_order_of_reports_keeps_leases_on_the_list(steps: list[tuple[str, int, str]]) -> None:
    """Reports may be lost, late, doubled or of unknown tickets and addresses."""
    starts = Starts(most=3)
    keys = {}
    for step, number, address in steps:
        if step == "begin":
            keys[number] = starts.begin(number)
        elif step == "unreached":
            starts.starts.unreached(number, address, 1.0)
        elif step == "served" and address in ENDPOINTS:
            starts.starts.served(number, ENDPOINTS[address], 1.0)
        elif number in keys:
            starts.leases.release(keys[number])
        assert len(starts.starts) <= 3
        assert all(starts.holder(key) in {None, *ENDPOINTS.values()} for key in keys.values())
