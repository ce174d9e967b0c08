"""Requests that replicas have whole and have not begun to answer."""

from __future__ import annotations

from ext_proc.routing.health.standing import FORGOTTEN_S, MAX_REQUESTS, StandingRequests, Stands
from ext_proc.routing.values.pool import EndpointKey

A, B = EndpointKey("a", 1), EndpointKey("b", 1)


def test_a_request_stands_until_it_ends_or_is_told_of_no_more():
    """By replica, each from when its client had sent it."""
    standing = StandingRequests()
    standing.note(1, A, 7, 3.0, 10.0)
    standing.note(2, A, 8, 4.0, 10.0)
    standing.note(3, B, 7, 5.0, 10.0)
    standing.ended(2)
    standing.ended(None)
    assert standing.by_replica(10.0) == {A: [Stands(A, 7, 3.0, 10.0)], B: [Stands(B, 7, 5.0, 10.0)]}
    standing.note(1, B, 7, 3.0, 12.0)
    assert standing.by_replica(10.0 + FORGOTTEN_S + 0.1) == {B: [Stands(B, 7, 3.0, 12.0)]}
    assert len(standing) == 1


def test_standing_requests_are_bounded():
    """Beyond the bound none is added, and those that are known go on."""
    standing = StandingRequests()
    for number in range(MAX_REQUESTS + 10):
        standing.note(number, A, 7, 0.0, 1.0)
    assert len(standing) == MAX_REQUESTS
    standing.note(0, B, 7, 0.0, 2.0)
    assert B in standing.by_replica(2.0)
