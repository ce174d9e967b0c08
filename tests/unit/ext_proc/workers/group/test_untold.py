"""What a member has learned of leases and not told others."""

from __future__ import annotations

from ext_proc.routing.state.leases import LeaseKey
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.group.untold import FEW, Untold


def key(number: int) -> LeaseKey:
    """Return the key of a sequence's lease."""
    return LeaseKey("llm", SequenceKey("m", "", number))


def test_each_is_taken_once():
    """However often it was renewed."""
    untold = Untold()
    for number in (1, 2, 1):
        untold.add(key(number), lambda _: True)
    assert list(untold.take()) == [key(1), key(2)]
    assert not list(untold.take())


def test_ended_leases_make_room():
    """A view may last for months, and have millions."""
    untold = Untold()
    for number in range(10 * FEW):
        untold.add(key(number), lambda each: each.sequence.id == 7)
        assert len(untold) <= FEW
    assert key(7) in untold.take()
