"""consistent-hash: maps each key to one replica."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.policies.consistent_hash import ConsistentHash
from ext_proc.routing.values.request import Features, Form, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def request(**values: object) -> Request:
    blocks = values.pop("blocks", ())
    return Request("llm", None, "http", Features(Form.GENERATE, **values), blocks)  # type: ignore[arg-type]  # a short way to write features


def home(made: SchedulingContext, session: str) -> str:
    prices = ConsistentHash().prices(made.changed(request=request(session=session)))
    return made.candidates[list(prices).index(min(prices))].key.id


def without(made: SchedulingContext, index: int) -> SchedulingContext:
    """Return a context without one of its candidates."""
    lists = ("candidates", "pending", "work", "strength", "matched")
    kept = {
        name: [each for place, each in enumerate(getattr(made, name)) if place != index]
        for name in lists
    }
    return made.changed(**kept)


def test_a_change_of_membership_moves_only_its_own_keys(
    context: Callable[..., SchedulingContext],
) -> None:
    """A removed replica gives up its keys, and no other key moves, which is the minimum."""
    made = context(6)
    fewer = without(made, 2)
    sessions = [f"s{number}" for number in range(600)]
    moved = 0
    for session in sessions:
        before, after = home(made, session), home(fewer, session)
        if before == "r2":
            moved += 1
        else:
            assert before == after
    assert moved == pytest.approx(100, abs=35)


def test_each_replica_has_its_share_of_keys(context: Callable[..., SchedulingContext]) -> None:
    """A replica of twice the strength has twice the keys."""
    made = context(3, strength=[1.0, 1.0, 2.0])
    homes = Counter(home(made, f"s{number}") for number in range(2000))
    assert homes["r2"] / 2000 == pytest.approx(0.5, abs=0.05)
    assert homes["r0"] / 2000 == pytest.approx(0.25, abs=0.05)


def test_a_prompt_is_hashed_by_its_first_two_blocks(
    context: Callable[..., SchedulingContext],
) -> None:
    """All turns of a conversation have one replica; the first block alone is no key."""
    policy, made = ConsistentHash(), context(8)

    def first(*blocks: int) -> int:
        prices = list(policy.prices(made.changed(request=request(blocks=blocks))))
        return prices.index(min(prices))

    assert first(1, 2) == first(1, 2, 3) == first(1, 2, 3, 4)
    assert len({first(1, number) for number in range(100)}) == 8


def test_a_short_prompt_is_hashed_whole_and_nothing_is_drawn(
    context: Callable[..., SchedulingContext],
) -> None:
    """A request without a key is placed at random, with the reason ``random``."""
    policy, made = ConsistentHash(), context(4)
    short = made.changed(request=request(prompt=b"hi"))
    assert len(set(policy.prices(short))) == 4
    assert policy.picked(short, 0) == "hash"
    assert policy.prices(made) == [0.0] * 4
    assert policy.picked(made, 0) == "random"
