"""Subset hints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.exchange.known import MAX_SUBSET, both, entries_of

HOSTS = ("10.0.0.1", "10.0.0.2", "[::1]")
ENTRIES = [*HOSTS, *(f"{host}:{port}" for host in HOSTS for port in (80, 81))]


def allows(hint, address):
    return hint is None or address in hint or address.rpartition(":")[0] in hint


def test_at_most_so_many_entries():
    """A hint is bounded."""
    assert len(entries_of([",".join(f"a{number}" for number in range(MAX_SUBSET + 5))])) <= (
        MAX_SUBSET
    )


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (None, None, None),
        ({"10.0.0.1"}, None, {"10.0.0.1"}),
        ({"10.0.0.1"}, {"10.0.0.1:80"}, {"10.0.0.1:80"}),
        ({"[::1]"}, {"[::1]:80", "10.0.0.1:80"}, {"[::1]:80"}),
        ({"::1"}, {"::1"}, {"::1"}),
        ({"10.0.0.1:80"}, {"10.0.0.1:81"}, set()),
        (set(), None, set()),
    ],
)
def test_two_hints(one, other, together):
    """What both allow; an entry without a port allows each port."""
    made = [None if each is None else frozenset(each) for each in (one, other, together)]
    assert both(made[0], made[1]) == made[2]
    assert both(made[1], made[0]) == made[2]


@given(st.frozensets(st.sampled_from(ENTRIES)), st.frozensets(st.sampled_from(ENTRIES)))
def test_an_address_is_allowed_by_both_exactly_if_by_each(one, other):
    """No hint can widen another."""
    together = both(one, other)
    for host in HOSTS:
        for port in (80, 81, 82):
            address = f"{host}:{port}"
            assert allows(together, address) == (allows(one, address) and allows(other, address))
