"""Refusals that end publications, and clients whose refusals no longer do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.publications import Simulation, envoys, five, running
from tidegate_api.names import CLUSTER_TYPE
from xds_server.protocol.gate.quarantine import LIMIT
from xds_server.protocol.publication import PublicationRun, Stage

if TYPE_CHECKING:
    from collections.abc import Callable


def attempt(sim: Simulation, number: int, *refusing: int, held: str = "a") -> PublicationRun:
    """Publish cluster ``number``, and let the Envoys answer; these refuse it."""
    new = chr(ord("b") + number)
    run = sim.publish(*five(held, new))
    for _ in range(3):
        for client in sim.waiting:
            sim.answer(client, error="too old" if client in refusing else None)
    return run


def quarantined() -> Simulation:
    """Return three Envoys of which the first is in quarantine; the others hold cluster z."""
    sim = running(envoy_count=3)
    for number in range(LIMIT):
        run = attempt(sim, number, 1)
    assert sim.outcome(run).state == "done"
    assert sim.publisher.quarantine(1)
    return sim


def test_a_client_that_refuses_each_change_loses_its_veto() -> None:
    """One Envoy of another build must not keep a fleet from changing for ever."""
    sim = running(envoy_count=3)
    states = [sim.outcome(attempt(sim, number, 1)).state for number in range(LIMIT + 2)]
    assert states == ["abandoned"] * (LIMIT - 1) + ["done"] * 3
    assert sim.publisher.quarantined("envoy") == 1
    assert "too old" in sim.publisher.quarantine(1)
    assert sim.publisher.quarantine(2) == ""


@pytest.mark.parametrize("envoy_count", [1, 2])
def test_what_no_client_accepts_quarantines_none(envoy_count: int) -> None:
    """A change that all refuse is wrong, however often it is tried, and of a single one too."""
    sim = running(envoy_count)
    states = {sim.outcome(attempt(sim, number, 1, 2)).state for number in range(2 * LIMIT)}
    assert states == {"abandoned"}
    assert sim.publisher.quarantined("envoy") == 0


def test_a_suspects_refusal_waits_for_the_others() -> None:
    """Whether the change is wrong or the client, another client must tell."""
    sim = running(envoy_count=2)
    for number in range(LIMIT - 1):
        attempt(sim, number, 1)
    run = sim.publish(*five("a", "x"))
    sim.answer(1, error="too old")
    assert (sim.outcome(run).state, sim.publisher.quarantine(1)) == ("waiting", "")
    sim.answer(2)
    assert (sim.outcome(run).state, sim.outcome(run).stage) == ("waiting", "use")
    assert sim.publisher.quarantine(1)


def test_a_suspects_refusal_ends_the_publication_if_the_others_are_late() -> None:
    """No client has accepted the change, so none may have to live with it."""
    sim = running(envoy_count=2)
    for number in range(LIMIT - 1):
        attempt(sim, number, 1)
    run = sim.publish(*five("a", "x"))
    sim.answer(1, error="too old")
    sim.at(15.0)
    assert sim.outcome(run).state == "abandoned"


def test_a_quarantined_client_delays_nothing() -> None:
    """It is silent now, and no stage waits for it."""
    sim = quarantined()
    run = sim.publish(*five("d", "e"))
    for _ in range(3):
        sim.answer(2, 3, 11)
    assert sim.outcome(run).state == "done"


def test_a_quarantined_client_that_accepts_again_is_free() -> None:
    """Then it has what all have, and its refusals are worth what others' are."""
    sim = quarantined()
    run = attempt(sim, LIMIT, held="d")
    assert (sim.outcome(run).state, sim.outcome(run).acked) == ("done", 4)
    assert sim.publisher.quarantine(1) == ""
    assert sim.outcome(attempt(sim, LIMIT + 1, 1, held="e")).state == "abandoned"


def test_a_quarantined_client_gets_each_later_change_that_it_accepts() -> None:
    """It refuses clusters; routes still reach it, stage by stage."""
    sim = quarantined()
    sim.got[1].clear()
    sim.publish(Stage("add", "envoy", envoys("a", "a")), Stage("switch", "envoy", envoys("a", "9")))
    for _ in range(3):
        sim.answer(1, 2, 3)
    assert sim.got[1] == ["CDS", "RDS"]
    assert sim.publisher.in_force("envoy") == sim.publisher._course.clients[1].stream.snapshot


@pytest.mark.parametrize("seen", [True, False])
def test_a_quarantined_node_that_reconnects_is_still_quarantined(seen: bool) -> None:
    """Its veto does not come back, also before the end of its first connection is noticed."""
    sim = quarantined()
    if seen:
        sim.leave(1)
    sim.join(4, node="n1")
    assert sim.publisher.quarantine(4)
    assert sim.outcome(attempt(sim, LIMIT, 1, 4, held="d")).state == "done"


def test_a_change_that_is_accepted_clears_earlier_refusals() -> None:
    """Refusals count in a row: a client that accepts new clusters is no enemy of clusters."""
    sim = running(envoy_count=2)
    for number in range(LIMIT - 1):
        attempt(sim, number, 1)
    assert sim.outcome(attempt(sim, 5)).state == "done"
    assert sim.outcome(attempt(sim, 6, 1, held="g")).state == "abandoned"


def test_of_twins_only_the_refusing_one_is_quarantined() -> None:
    """Two processes with one node id are two clients."""
    sim = running(envoy_count=2)
    sim.join(3, node="n1")
    sim.answer(3)
    assert (sim.publisher.twins(1), sim.publisher.twins(2)) == (2, 1)
    assert sim.publisher.shared_nodes("envoy") == 1
    for number in range(LIMIT):
        attempt(sim, number, 1)
    assert (bool(sim.publisher.quarantine(1)), bool(sim.publisher.quarantine(3))) == (True, False)


