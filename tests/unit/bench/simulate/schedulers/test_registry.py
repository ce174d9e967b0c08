"""Schedulers by name."""

from __future__ import annotations

import pytest

from bench.simulate.schedulers.registry import make_scheduler, names
from ext_proc.routing.policies import POLICIES
from support.simulated import job, world


def test_every_policy_of_the_picker_can_be_simulated() -> None:
    """The picker's policies come first, and names are unique."""
    assert names()[: len(POLICIES)] == list(POLICIES)
    assert len(names()) == len(set(names()))


@pytest.mark.parametrize("name", names())
def test_every_name_makes_a_scheduler(name: str) -> None:
    """Each chooses a replica that exists."""
    assert make_scheduler(name, world(3)).choose(job(1, 1), 0.0).replicas[0] in range(3)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The error lists the known names."""
    with pytest.raises(ValueError, match=r"unknown policy 'best'; use one of: .*oracle"):
        make_scheduler("best", world(1))
