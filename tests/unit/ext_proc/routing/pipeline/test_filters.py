"""Filters: subset hint, in-flight limit, and the resulting refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.pipeline.filters import below_slots, eligible, with_holders
from ext_proc.routing.state.candidates import Candidate, Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.routing.values.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence


def candidate(address: str, in_flight: int = 0) -> Candidate:
    load = Load()
    load.in_flight = in_flight
    key = EndpointKey(address, 1)
    return Candidate(
        Endpoint(key, "stable", address, None),
        address,
        Replica(key, load),
        0,
        LatencyModel(FleetLatencyModel(), 1.0),
    )


SEATS = [candidate(f"10.0.0.{host}:{port}") for host in (1, 2) for port in (8080, 9090)]


def chosen(subset: frozenset[str] | None, candidates: Sequence[Candidate] = SEATS) -> list[str]:
    found = eligible(candidates, subset=subset, limit=0, where="llm/stable")
    return [] if isinstance(found, Refusal) else [each.address for each in found]


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (None, ["10.0.0.1:8080", "10.0.0.1:9090", "10.0.0.2:8080", "10.0.0.2:9090"]),
        ({"10.0.0.1:8080"}, ["10.0.0.1:8080"]),
        ({"10.0.0.1"}, ["10.0.0.1:8080", "10.0.0.1:9090"]),
        ({"10.0.0.1:8080", "10.0.0.2"}, ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.2:9090"]),
        ({"10.0.0.1:3000"}, []),
        ({"192.168.1.1:8080"}, []),
        (set(), []),
    ],
)
def test_the_subset_hint_limits_the_choice(subset: set[str] | None, expected: list[str]) -> None:
    """``ip:port`` allows one address, a bare IP all its ports, an empty hint none."""
    assert chosen(None if subset is None else frozenset(subset)) == expected


@pytest.mark.parametrize("entry", ["[::1]:8080", "::1", "[::1]"])
def test_ipv6_entries_match_with_and_without_brackets(entry: str) -> None:
    """A bare IPv6 address may have brackets or not."""
    assert chosen(frozenset({entry}), [candidate("[::1]:8080")]) == ["[::1]:8080"]


def test_the_limit_keeps_full_replicas_out() -> None:
    """A replica at its in-flight limit is no candidate; 0 is no limit."""
    candidates = [candidate("10.0.0.1:1", 2), candidate("10.0.0.2:1", 1)]
    assert eligible(candidates, subset=None, limit=2, where="x") == candidates[1:]
    assert eligible(candidates, subset=None, limit=0, where="x") == candidates


@pytest.mark.parametrize(
    ("candidates", "subset", "kind"),
    [
        ([], None, RefusalKind.NO_ENDPOINTS),
        ([candidate("10.0.0.1:1", 5)], frozenset({"10.0.0.9"}), RefusalKind.NO_ENDPOINTS),
        ([candidate("10.0.0.1:1", 5)], None, RefusalKind.SATURATED),
    ],
)
def test_a_refusal_distinguishes_full_from_absent(
    candidates: list[Candidate], subset: frozenset[str] | None, kind: RefusalKind
) -> None:
    """SATURATED is used only if a retry may succeed; the message names pool and variant."""
    refused = eligible(candidates, subset=subset, limit=5, where="llm/stable")
    assert isinstance(refused, Refusal)
    assert refused.kind is kind
    assert "llm/stable" in refused.message


def limited(name: str, in_flight: int, most: int = 2) -> Candidate:
    """Return a candidate with a limit of its own."""
    made = candidate(name)
    made.load.limited, made.replica.most = in_flight, most
    return made


@pytest.mark.parametrize(
    ("in_flight", "matched", "holders", "kept"),
    [
        ((2, 1), (5, 0), True, [0, 1]),  # the holder may exceed its limit
        ((2, 1), (5, 0), False, [1]),  # not while the second band waits
        ((4, 1), (5, 0), True, [1]),  # nor twice its limit
        ((2, 1), (5, 5), True, [1]),  # nor where one with room holds as much
        ((2, 2), (5, 0), True, []),  # nor where none has room: then the request waits
        ((1, 1), (5, 0), True, [0, 1]),
    ],
)
def test_a_holder_may_exceed_its_limit_beside_one_with_room(
    in_flight: tuple[int, int], matched: tuple[int, int], holders: bool, kept: list[int]
) -> None:
    """The price decides: to wait in the engine may cost less than to compute the prompt again."""
    both = [limited(f"10.0.0.{at}:1", count) for at, count in enumerate(in_flight)]
    free = below_slots(both, "m")
    found, depths = with_holders(both, matched, free, "m", holders=holders)
    assert found == [both[at] for at in kept]
    assert depths == [matched[at] for at in kept]
