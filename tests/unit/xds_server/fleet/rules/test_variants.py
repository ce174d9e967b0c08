"""Rules for a pool's variants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import VariantMatch
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.rules.problem import MAX_LISTED
from xds_server.fleet.rules.variants import _hidden

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
