"""co-batch: a burst for one model goes to one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.co_batch import GROUP, MAX_GROUPS, WINDOW_S, CoBatch
from ext_proc.routing.values.pool import Pool
from ext_proc.routing.values.request import Features, Form, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def of(model: str) -> Request:
    return Request("m", None, "http", Features(Form.HTTP_INFER, model=model))


def pick(policy: CoBatch, made: SchedulingContext) -> tuple[int, str]:
    prices = list(policy.prices(made))
    index = prices.index(min(prices))
    return index, policy.picked(made, index)


def test_a_burst_shares_a_replica(context: Callable[..., SchedulingContext]) -> None:
    """Within the window the group's replica wins although it has more load."""
    policy, made = CoBatch(), context(2, pending=[0, 1], request=of("a"))
    assert pick(policy, made) == (0, "least")
    busier = made.changed(pending=[2, 1])
    assert pick(policy, busier) == (0, "batch")
    assert pick(policy, busier.changed(request=of("b"))) == (1, "least")
    assert pick(policy, busier.changed(now=2 * WINDOW_S)) == (1, "least")


def test_a_busy_replica_gets_no_more(context: Callable[..., SchedulingContext]) -> None:
    """With enough requests in flight for a batch, the load decides."""
    policy, made = CoBatch(), context(2, pending=[0, 1], request=of("a"))
    pick(policy, made)
    assert pick(policy, made.changed(pending=[8, 1])) == (1, "least")


@given(gaps=st.lists(st.floats(0, 0.0004), max_size=40))
def test_no_group_grows_beyond_its_size(
    context: Callable[..., SchedulingContext], gaps: list[float]
) -> None:
    """A group has at most four members in a burst of any rate."""
    policy, now, members = CoBatch(), 0.0, 0
    for gap in gaps:
        now += gap
        _, label = pick(policy, context(3, request=of("a"), now=now))
        members = members + 1 if label == "batch" else 1
        assert members <= GROUP


def test_groups_are_bounded(context: Callable[..., SchedulingContext]) -> None:
    """The number of groups is bounded for any number of models."""
    policy, made = CoBatch(), context(1)
    for number in range(MAX_GROUPS + 5):
        pick(policy, made.changed(request=of(f"m{number}")))
    assert len(policy._groups) <= MAX_GROUPS


def steady(
    policy: CoBatch, context: Callable[..., SchedulingContext], rate: float, seconds: float
) -> list[str]:
    """Send requests at a rate; return the labels."""
    gap = 1.0 / rate
    return [
        pick(policy, context(2, request=of("a"), now=100.0 + number * gap))[1]
        for number in range(int(seconds * rate))
    ]


@pytest.mark.parametrize(
    ("hold_s", "rate", "held"),
    [(0.0, 4000.0, False), (0.0005, 900.0, False), (0.0005, 1100.0, True)],
)
def test_a_request_is_held_if_another_member_is_likely(
    context: Callable[..., SchedulingContext], hold_s: float, rate: float, held: bool
) -> None:
    """It is held if 0.5 further requests are expected within the hold, and never by default."""
    policy = CoBatch()
    policy.configure(Pool("p", co_batch_hold_s=hold_s))
    labels = steady(policy, context, rate, 3.0)
    assert ("held" in labels[-100:]) is held
    assert "held" not in labels[:100]


def test_an_old_rate_holds_no_request(context: Callable[..., SchedulingContext]) -> None:
    """After a pause the first requests are not held."""
    policy = CoBatch()
    policy.configure(Pool("p", co_batch_hold_s=0.0005))
    assert steady(policy, context, 2000.0, 2.0)[-1] == "held"
    assert pick(policy, context(2, request=of("a"), now=110.0))[1] == "least"


@pytest.mark.parametrize(
    "changes",
    [
        {"streaming": True},
        {"form": Form.GRPC_STREAM},
        {"form": Form.GENERATE_STREAM},
        {"sequence_id": 7},
        {"priority": 1},
        {"timeout_s": 0.02},
    ],
)
def test_requests_that_must_not_wait_are_neither_held_nor_grouped(
    context: Callable[..., SchedulingContext], changes: dict[str, Any]
) -> None:
    """These are streams, sequences, and requests with a priority or too short a timeout."""
    policy = CoBatch()
    policy.configure(Pool("p", co_batch_hold_s=0.0005))
    steady(policy, context, 2000.0, 2.0)
    features = Features(**{"form": Form.HTTP_INFER, "model": "a", **changes})
    made = context(2, request=Request("m", None, "http", features), now=102.0, pending=[3, 1])
    assert pick(policy, made) == (1, "least")
