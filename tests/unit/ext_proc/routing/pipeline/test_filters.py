"""Who may serve a request: draws of variants, subset hints, limits, and the refusals."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.latency.model import FleetLatencyModel, LatencyModel
from ext_proc.routing.pipeline.filters import (
    below_slots,
    draw_variant,
    eligible,
    session_point,
    with_holders,
)
from ext_proc.routing.state.candidates import Candidate, Replica
from ext_proc.routing.state.ledger import Load
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form

if TYPE_CHECKING:
    from collections.abc import Sequence


def pool(*variants: Variant) -> Pool:
    return Pool("llm", variants=variants)


def draw(made: Pool, **options: object) -> str | Refusal:
    names = ("version", "session")
    form = options.pop("form", Form.GENERATE)
    features = Features(form, **{n: options.pop(n) for n in names if n in options})
    given_: dict[str, object] = {"drawn": None, "rng": random.Random(1)}
    headers = options.pop("headers", {})
    return draw_variant(made, features, headers, **{**given_, **options})


STABLE = Variant("stable", 90, "1")
CANARY = Variant("canary", 10, "2", (("x-canary", "yes"),))


def test_a_version_pins() -> None:
    """The variant that declares the requested version gets the request, even at weight 0."""
    made = pool(STABLE, Variant("dark", 0, "3"))
    assert draw(made, version="3", drawn="stable") == "dark"


def test_an_unknown_version_is_refused() -> None:
    """If every variant declares a version, another version is refused by name."""
    refused = draw(pool(STABLE, CANARY), version="7")
    assert isinstance(refused, Refusal)
    assert refused.kind is RefusalKind.UNKNOWN_VERSION
    assert "'7'" in refused.message


@pytest.mark.parametrize("form", [Form.MODEL_CALL, Form.OTHER])
def test_a_question_about_an_unknown_version_is_answered_by_a_replica(form: Form) -> None:
    """`ModelReady` then says false, as without a gateway, instead of failing."""
    made = pool(STABLE, CANARY)
    assert draw(made, form=form, version="7", drawn="stable") == "stable"
    assert draw(made, form=form, version="7") in {"stable", "canary"}
    assert draw(made, form=form, version="2", drawn="stable") == "canary"


def test_a_variant_without_a_version_takes_any() -> None:
    """A variant without a version serves only versions that no other variant declares."""
    made = pool(STABLE, Variant("any", 1))
    assert draw(made, version="7") == "any"
    assert draw(made, version="1") == "stable"


def test_two_variants_of_the_requested_version_share_it() -> None:
    """Variants of one version share by weight; if all weights are 0 the first is used."""
    made = pool(Variant("a", 0, "1"), Variant("b", 5, "1"), Variant("c", 50, "2"))
    assert draw(made, version="1") == "b"
    assert draw(pool(Variant("a", 0, "1"), Variant("b", 0, "1")), version="1") == "a"


def test_headers_pin() -> None:
    """All headers of a variant must match; the pin overrides the route's draw."""
    made = pool(STABLE, CANARY)
    assert draw(made, headers={"x-canary": "yes"}, drawn="stable") == "canary"
    assert draw(made, headers={"x-canary": "no"}, drawn="stable") == "stable"
    both = Variant("both", 0, None, (("a", "1"), ("b", "2")))
    assert draw(pool(STABLE, both), headers={"a": "1"}) == "stable"


def test_a_version_overrides_a_header() -> None:
    """A header cannot select replicas that do not serve the requested version."""
    assert draw(pool(STABLE, CANARY), version="1", headers={"x-canary": "yes"}) == "stable"


def test_the_route_s_draw_is_kept() -> None:
    """Without a pin Envoy's draw is kept; a removed variant is drawn again."""
    made = pool(Variant("stable", 1), Variant("canary", 0))
    assert draw(made, drawn="canary") == "canary"
    assert draw(made, drawn="gone") == "stable"


def test_without_weights_no_variant_is_drawn() -> None:
    """A pool whose weights are all 0 refuses requests without a pin."""
    refused = draw(pool(Variant("a", 0), Variant("b", 0)))
    assert isinstance(refused, Refusal)
    assert refused.kind is RefusalKind.NO_ENDPOINTS


def test_a_session_uses_envoys_arithmetic() -> None:
    """The draw is xxHash64 of the session, modulo the total, over cumulative weights in order."""
    made = pool(Variant("a", 3), Variant("b", 0), Variant("c", 7))
    for number in range(200):
        session = f"session-{number}"
        point = xxhash.xxh64_intdigest(session.encode(), 0) % 10
        assert draw(made, session=session) == ("a" if point < 3 else "c")


def test_the_hash_is_the_published_one() -> None:
    """xxHash64 with seed 0 of "a" and of the empty string give the reference values."""
    assert session_point("a", 2**64) == 0xD24EC4F1A98C6E5B
    assert session_point("", 2**64) == 0xEF46DB3751D8E999


@pytest.mark.parametrize("session", [None, "yes"])
@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=4).filter(sum))
def test_shares_are_the_weights(session: str | None, weights: list[int]) -> None:
    """Drawn at random or by session, shares equal weights, and weight 0 is never drawn."""
    made = pool(*(Variant(f"v{n}", weight) for n, weight in enumerate(weights)))
    rng = random.Random(0)
    drawn = Counter(
        draw(made, rng=rng, session=None if session is None else f"{session}-{number}")
        for number in range(1_500)
    )
    for number, weight in enumerate(weights):
        share = drawn[f"v{number}"] / 1_500
        assert share == pytest.approx(weight / sum(weights), abs=0.06)
        assert weight or not share


def test_a_broken_rng_still_draws_a_weighted_variant() -> None:
    """An rng that violates its contract and returns 1.0 gets the last variant with weight."""

    class One:
        def random(self) -> float:
            return 1.0

    assert draw(pool(Variant("a", 1), Variant("b", 1), Variant("c", 0)), rng=One()) == "b"


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
