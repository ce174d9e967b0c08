"""A stage comes to one Envoy, then to its group, then to all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.publications import Simulation, envoys, five, pools
from xds_server.protocol.gate.patience import WARMING_S
from xds_server.protocol.gate.verdict import MAX_TRIES
from xds_server.protocol.publication import PublicationRun, Stage
from xds_server.protocol.snapshot import Snapshot

GROUPS = ("a", "a", "b", "b")


def fleet(*groups: str) -> Simulation:
    """Return Envoys of these groups, numbered from 1, and a picker; all hold cluster a."""
    sim = Simulation()
    for number, group in enumerate(groups):
        sim.join(number + 1, group=group)
    sim.join(11, "picker")
    sim.publish(Stage("add", "envoy", envoys("a", "a")), Stage("use", "picker", pools("a")))
    for number in sim.waiting:
        sim.answer(number)
        sim.got[number].clear()
    return sim


def asked(sim: Simulation) -> list[int]:
    """Return the numbers of the clients that have messages to answer."""
    return [number for number, waiting in sim.waiting.items() if waiting]


def step(sim: Simulation) -> list[int]:
    """Let all that are asked accept; return who was asked."""
    found = asked(sim)
    for number in found:
        sim.answer(number)
    return found


def test_each_stage_of_envoys_comes_in_waves() -> None:
    """One Envoy, the rest of its group, all others: for add, switch and remove."""
    sim = fleet(*GROUPS)
    run = sim.publish(*five("a", "b"), waves=True)
    rounds = []
    while not sim.publisher.settled:
        rounds.append(step(sim))
    waves = [[1], [2], [3, 4]]
    assert rounds == [*waves, [11], *waves, [11], *waves]
    assert (sim.outcome(run).state, sim.outcome(run).acked) == ("done", 5)


def test_the_first_state_ever_comes_to_all_at_once() -> None:
    """There is nothing that the others could keep meanwhile."""
    sim = Simulation()
    for number in (1, 2):
        sim.join(number)
    sim.publish(Stage("add", "envoy", envoys("a", "a")), waves=True)
    assert asked(sim) == [1, 2]


def test_a_refusal_of_the_first_reaches_no_other() -> None:
    """That is what the wave is for."""
    sim = fleet(*GROUPS)
    run = sim.publish(*five("a", "b"), waves=True)
    sim.answer(1, error="bad cluster")
    step(sim)
    assert sim.outcome(run).state == "abandoned"
    assert [sim.got[number] for number in (2, 3, 4)] == [[], [], []]


def test_a_refusal_at_the_switch_takes_the_first_back_to_the_stage_before() -> None:
    """The others have not switched, so the way back needs no stages."""
    sim = fleet(*GROUPS)
    run = sim.publish(*five("a", "b"), waves=True)
    for _ in range(4):
        step(sim)
    assert (sim.outcome(run).stage, asked(sim)) == ("switch", [1])
    sim.answer(1, error="bad route")
    outcome = sim.outcome(run)
    assert (outcome.state, outcome.stage, outcome.in_waves) == ("abandoned", "switch", True)
    assert sim.publisher.in_force("envoy") == envoys("ab", "a")
    assert [sim.got[number] for number in (2, 3, 4)] == [["CDS"]] * 3


def test_a_refusal_in_a_later_wave_takes_all_back() -> None:
    """The first accepted routes that its group refuses."""
    sim = fleet(*GROUPS)
    run = sim.publish(*five("a", "b"), waves=True)
    for _ in range(5):
        step(sim)
    sim.answer(2, error="bad route")
    sim.got[1].clear()
    step(sim)
    assert sim.outcome(run).in_waves
    held = {sim.publisher._course.clients[n].stream.snapshot for n in (1, 2, 3, 4)}
    assert len(held) == 1


def test_a_refusal_in_the_last_wave_halts() -> None:
    """All have the new routes, or are about to: the way back takes stages."""
    sim = fleet(*GROUPS)
    run = sim.publish(*five("a", "b"), waves=True)
    for _ in range(6):
        step(sim)
    sim.answer(3, error="bad route")
    assert (sim.outcome(run).state, sim.outcome(run).in_waves) == ("abandoned", False)


def test_a_first_that_is_late_is_replaced() -> None:
    """A silent Envoy has not tried anything."""
    sim = fleet(*GROUPS)
    sim.publish(*five("a", "b"), waves=True)
    sim.waiting[1].clear()
    sim.at(WARMING_S)
    assert asked(sim) == [2]


def test_a_stage_is_tried_a_few_times_only() -> None:
    """Many that die of a change, or are silent, must not delay it one after the other."""
    sim = fleet(*"abcdef")
    sim.publish(*five("a", "b"), waves=True)
    for number in range(1, MAX_TRIES + 1):
        assert asked(sim) == [number]
        sim.leave(number)
    assert [step(sim), step(sim)] == [[4, 5, 6], [11]]
    assert asked(sim) == [4]  # each stage is tried anew


def test_an_envoy_that_connects_meanwhile_waits_for_its_wave() -> None:
    """It would otherwise be one of two that try the change."""
    sim = fleet(*GROUPS)
    sim.publish(*five("a", "b"), waves=True)
    sim.join(5, group="b")
    assert sim.publisher._course.clients[5].stream.snapshot == envoys("a", "a")
    sim.answer(5)
    assert step(sim) == [1]
    assert step(sim) == [2]
    assert step(sim) == [3, 4, 5]


def test_one_that_never_answered_or_refused_is_not_the_first() -> None:
    """It could not tell whether the change is good."""
    sim = fleet("b", "b")
    sim.join(5, group="a")
    sim.publish(*five("a", "b"), waves=True)
    assert sim.publisher._course.clients[5].left == "WAVE"
    assert asked(sim) == [1, 5]


def test_a_newer_change_begins_with_the_first_again() -> None:
    """The others are still on the stage that was for all."""
    sim = fleet(*GROUPS)
    sim.publish(*five("a", "b"), waves=True)
    step(sim)
    run = sim.publish(*five("ab", "c"), waves=True)
    held = [sim.publisher._course.clients[n].stream.snapshot for n in (3, 4)]
    assert held == [envoys("a", "a")] * 2
    while not sim.publisher.settled:
        assert step(sim)
    assert (sim.outcome(run).state, sim.outcome(run).acked) == ("done", 5)


def test_a_change_without_waves_ends_those_before() -> None:
    """All Envoys count again."""
    sim = fleet(*GROUPS)
    sim.publish(*five("a", "b"), waves=True)
    run = sim.publish(*five("ab", "c"))
    assert asked(sim) == [1, 2, 3, 4]
    while not sim.publisher.settled:
        step(sim)
    assert sim.outcome(run).acked == 5


@pytest.mark.parametrize("publishing", [True, False])
def test_an_urgent_edit_comes_to_all_at_once(publishing: bool) -> None:
    """It changes what each has, so no client gets more of a change that is being tried."""
    sim = fleet(*GROUPS)
    if publishing:
        sim.publish(*five("a", "b"), waves=True)
    seen: list[Snapshot] = []

    def edit(snapshot: Snapshot) -> Snapshot:
        seen.append(snapshot)
        return snapshot.joined({})

    urgent = Stage("urgent", "envoy", envoys("a", "a"), urgent=True, edit=edit)
    run = sim.publish(urgent, *five("a", "b"), waves=True)
    assert seen == ([envoys("a", "a"), envoys("ab", "a")] if publishing else [envoys("a", "a")])
    assert sim.outcome(run).stage == "add"
    while not sim.publisher.settled:
        step(sim)
    assert sim.outcome(run).acked == 5


def test_quarantined_envoys_follow_without_a_wave() -> None:
    """They come last, and no client waits for them."""
    sim = fleet(*GROUPS)
    client = sim.publisher._course.clients[1]
    client.refusals = replace(client.refusals, count=3, quarantined=True)
    run: PublicationRun = sim.publish(*five("a", "b"), waves=True)
    assert asked(sim) == [2]
    rounds = []
    while not sim.publisher.settled:
        rounds.append(step(sim))
    assert sim.outcome(run).state == "done"
    step(sim)
    assert client.stream.snapshot == envoys("b", "b")
