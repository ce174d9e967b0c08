"""Readings of several sources, merged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.state.candidates import FRESH_S, MAX_READINGS
from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry.board import MAX_SOURCES, Board


def board():
    made = Board()
    made.set_endpoints(["r"])
    return made


def test_the_newest_that_knows_wins_field_by_field():
    """A field that the newer source does not know is the older one's, and ages the reading."""
    made = board()
    made.put("r", "page", [Reading(1.0, "m", "1", queued=9, kv_used=0.5)], 1.0)
    (merged,) = made.put("r", "push", [Reading(2.0, "m", "1", queued=3)], 2.0)
    assert merged == Reading(1.0, "m", "1", queued=3, kv_used=0.5)
    (merged,) = made.put("r", "push", [Reading(2.5, "m", "1", queued=4, kv_used=0.6)], 2.5)
    assert merged == Reading(2.5, "m", "1", queued=4, kv_used=0.6)


def test_models_and_the_endpoint_stay_apart():
    """A reading of the GPUs is kept besides those of the models."""
    made = board()
    made.put("r", "gpu", [Reading(1.0, gpu_used=0.5)], 1.0)
    merged = made.put("r", "page", [Reading(1.1, "m", "1", queued=1)], 1.1)
    assert sorted(merged, key=lambda each: each.at) == [
        Reading(1.0, gpu_used=0.5),
        Reading(1.1, "m", "1", queued=1),
    ]


def test_a_source_that_is_too_old_adds_nothing():
    """Readings far older than the newest contribute nothing."""
    made = board()
    made.put("r", "gpu", [Reading(1.0, gpu_used=0.5)], 1.0)
    assert made.put("r", "page", [Reading(1.0 + FRESH_S, "m")], 1.0 + FRESH_S)[1].gpu_used == 0.5
    later = 1.1 + FRESH_S
    assert made.put("r", "page", [Reading(later, "m")], later) == (Reading(later, "m"),)


def test_leaving():
    """Readings of removed sources and endpoints are removed with them."""
    made = board()
    made.put("r", "a", [Reading(1.0, queued=1)], 1.0)
    made.put("r", "b", [Reading(1.0, running=1)], 1.0)
    made.drop("r", "a")
    assert made.put("r", "b", [Reading(2.0)], 2.0) == (Reading(2.0),)
    assert made.age_s("r", 3.0) == 1.0
    made.clear("r")
    assert made.age_s("r", 3.0) is None
    made.put("r", "b", [Reading(2.0)], 2.0)
    made.set_endpoints([])
    assert made.put("r", "b", [Reading(2.0)], 2.0) == ()
    assert made.sources("r") == {}


def test_bounds():
    """Sources and readings are bounded, and an unknown endpoint is ignored."""
    made = board()
    many = [Reading(1.0, f"m{index}") for index in range(MAX_READINGS + 1)]
    assert len(made.put("r", "s0", many, 1.0)) == MAX_READINGS
    for index in range(1, MAX_SOURCES):
        made.put("r", f"s{index}", [Reading(1.0, "other")], 1.0)
    assert made.put("r", "one more", [Reading(1.0)], 1.0) == ()
    assert len(made.sources("r")) == MAX_SOURCES
    assert made.put("stranger", "s", [Reading(1.0)], 1.0) == ()
    made.clear("stranger")
    made.drop("stranger", "s")


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.floats(0, 10),
            st.one_of(st.none(), st.integers(0, 9)),
            st.one_of(st.none(), st.integers(0, 9)),
        ),
        max_size=12,
    )
)
def test_no_number_looks_younger_than_it_is(reports):
    """In any order of reports, each merged number is at least as new as the merged time."""
    made, latest = board(), {}
    for source, at, queued, running in reports:
        reading = Reading(at, "m", "1", queued=queued, running=running)
        latest[source] = reading
        for merged in made.put("r", source, [reading], at):
            for name in ("queued", "running"):
                value = getattr(merged, name)
                if value is not None:
                    assert any(
                        getattr(each, name) == value and each.at >= merged.at
                        for each in latest.values()
                    )
