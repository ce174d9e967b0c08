"""Tokens that streamed answers told."""

from __future__ import annotations

import pytest

from ext_proc.feedback.entries import Entry, Usage
from ext_proc.feedback.usage import TokenCounts
from ext_proc.routing.values.pool import Pool
from support.log_entries import entry as usual

POOL = Pool("llm", models=frozenset({"toy-llm"}), usage=True)


def entry(*counts: int | None, model: str = "toy-llm", **changes) -> Entry:
    """Return the final entry of a good answer that told these counts."""
    made = usual(
        picks="",
        first_byte_s=0.4,
        first_at_s=0.5,
        last_at_s=1.5,
        usage=Usage(*counts, model),
    )
    return made._replace(**changes)


def test_counts_add_up_by_pool_model_and_kind() -> None:
    """No label names a client."""
    counts = TokenCounts()
    for _ in range(2):
        counts.take(POOL, entry(100, 64, 11))
    labels = [("llm", "toy-llm", kind) for kind in ("prompt", "cached", "output")]
    assert [counts.tokens[each] for each in labels] == [200, 128, 22]
    assert [counts.answers[each] for each in labels] == [2, 2, 2]
    assert counts.between["llm", "toy-llm"] == 20
    assert counts.seconds["llm", "toy-llm"] == pytest.approx(2.0)


def test_what_is_not_told_is_unknown() -> None:
    """It is neither 0 nor an answer that told something; engines without caches tell no hits."""
    counts = TokenCounts()
    counts.take(POOL, entry(100, None, None))
    assert dict(counts.answers) == {("llm", "toy-llm", "prompt"): 1}
    assert not counts.seconds
    counts.take(POOL, entry(100, 0, 2)._replace(usage=None))
    assert dict(counts.answers) == {("llm", "toy-llm", "prompt"): 1}


def test_a_pool_that_does_not_ask_counts_nothing() -> None:
    """Envoy reads the usage on routes that several pools share."""
    counts = TokenCounts()
    counts.take(Pool("llm", models=frozenset({"toy-llm"})), entry(1, 1, 1))
    assert not counts.tokens


def test_names_that_no_pool_lists_share_a_label() -> None:
    """Otherwise clients that name adapters could make series without bound."""
    counts = TokenCounts()
    for number in range(1000):
        counts.take(POOL, entry(1, 0, 2, model=f"invented-{number}"))
    assert {model for _, model, _ in counts.tokens} == {"other"}
    assert list(counts.seconds) == [("llm", "other")]


@pytest.mark.parametrize(
    ("output", "first_at_s", "last_at_s"),
    [(1, 0.5, 0.6), (0, 0.5, 0.6), (5, None, 0.6), (5, 0.5, None), (5, 0.7, 0.6)],
)
def test_time_per_token_takes_two_tokens_and_two_times(output, first_at_s, last_at_s) -> None:
    """Of one token there is no time between tokens."""
    counts = TokenCounts()
    counts.take(POOL, entry(1, 0, output, first_at_s=first_at_s, last_at_s=last_at_s))
    assert not counts.seconds
    assert not counts.between
