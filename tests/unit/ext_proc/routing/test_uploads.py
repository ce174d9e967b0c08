"""Uploads under way, by client."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.uploads import Uploads


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 4))
def test_each_client_has_its_own_bound_and_leaves_no_trace(steps, most):
    """The count is that of a plain counter, whose entries are the clients with uploads."""
    uploads, expected = Uploads(), Counter()
    for client, begins in steps:
        if begins:
            assert uploads.begin(client, most) == (expected[client] < most)
            expected[client] = min(most, expected[client] + 1)
        elif expected[client]:
            uploads.end(client)
            expected[client] -= 1
        assert len(uploads) == len(+expected)
