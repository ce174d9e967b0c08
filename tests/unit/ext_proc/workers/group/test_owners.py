"""Members of a group place sequences over links that are slow, break and end, in virtual time."""

from __future__ import annotations

import os

import pytest

from ext_proc.routing.state.leases import PLACED_S, LeaseKey
from ext_proc.routing.values.proposal import PlacedAs, Proposal
from ext_proc.routing.values.request import SequenceKey
from ext_proc.workers.group.owners import MAX_ASKS, OwnerLinks, Owners
from ext_proc.workers.news import Hello, OwnerAnswer, OwnerAsk
from support.crew import POOL, key
from support.owner_worlds import play

SCHEDULES = 12 * int(os.environ.get("TIDEGATE_TRIES", "1"))


def test_no_sequence_has_two_replicas():
    """Whatever ends between a question and its answer, and wherever the next request goes."""
    forwarded = refused = 0
    for seed in range(SCHEDULES):
        world = play(seed)
        split = {each: where for each, where in world.sent.items() if len(where) > 1}
        assert not split, f"seed {seed}: {split}"
        forwarded, refused = forwarded + world.forwarded, refused + world.refused
    assert forwarded > 20 * refused


class Rash(Owners):
    """A member that does not wait until all agree."""

    @property
    def agreed(self) -> bool:
        """Say that all agree."""
        return True

    @agreed.setter
    def agreed(self, _: bool) -> None:
        pass


def test_without_agreement_sequences_have_two_replicas():
    """The schedules find the defect that agreement prevents."""
    assert any(len(where) > 1 for seed in range(2) for where in play(seed, Rash).sent.values())


@pytest.fixture
def alone():
    """Return owners that know one peer, which owns the sequence returned, and what they do."""
    now, asked, told = [0.0], [], []
    links = OwnerLinks(
        lambda peer, ask: asked.append((peer, ask)) or True,
        lambda _: PlacedAs.AS_PROPOSED,
        lambda call: call(),
        lambda: None,
    )
    made = Owners("p1", 1, links, lambda: now[0], lambda: 0.0)
    made.heard(64, Hello("p2", 0.0, 7, ""))
    made.joined(64)
    number = next(
        each
        for each in range(100)
        if made._owner(LeaseKey(POOL, SequenceKey("m", "", each))) is not None
    )
    proposal = Proposal(POOL, SequenceKey("m", "", number), key(1), "stable", 60.0)
    return made, proposal, now, asked, told


def agree(made: Owners) -> None:
    """Let the peer know the same members."""
    made.heard(64, Hello("p2", 0.0, 7, made.view[1]))


def test_nobody_is_asked_before_all_agree(alone):
    """A question waits for agreement, and then goes to the owner."""
    made, proposal, _, asked, told = alone
    made.ask(proposal, lambda placed, *_: told.append(placed))
    assert (asked, made.agreed, made.agrees(64)) == ([], False, False)
    agree(made)
    assert made.agreed
    assert asked == [(64, OwnerAsk(1, proposal))]
    made.answered(64, OwnerAnswer(1, PlacedAs.EARLIER))
    assert (told, made.open) == ([PlacedAs.EARLIER], 0)


def test_an_owner_that_is_gone_is_succeeded(alone):
    """What it was asked and has not answered is placed by who owns it then."""
    made, proposal, _, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))
    made.lost(64)
    assert told == [PlacedAs.AS_PROPOSED]


def test_a_mute_owner_costs_a_refusal(alone):
    """After ``PLACED_S`` the request is placed nowhere; a later answer changes nothing."""
    made, proposal, now, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))
    now[0] = PLACED_S
    made.look()
    made.answered(64, OwnerAnswer(1, PlacedAs.AS_PROPOSED))
    assert told == [PlacedAs.NOWHERE]
    assert made.placed[PlacedAs.NOWHERE] == 1


def test_a_question_ends_when_its_request_must_have_a_reply(alone):
    """Later the proxy would go on without a pick, to any replica."""
    made, proposal, now, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed), now[0] + 0.5 * PLACED_S)
    now[0] += 0.5 * PLACED_S
    made.look()
    assert told == [PlacedAs.NOWHERE]


def test_what_is_taken_back_is_not_told(alone):
    """A caller that leaves hears nothing."""
    made, proposal, _, _, told = alone
    agree(made)
    made.ask(proposal, lambda placed, *_: told.append(placed))()
    made.answered(64, OwnerAnswer(1, PlacedAs.AS_PROPOSED))
    assert (told, made.open) == ([], 0)


def test_open_questions_are_bounded(alone):
    """Beyond ``MAX_ASKS`` a request is placed nowhere at once."""
    made, proposal, _, _, told = alone
    for _ in range(MAX_ASKS + 1):
        made.ask(proposal, lambda placed, *_: told.append(placed))
    assert (told, made.open) == ([PlacedAs.NOWHERE], MAX_ASKS)
