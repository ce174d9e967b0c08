"""A group whose members the control server lists, in virtual time: never two replicas."""

from __future__ import annotations

import os

import pytest

from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.group.owners import Owners
from support.crew import POOL, key
from support.owner_worlds import Station, World, play_listed

SCHEDULES = 14 * int(os.environ.get("TIDEGATE_TRIES", "1"))


def split(world: World) -> dict[int, set[str]]:
    """Return the sequences that were sent to two replicas."""
    return {each: where for each, where in world.sent.items() if len(where) > 1}


def test_halves_place_no_sequence_twice():
    """Whichever pickers and control server are cut off, end and return, and where clients go."""
    forwarded = refused = 0
    for seed in range(SCHEDULES):
        world = play_listed(seed)
        assert not split(world), f"seed {seed}: {split(world)}"
        forwarded, refused = forwarded + world.forwarded, refused + world.refused
    assert forwarded > 10 * refused


class Alone(Owners):
    """A member that needs no others."""

    @property
    def _needed(self) -> int:
        return 1


class Hasty(Owners):
    """A member that uses a lease before it knows that others hold it."""

    def _gather(self, asked) -> None:
        self._unsure.pop(asked.key, None)
        self._links.grant(asked.proposal)
        self._end(asked, asked.granted)


@pytest.mark.parametrize("owners", [Alone, Hasty])
def test_the_schedules_find_planted_defects(owners):
    """Without a majority, and without its knowledge of a lease, sequences have two replicas."""
    assert any(split(play_listed(seed, owners)) for seed in range(10))


@pytest.fixture
def two() -> World:
    """Return two members that are listed and agree, and clients that begin sequences for 20 s."""
    world = World(1)
    world.server = Station(world)
    for number in range(2):
        world.start(number)
    world.run(3.0)
    for sequence in range(400):
        world.at(sequence / 20, lambda sequence=sequence: world.client(sequence, 2))
    return world


def listed(world: World) -> list[str]:
    """Return the list in force."""
    return list(world.server.roster.list.members)


def test_a_rolling_restart_refuses_nothing(two):
    """Who is about to end leaves first, and the other goes on alone at once."""
    for number in (0, 1):
        two.members[number].leaving = True
        two.run(two.now + 0.5)
        assert listed(two) == [f"p{1 - number}"]
        two.kill(number)
        two.run(two.now + 1.0)
        two.start(number)
        two.run(two.now + 4.0)
        assert listed(two) == ["p0", "p1"]
    assert (two.refused, split(two)) == (0, {})


@pytest.mark.parametrize("pickers", [2, 3])
def test_pickers_of_two_versions_are_away_for_each_other(pickers):
    """In a rolling upgrade the older ones place until the last ends; then the new ones do."""
    world = World(1)
    world.server = Station(world)
    for number in range(pickers):
        world.start(number)
    world.run(3.0)
    for sequence in range(600):
        world.at(sequence / 20, lambda sequence=sequence: world.client(sequence, 2))
    for number in range(pickers):
        older = range(number + 1, pickers)
        world.members[number].leaving = True
        world.run(world.now + 0.5)
        world.kill(number)
        world.run(world.now + 1.0)
        world.versions[number] = 1
        world.start(number)
        forwarded = world.forwarded
        world.run(world.now + 4.0)
        assert world.forwarded > forwarded
        assert not split(world)
        if older:
            assert listed(world) == [f"p{each}" for each in older]
            placing = [each for each, one in world.members.items() if one.owners.places_any]
            assert sorted(placing) == [*older]
    assert listed(world) == [f"p{each}" for each in range(pickers)]
    assert all(each.owners.places_any for each in world.members.values())


def test_the_one_that_is_left_goes_on_once_it_is_listed_alone(two):
    """The control server removes the one that has ended after two seconds."""
    two.run(4.0)
    two.kill(1)
    two.run(5.0)
    assert listed(two) == ["p0", "p1"]
    assert two.members[0].owners.why_refused.endswith("missing: p1")
    two.run(8.0)
    assert listed(two) == ["p0"]
    refused, forwarded = two.refused, two.forwarded
    two.run(20.0)
    assert (two.refused, split(two)) == (refused, {})
    assert two.forwarded > forwarded


def test_a_half_without_the_control_server_places_nothing(two):
    """It cannot know that the other half has ended, and refuses until it returns."""
    two.run(4.0)
    two.server.stop()
    two.kill(1)
    two.run(8.0)
    forwarded = two.forwarded
    two.run(14.0)
    assert two.forwarded == forwarded
    two.server.start()
    two.run(15.0)
    assert listed(two) == ["p0", "p1"]  # it waits for those that it has not heard of yet
    two.start(1)
    two.run(24.0)
    assert two.forwarded > forwarded
    assert not split(two)


def test_a_lease_is_held_only_for_one_that_knows_the_same(two):
    """What another knew before a change must not count among those that know of it."""
    two.run(4.0)
    owners = two.members[0].owners
    proposal = Proposal(POOL, SequenceKey("m", "", 9999), key(1), "stable", 60.0)
    assert owners.answer(proposal, "of another list") is PlacedAs.NOWHERE
    assert owners.answer(proposal, owners.view[1]) is PlacedAs.AS_PROPOSED


def test_a_list_travels_between_members(two):
    """A member that is cut off from the control server alone goes on with the others."""
    two.split({0: 0, 1: 0, None: 1})
    newest = two.members[0].owners.listed
    newest = newest._replace(number=newest.number + 1)
    two.members[0].owners.take(newest)
    two.run(4.0)
    assert two.members[1].owners.listed == newest
    assert two.members[1].owners.places_any
