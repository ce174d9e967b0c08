"""Refusals in a row, what ends them, and what is remembered of a node."""

from __future__ import annotations

from tidegate_api.names import CLUSTER_TYPE, ROUTE_TYPE
from xds_server.protocol.gate.quarantine import (
    LIMIT,
    MAX_NODES,
    MAX_VERSIONS,
    Refusals,
    RefusingNodes,
)
from xds_server.protocol.snapshot import Snapshot


def snapshot(routes: str) -> Snapshot:
    """Build a snapshot of one route."""
    return Snapshot.of({ROUTE_TYPE: {"r": routes.encode()}})


def refusing(times: int = 1, build: str = "1.36") -> Refusals:
    """Return the refusals of a client that held ``old`` routes."""
    refusals = Refusals(build)
    for _ in range(times):
        refusals.refused(ROUTE_TYPE, snapshot("old").version(ROUTE_TYPE), "unknown field")
    return refusals


def test_the_way_back_is_no_acceptance() -> None:
    """What a client held before it refused says nothing about what it refused."""
    refusals = refusing()
    assert not refusals.accepts(snapshot("old"))
    assert refusals.accepts(snapshot("new"))


def test_another_type_is_no_acceptance() -> None:
    """A client that refuses all routes accepts clusters, and still refuses all routes."""
    refusals = refusing()
    both = Snapshot.of({ROUTE_TYPE: {"r": b"old"}, CLUSTER_TYPE: {"c": b"new"}})
    assert not refusals.accepts(both)


def test_contents_held_before_are_bounded() -> None:
    """A client that refuses for years takes no more room."""
    refusals = Refusals()
    for number in range(MAX_VERSIONS + 5):
        refusals.refused(ROUTE_TYPE, str(number), "no")
    assert len(refusals.held[ROUTE_TYPE]) == MAX_VERSIONS


def test_another_build_begins_anew() -> None:
    """An upgrade is the usual cure."""
    nodes = RefusingNodes()
    nodes.note("n", 1, refusing(LIMIT))
    assert nodes.of("n", "1.40") == Refusals("1.40")
    assert len(nodes) == 0


def test_a_twins_acceptance_does_not_clear_a_node() -> None:
    """The other process with this id still refuses."""
    nodes = RefusingNodes()
    nodes.note("n", 1, refusing(LIMIT))
    nodes.forget("n", 2, others=True)
    assert nodes.of("n", "").suspect
    nodes.forget("n", 1, others=True)
    assert not nodes.of("n", "").suspect


def test_a_twins_first_refusal_does_not_replace_a_quarantine() -> None:
    """What is remembered is the worse of the two."""
    nodes = RefusingNodes()
    nodes.note("n", 1, refusing(LIMIT))
    nodes.note("n", 2, refusing())
    assert nodes.of("n", "").suspect


def test_remembered_nodes_are_bounded() -> None:
    """The oldest are dropped first."""
    nodes = RefusingNodes()
    for number in range(MAX_NODES + 1):
        nodes.note(number, number, refusing())
    assert len(nodes) == MAX_NODES
    assert nodes.of(0, "").count == 0
    assert nodes.of(MAX_NODES, "").count == 1
