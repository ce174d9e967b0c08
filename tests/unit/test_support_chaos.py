"""Schedules of faults over the pickers of a group; ``make chaos`` runs them by the thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from ext_proc.routing.peers import PeerWorkers
from ext_proc.workers.bus import Bus
from ext_proc.workers.group import members
from ext_proc.workers.group.owners import Owners
from support.chaos.group import BrokenError, Fault, play, schedule, smallest
from support.tries import tries

if TYPE_CHECKING:
    from ext_proc.routing.peers import Share

SCHEDULES = tries(30)


def test_nothing_breaks():
    """Whatever is killed, stopped, cut, slow or lost, and wherever requests go."""
    decided = refused = 0
    for seed in range(SCHEDULES):
        try:
            group = play(seed, listed=listed(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}; {schedule(seed)[1]}") from error
        decided, refused = decided + group.decided, refused + group.refused
    assert decided > 5 * refused


def test_a_seed_repeats_a_schedule():
    """Else a failure could not be looked into."""
    first, second = play(3), play(3)
    assert first.sent == second.sent
    assert first.network.sent == second.network.sent


def test_a_late_lease_on_a_removed_replica_displaces_none():
    """Seed 2010715 was refused a sequence for it."""
    play(2010715, listed=True)


@pytest.mark.parametrize("seed", [3019472, 3021099])
def test_what_an_owner_told_one_reaches_the_other(seed):
    """In both the owner and its link to a third member were lost, and who knew did not tell it."""
    play(seed)


def test_a_lease_outlives_all_that_were_told_of_it_by_its_owner():
    """The owner ends, and then the one that it told; that has told the third before."""
    faults = [
        Fault(1.389, "cut", 2, 1, 2.922, 0.0),
        Fault(1.915, "kill", 1, 1, 3.934, 0.0),
        Fault(2.578, "kill", 0, 0, 1.463, 0.0),
    ]
    play(9, faults)
    with patch.object(Bus, "_tell_learned", lambda _: None), pytest.raises(BrokenError):
        play(9, faults)


_share = PeerWorkers._share


def twice(self: PeerWorkers, peer: int, share: Share, now: float) -> None:
    """Add what was added before."""
    self._shares.get(peer, {}).pop((share.pool, share.endpoint, share.model), None)
    _share(self, peer, share, now)


PLANTED = {
    "places without agreement": (Owners, "places", lambda self, key: self._owner(key) is None),
    "takes another host's clock for its own": (members, "moved", lambda message, *_: message),
    "applies a snapshot twice": (PeerWorkers, "_share", twice),
    "keeps the requests of a member that is gone": (PeerWorkers, "lost", lambda *_: 0),
    "decides before it has read what was sent": (Bus, "catch_up", lambda _: None),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_schedules_find(defect):
    """The defects that the rules prevent."""
    with patch.object(*PLANTED[defect]):
        assert any(map(breaks, range(200)))


def test_a_failure_is_told_with_the_fewest_faults():
    """Without one of them nothing fails."""
    with patch.object(*PLANTED["keeps the requests of a member that is gone"]):
        seed = next(filter(breaks, range(200)))
        faults, why = smallest(seed, listed=listed(seed))
        assert "in flight" in why
        for each in faults:
            fewer = [one for one in faults if one is not each]
            play(seed, fewer, listed=listed(seed))


def listed(seed):
    """Return whether a schedule is of members with the control server's list."""
    return seed % 2 == 0


def breaks(seed):
    """Return whether a schedule breaks what must be true."""
    try:
        play(seed, listed=listed(seed))
    except (BrokenError, ArithmeticError):  # times of another host overflow
        return True
    return False
