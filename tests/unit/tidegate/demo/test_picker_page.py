"""Parsing of the picker's pages."""

from __future__ import annotations

from typing import Any

from tidegate.demo.counters import Seen, read_picks, read_replicas


def endpoint(draining: bool = False, **reading: Any) -> dict[str, Any]:
    """Return an endpoint as in ``/debug/state``."""
    readings = [{"queued": None, "kv_used": None, **reading}] if reading else []
    return {"in_flight": 2, "draining": draining, "readings": readings}


def test_picks_are_summed() -> None:
    """All pools, variants and reasons count; other series do not."""
    page = (
        "# TYPE tidegate_picker_picks_total counter\n"
        'tidegate_picker_picks_total{pool="llm",reason="prefix",variant="stable"} 3.0\n'
        'tidegate_picker_picks_total{pool="vision",reason="least",variant="stable"} 4.0\n'
        'tidegate_picker_picks_created{pool="llm",reason="prefix",variant="stable"} 1.7e9\n'
    )
    assert read_picks(page) == 7
    assert read_picks("") == 0


def test_replicas_are_read_from_any_pool() -> None:
    """A replica in several pools has one entry."""
    pools = {
        "llm": {"endpoints": {"r1": endpoint(queued=3.0, kv_used=0.5)}},
        "vision": {"endpoints": {"r1": endpoint(queued=3.0, kv_used=0.5), "r2": endpoint()}},
    }
    assert read_replicas({"router": {"pools": pools}}) == {
        "r1": Seen(in_flight=2, queued=3.0, cache=0.5, draining=False),
        "r2": Seen(in_flight=2, queued=None, cache=None, draining=False),
    }


def test_a_drain_in_one_pool_is_a_drain() -> None:
    """A replica is draining if it drains in any pool, in any order of pools."""
    pools = {
        "a": {"endpoints": {"r1": endpoint(draining=True)}},
        "b": {"endpoints": {"r1": endpoint()}},
    }
    assert read_replicas({"router": {"pools": pools}})["r1"].draining
