"""Counters and timings as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from ext_proc.observability.counts import MAX_SERIES, Counts, Timings


def test_counts_add_up_by_label():
    """Each label set has its own sum; known ones are shown as 0 from the start."""
    registry = CollectorRegistry()
    counts = Counts("c", "About.", ["a", "b"], registry, known=[("x", "y")])
    assert registry.get_sample_value("c_total", {"a": "x", "b": "y"}) == 0
    counts.add(("x", "y"))
    counts.add(("x", "y"), 2.5)
    counts.add(("z", "y"))
    assert registry.get_sample_value("c_total", {"a": "x", "b": "y"}) == 3.5
    assert registry.get_sample_value("c_total", {"a": "z", "b": "y"}) == 1


def test_label_sets_are_bounded():
    """Above the bound everything counts under ``other``."""
    registry = CollectorRegistry()
    counts = Counts("c", "About.", ["a"], registry)
    for number in range(MAX_SERIES + 7):
        counts.add((str(number),))
    assert registry.get_sample_value("c_total", {"a": "other"}) == 7
    assert registry.get_sample_value("c_total", {"a": "0"}) == 1


def test_a_count_without_labels():
    """The empty label set is one series."""
    registry = CollectorRegistry()
    Counts("c", "About.", [], registry, known=[()]).add(())
    assert registry.get_sample_value("c_total") == 1


def test_timings_fill_cumulative_buckets():
    """A bound belongs to its bucket (``le``), and the page is one that Prometheus reads."""
    registry = CollectorRegistry()
    timings = Timings("t", "About.", "part", ["p", "q"], [0.1, 1.0], registry)
    for seconds in (0.05, 0.1, 0.5, 5.0):
        timings.observe("p", seconds)

    def bucket(le):
        return registry.get_sample_value("t_bucket", {"part": "p", "le": le})

    assert [bucket(le) for le in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert registry.get_sample_value("t_sum", {"part": "p"}) == 5.65
    assert registry.get_sample_value("t_count", {"part": "q"}) == 0
    page = generate_latest(registry).decode()
    assert 't_bucket{le="0.1",part="p"} 2.0' in page
