"""Rules for a pool's variants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import VariantMatch
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.rules.problem import MAX_LISTED
from xds_server.fleet.rules.variants import _hidden

STABLE = [{"name": "stable", "weight": 100}]
NAMES, VALUES = st.sampled_from("abc"), st.sampled_from("12")
MATCHES = st.builds(
    VariantMatch,
    headers=st.dictionaries(NAMES, VALUES),
    cookies=st.dictionaries(NAMES, VALUES, max_size=1),
)


def hides(earlier: VariantMatch, later: VariantMatch) -> bool:
    """Return whether ``earlier`` matches every request that ``later`` matches."""
    return (
        bool(earlier)
        and earlier.headers.items() <= later.headers.items()
        and earlier.cookies.items() <= later.cookies.items()
    )


@given(st.lists(MATCHES, max_size=12))
def test_hidden_matches_are_those_that_contain_an_earlier_one(matches) -> None:
    """The index finds what comparing every pair finds: the first match that hides each."""
    naive = [
        (next(i for i in range(later) if hides(matches[i], match)), later)
        for later, match in enumerate(matches)
        if any(hides(matches[i], match) for i in range(later))
    ]
    assert list(_hidden(matches)) == naive


def test_a_header_does_not_hide_a_cookie() -> None:
    """They are different parts of a request, even with one name and value."""
    header, cookie = VariantMatch(headers={"a": "1"}), VariantMatch(cookies={"a": "1"})
    assert not list(_hidden([header, cookie]))


def test_a_long_list_of_names_is_cut() -> None:
    """A message for each replica that lists each variant would be as long as their product."""
    variants = [{"name": f"v{i}", "weight": int(not i)} for i in range(MAX_LISTED + 3)]
    made = pool(variants=variants, endpoints=[endpoint(1), endpoint(2, variant="none")])
    (problem,) = problems(fleet(made))
    assert problem.message.endswith(f"v{MAX_LISTED - 1} and 3 more")


def test_a_variant_of_standbys_only_is_refused_with_one_sentence() -> None:
    """They come in where too few others are usable; without others nothing would ever serve."""
    standbys = [endpoint(1, standby=True), endpoint(2, standby=True)]
    (problem,) = problems(fleet(pool(variants=STABLE, endpoints=standbys)))
    assert problem.location == ("pools", 0, "variants", 0, "weight")
    assert problem.message == (
        "variant 'stable' has weight 100 but only standbys (r1, r2), which stand in for other "
        "replicas and so would never come in; add a replica without `standby: true` or set the "
        "weight to 0"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"endpoints": [endpoint(1, standby=True), endpoint(2)]},
        {"endpoints": [endpoint(1, standby=True), endpoint(2, draining=True)]},
        {
            "variants": [{"name": "a", "weight": 1}, {"name": "b", "weight": 0}],
            "endpoints": [endpoint(1, variant="a"), endpoint(2, variant="b", standby=True)],
        },
        {
            "endpoints": [endpoint(1, standby=True)],
            "endpoints_from": [{"dns": {"name": "replicas.test", "http": 8000}}],
        },
    ],
    ids=["another", "a drained one", "without a weight", "a source"],
)
def test_standbys_beside_something_else_are_sound(changed) -> None:
    """A drain ends and a source may find replicas; what has no share needs none."""
    assert not list(problems(fleet(pool(**{"variants": STABLE, **changed}))))


def test_a_second_variant_of_standbys_is_refused_by_itself() -> None:
    """Each variant serves a share of its own; the sentence names the one that could not."""
    variants = [{"name": "a", "weight": 9}, {"name": "b", "weight": 1}]
    made = pool(
        variants=variants,
        endpoints=[endpoint(1, variant="a"), endpoint(2, variant="b", standby=True)],
    )
    (problem,) = problems(fleet(made))
    assert problem.message.startswith("variant 'b' has weight 1 but only standbys (r2)")
