"""Patience: when a client that owes an answer is late."""

from __future__ import annotations

from tidegate_api.names import CLUSTER_TYPE, POOL_TYPE
from xds_server.protocol.client import Client, Nodes
from xds_server.protocol.gate.patience import (
    BACK_S,
    FACTOR,
    LEAST_S,
    MAX_NODES,
    MAX_SLOW,
    SLOW_ANSWERS,
    STOOD_S,
    WARMING_S,
    Debt,
    LateNodes,
)
from xds_server.protocol.messages import Standing
from xds_server.protocol.stream import SotwStream

LIMIT_S = 15.0


def test_a_silent_client_is_late_by_its_first_message_without_an_answer() -> None:
    """It has the whole limit, as nothing is known of its speed; further messages add nothing."""
    debt = Debt()
    assert debt.late_at(POOL_TYPE, LIMIT_S) == float("inf")
    for now in (1.0, 5.0, 9.0):
        debt.sent(now)
        assert debt.late_at(POOL_TYPE, LIMIT_S) == 1.0 + LIMIT_S


def test_an_answer_restarts_the_clock_while_more_is_owed() -> None:
    """It makes progress."""
    debt = Debt()
    debt.sent(1.0)
    debt.answered(POOL_TYPE, 0.1, 4.0, owes_more=True)
    assert debt.since == 4.0


def test_patience_follows_the_slowest_answer() -> None:
    """A client that once took a second may take ten."""
    debt = Debt()
    debt.sent(0.0)
    debt.answered(POOL_TYPE, 1.0, 1.0, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) == 1.0 + FACTOR
    debt.answered(POOL_TYPE, 5.0, 6.0, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) == 6.0 + LIMIT_S


def test_clusters_may_warm() -> None:
    """Envoy acknowledges them when their endpoints were checked."""
    debt = Debt()
    debt.sent(0.0)
    debt.answered(POOL_TYPE, 0.01, 0.0, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) == LEAST_S
    assert debt.late_at(CLUSTER_TYPE, LIMIT_S) == WARMING_S


def test_a_slow_client_is_not_waited_for_until_its_answers_come_in_time() -> None:
    """Otherwise each stage of each change would take as long as its answer."""
    debt = Debt()
    for _ in range(SLOW_ANSWERS):
        assert not debt.slow
        debt.sent(0.0)
        debt.answered(POOL_TYPE, 3.0, 3.0, owes_more=False)
    for _ in range(SLOW_ANSWERS):
        debt.sent(5.0)
        assert debt.late_at(POOL_TYPE, LIMIT_S) == 5.0
        debt.answered(POOL_TYPE, LEAST_S, 6.0, owes_more=False)
    debt.sent(7.0)
    assert debt.late_at(POOL_TYPE, LIMIT_S) > 7.0 + LEAST_S


def test_who_is_slow_most_of_the_time_stays_slow() -> None:
    """One answer in time among slow ones does not make everybody wait for the next slow one."""
    debt = Debt()
    for _ in range(SLOW_ANSWERS):
        debt.answered(POOL_TYPE, 3.0, 9.0, owes_more=False)
    for waited_s in [0.5, 0.5, 3.0, 0.5, 3.0, 3.0] * 4:
        debt.answered(POOL_TYPE, waited_s, 9.0, owes_more=False)
        debt.sent(9.0)
        assert debt.late_at(POOL_TYPE, LIMIT_S) == 9.0
    for _ in range(MAX_SLOW):
        debt.answered(POOL_TYPE, 0.5, 9.0, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) > 9.0 + LEAST_S


def test_warming_is_not_slowness() -> None:
    """Clusters are acknowledged when their endpoints have been checked."""
    debt = Debt()
    for _ in range(SLOW_ANSWERS + 1):
        debt.sent(0.0)
        debt.answered(CLUSTER_TYPE, 3.0, 3.0, owes_more=False)
    assert not debt.slow


def test_a_node_known_to_be_late_has_no_patience_left_until_it_answers() -> None:
    """A client that reconnects again and again holds nothing up."""
    debt = Debt(known_late=True)
    debt.sent(2.0)
    assert debt.late_at(POOL_TYPE, LIMIT_S) == 2.0
    debt.answered(POOL_TYPE, 0.1, 3.0, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) > 3.0


def test_an_unsteady_node_has_little_patience() -> None:
    """It answers when it connects, and has gone before it would be late."""
    debt = Debt(unsteady=True)
    debt.sent(2.0)
    debt.answered(POOL_TYPE, 0.01, 2.01, owes_more=True)
    assert debt.late_at(POOL_TYPE, LIMIT_S) == 2.01 + BACK_S


def unsteady(now: float, nodes: Nodes) -> Client:
    """Return a client of a node that went away while it owed an answer, connected at ``now``."""
    for number in (1, 2):
        stream = SotwStream(str(number))
        standing = Standing("PENDING", POOL_TYPE)
        client = Client(number, "p1", "picker", stream, now, 0, standing)
        nodes.joined(client, "", now)
        if number == 1:
            assert not client.debt.unsteady
            nodes.gone(client, now)
    return client


def test_a_node_that_owes_an_answer_when_it_goes_is_unsteady() -> None:
    """Until it answers on a connection that has stood for some seconds."""
    nodes = Nodes()
    client = unsteady(10.0, nodes)
    nodes.answered(client, 10.0 + STOOD_S - 0.1)
    assert client.debt.unsteady
    nodes.answered(client, 10.0 + STOOD_S)
    assert not client.debt.unsteady


def test_late_nodes_are_bounded() -> None:
    """The oldest are forgotten first."""
    late = LateNodes()
    for number in range(MAX_NODES + 1):
        late.note(f"n{number}", late=True)
    assert "n0" not in late
    assert f"n{MAX_NODES}" in late
    late.note(f"n{MAX_NODES}", late=False)
    assert f"n{MAX_NODES}" not in late
