"""Prompt tokens that replicas reused from their caches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.cache.reuse import MAX_MODELS, Reuse
from ext_proc.routing.values.reading import Reading


def page(reused: float | None, model: str = "m", size: int | None = 16) -> list[Reading]:
    return [Reading(at=0.0, model=model, reused_blocks=reused, kv_block_tokens=size)]


def test_differences_count_in_tokens() -> None:
    """Differences of the counters since the first reading are summed over all models."""
    reuse = Reuse()
    for reused in (100.0, 100.0, 103.0):
        reuse.observe("r1", page(reused))
    reuse.observe("r1", page(7.0, "other") + page(104.0))
    reuse.observe("r1", page(9.0, "other"))
    assert reuse.tokens() == {"r1": (4 + 2) * 16}


def test_unknown_is_no_number() -> None:
    """A replica without the counter, or without the size of its blocks, has no number."""
    reuse = Reuse()
    reuse.observe("r1", page(None))
    reuse.observe("r2", page(5.0, size=None))
    assert reuse.tokens() == {}


def test_a_restart_begins_anew() -> None:
    """A counter that fell does not reduce the sum."""
    reuse = Reuse()
    for reused in (10.0, 20.0, 0.0, 1.0):
        reuse.observe("r1", page(reused))
    assert reuse.tokens() == {"r1": 11 * 16}


def test_it_is_bounded() -> None:
    """The models per replica are bounded, and removed replicas are dropped."""
    reuse = Reuse()
    for number in range(MAX_MODELS + 5):
        for reused in (0.0, 1.0):
            reuse.observe("r1", page(reused, f"m{number}"))
    assert reuse.tokens() == {"r1": MAX_MODELS * 16}
    reuse.keep(["r2"])
    assert reuse.tokens() == {}


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), max_size=50))
def test_it_never_falls(counters: list[float | None]) -> None:
    """The sum never falls, for any sequence of counters."""
    reuse, last = Reuse(), 0.0
    for reused in counters:
        reuse.observe("r1", page(reused))
        now = reuse.tokens().get("r1", 0.0)
        assert now >= last
        last = now
