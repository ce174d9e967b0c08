"""The difference between readings and those last sent."""

from __future__ import annotations

from ext_proc.routing.values.reading import Reading
from tidegate.reporter.run import Changes, CounterSample


def sample(*readings, at=1.0, restarts=0):
    return CounterSample(at, readings, restarts)


def test_only_changed_readings_are_returned():
    """The first sample is returned in full; later ones without unchanged readings."""
    changes = Changes()
    first = sample(Reading(1.0, "a", queued=1), Reading(1.0, "b", queued=2))
    assert changes.of(first).readings == first.readings
    assert not changes.of(sample(Reading(2.0, "a", queued=1), Reading(2.0, "b", queued=2)))
    news = changes.of(sample(Reading(3.0, "a", queued=7), Reading(3.0, "b", queued=2)))
    assert news == ((Reading(3.0, "a", queued=7),), ())


def test_a_key_that_disappears_is_returned_once():
    """A model that left the metrics page is in ``gone`` once."""
    changes = Changes()
    changes.of(sample(Reading(1.0, "a", "1"), Reading(1.0, "b", "1")))
    assert changes.of(sample(Reading(2.0, "a", "1"))) == ((), (("b", "1"),))
    assert not changes.of(sample(Reading(3.0, "a", "1")))


def test_a_restart_returns_all_readings():
    """After a restart all readings count as changed."""
    changes = Changes()
    changes.of(sample(Reading(1.0, "a")))
    assert changes.of(sample(Reading(2.0, "a"), restarts=1)).readings == (Reading(2.0, "a"),)
