"""consistent-hash-bounded: maps each key to one replica, within a bound on the load."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.consistent_hash import ConsistentHash
from ext_proc.routing.policies.consistent_hash_bounded import ConsistentHashBounded
from ext_proc.routing.values.request import Features, Form, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def keyed(session: str) -> Request:
    return Request("llm", None, "http", Features(Form.GENERATE, session=session))


LOADS = st.lists(st.tuples(st.integers(0, 30), st.floats(0.05, 8)), min_size=1, max_size=8)


@given(loads=LOADS, load_factor=st.floats(1, 3), session=st.text(max_size=5))
def test_no_replica_above_the_bound_is_chosen(
    context: Callable[..., SchedulingContext],
    loads: list[tuple[int, float]],
    load_factor: float,
    session: str,
) -> None:
    """The pick is the first replica within the bound, in the key's order."""
    pending, strength = [p for p, _ in loads], [s for _, s in loads]
    made = context(
        len(loads),
        pending=pending,
        strength=strength,
        load_factor=load_factor,
        request=keyed(session),
    )
    prices = list(ConsistentHashBounded().prices(made))
    assert prices == list(ConsistentHashBounded().prices(made))  # pickers agree
    share = load_factor * (sum(pending) + 1) / sum(strength)
    room = [p + 1 <= ceil(share * s - 1e-9) for p, s in loads]
    assert any(room)
    order = ConsistentHash().prices(made)
    first = min((index for index in range(len(loads)) if room[index]), key=order.__getitem__)
    assert prices.index(min(prices)) == first


def test_it_says_whether_the_key_s_own_replica_serves(
    context: Callable[..., SchedulingContext],
) -> None:
    """The labels are ``hash`` and ``spill``, and ``least`` without a key."""
    policy, made = ConsistentHashBounded(), context(3, request=keyed("a"))
    prices = list(policy.prices(made))
    own = prices.index(min(prices))
    assert policy.picked(made, own) == "hash"
    assert policy.picked(made, (own + 1) % 3) == "spill"
    anonymous = context(2, pending=[1, 0])
    prices = list(policy.prices(anonymous))
    assert prices.index(min(prices)) == 1
    assert policy.picked(anonymous, 1) == "least"
