"""What a picker has not been told yet."""

from __future__ import annotations

from ext_proc.routing.values.reading import Reading
from tidegate.reporter.changes import Changes, CounterSample


def sample(*readings, at=1.0, restarts=0):
    return CounterSample(at, readings, restarts)


def test_only_changes_are_news():
    """The first sample is told in full, a later one by what differs in more than its time."""
    changes = Changes()
    first = sample(Reading(1.0, "a", queued=1), Reading(1.0, "b", queued=2))
    assert changes.of(first).readings == first.readings
    assert not changes.of(sample(Reading(2.0, "a", queued=1), Reading(2.0, "b", queued=2)))
    news = changes.of(sample(Reading(3.0, "a", queued=7), Reading(3.0, "b", queued=2)))
    assert news == ((Reading(3.0, "a", queued=7),), ())


def test_what_is_gone_is_named():
    """A model that left the page is told once."""
    changes = Changes()
    changes.of(sample(Reading(1.0, "a", "1"), Reading(1.0, "b", "1")))
    assert changes.of(sample(Reading(2.0, "a", "1"))) == ((), (("b", "1"),))
    assert not changes.of(sample(Reading(3.0, "a", "1")))


def test_a_restart_is_told_in_full():
    """After a restart everything is news."""
    changes = Changes()
    changes.of(sample(Reading(1.0, "a")))
    assert changes.of(sample(Reading(2.0, "a"), restarts=1)).readings == (Reading(2.0, "a"),)