def test_a_healthy_twins_answers_do_not_make_a_silent_one_punctual() -> None:
    """What is remembered as late is the connection that was, not all with its id."""
    sim = running(envoy_count=2)
    sim.join(3, node="n1")
    sim.answer(3)
    sim.publish(*five("a", "b"))
    sim.answer(2)
    sim.at(15.0)
    sim.leave(1)
    sim.answer(3)
    sim.join(4, node="n1")
    run = sim.publish(*five("a", "c"))
    for _ in range(3):
        sim.answer(2, 3, 11)
    assert sim.outcome(run).state == "done"


@pytest.mark.parametrize(("refusing", "state"), [(1, "done"), (2, "abandoned")])
def test_a_quorum_of_refusals_is_needed(refusing: int, state: str) -> None:
    """Of four Envoys one may refuse at 0.5, and two may not."""
    sim = running(envoy_count=4)
    run = sim.publish(*five("a", "b"), on_reject="quorum", quorum=0.5)
    for _ in range(3):
        for number in sim.waiting:
            sim.answer(number, error="no" if number <= refusing else None)
    assert sim.outcome(run).state == state


def test_a_quorum_counts_at_the_switch_too() -> None:
    """Routes are refused there."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"), on_reject="quorum", quorum=0.5)
    sim.answer(1, 2, 11)
    sim.answer(1, error="bad route")
    assert (sim.outcome(run).state, sim.outcome(run).stage) == ("abandoned", "switch")


def test_late_clients_do_not_count_for_a_quorum() -> None:
    """Of two Envoys one refuses and one is silent: all that can tell have refused."""
    sim = running(envoy_count=2)
    run = sim.publish(*five("a", "b"), on_reject="quorum", quorum=0.6)
    sim.answer(1, error="no")
    assert sim.outcome(run).state == "waiting"
    sim.at(15.0)
    assert sim.outcome(run).state == "abandoned"


def test_several_nacks_of_one_publication_are_one_refusal() -> None:
    """A change of many types is one change."""
    sim = running(envoy_count=2)
    sim.publish(*five("a", "b"), on_reject="keep")
    assert CLUSTER_TYPE in {response.type_url for response in sim.waiting[1]}
    for _ in range(3):
        for number in sim.waiting:
            sim.answer(number, error="no" if number == 1 else None)
    assert sim.publisher._course.clients[1].refusals.count <= 1


def changes(sim: Simulation, count: int, pods: int, kind: Callable[[int], str]) -> list[str]:
    """Make changes, each beside new pods that refuse it; return how they ended."""
    states, held, number = [], "a", 100
    for change in range(count):
        new = chr(ord("b") + change)
        refusing = range(number, number + pods)
        number += pods
        for pod in refusing:
            sim.join(pod, node=f"pod-{pod}", cluster=kind(pod))
            sim.answer(pod)
        run = sim.publish(*five(held, new), on_reject="quorum")
        for _ in range(5):
            for client in list(sim.waiting):
                sim.answer(client, error="too old" if client in refusing else None)
        states.append(sim.outcome(run).state)
        held = new if states[-1] == "done" else held
        for pod in refusing:
            sim.leave(pod)
    return states


@pytest.mark.parametrize("pods", [1, 8])
def test_pods_that_refuse_under_new_names_take_no_change_back(pods: int) -> None:
    """A deployment that restarts again and again is no quorum, however many pods it has."""
    assert changes(running(envoy_count=2), 8, pods, lambda _: "broken") == ["done"] * 8


def test_new_names_and_kinds_take_no_change_back() -> None:
    """What a client says of itself costs it nothing: only one that had the state has a voice."""
    states = changes(running(envoy_count=1), 2, 1000, lambda pod: f"kind-{pod}")
    assert states == ["done", "done"]


@pytest.mark.parametrize(("kinds", "state"), [(1, "done"), (8, "abandoned")])
def test_refusals_of_one_kind_that_none_of_it_contradicts_are_one_voice(
    kinds: int, state: str
) -> None:
    """Eight that stayed through a change and refuse the next say one thing, if they are alike."""
    sim = running(envoy_count=3)
    for pod in range(20, 28):
        sim.join(pod, cluster=f"old-{pod % kinds}")
        sim.answer(pod)
    run = sim.publish(*five("a", "ab"), on_reject="quorum")
    for _ in range(5):
        sim.answer(*sim.waiting)
    assert sim.outcome(run).state == "done"
    run = sim.publish(*five("ab", "c"), on_reject="quorum")
    for _ in range(5):
        for number in sim.waiting:
            sim.answer(number, error="no" if number >= 20 else None)
    assert sim.outcome(run).state == state


def test_envoys_of_one_kind_that_disagree_have_a_voice_each() -> None:
    """Most hosts lack a file that the change names: two of ten that have it are no reason."""
    sim = running(envoy_count=10, pickers=0)
    run = sim.publish(*five("a", "b"), on_reject="quorum")
    for number in sim.waiting:
        sim.answer(number, error="no such file" if number <= 8 else None)
    assert sim.outcome(run).state == "abandoned"


def test_a_client_that_resumes_has_a_voice() -> None:
    """After a restart of the server all clients are new to it, and have what they had."""
    sim = running(envoy_count=0, pickers=0)
    for number, version in ((1, "x"), (2, ""), (3, "")):
        sim.join(number, version=version)
        sim.answer(number)
    run = sim.publish(*five("a", "b"), on_reject="quorum")
    for number in (2, 3, 1):
        sim.answer(number, error=None if number > 1 else "no")
    assert sim.outcome(run).state == "abandoned"
