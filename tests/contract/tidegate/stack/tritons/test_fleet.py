"""The plan of a group of replicas."""

import pytest

from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.tritons.fleet import Tritons, describe, plan_replicas


def test_the_last_of_several_is_the_canary():
    """Only the last replica serves version 2 of the language model."""
    with HeldPorts() as ports:
        planned = plan_replicas(3, ("toy-llm", "vision"), ports)
    assert [(r.name, r.variant, r.models["toy-llm"]) for r in planned] == [
        ("r1", "stable", ("1",)),
        ("r2", "stable", ("1",)),
        ("r3", "canary", ("2",)),
    ]
    assert {r.models["vision"] for r in planned} == {("1",)}


def test_a_single_replica_is_stable():
    """A single replica belongs to the stable variant."""
    with HeldPorts() as ports:
        (only,) = plan_replicas(1, ("toy-llm",), ports)
    assert (only.variant, only.models) == ("stable", {"toy-llm": ("1",)})


def test_addresses_are_all_different():
    """Three ports per replica."""
    with HeldPorts() as ports:
        planned = plan_replicas(4, ("vision",), ports)
    assert len({a for r in planned for a in (r.http, r.grpc, r.metrics)}) == 12


def test_a_description_names_models_and_versions():
    """Progress lines show what a replica serves."""
    with HeldPorts() as ports:
        planned = plan_replicas(2, ("toy-llm", "vision"), ports)
    assert describe(planned[1]) == "toy-llm v2, vision v1"


def test_no_replicas_are_refused():
    """A count of 0 is an error."""
    with pytest.raises(ValueError, match="at least 1"):
        Tritons(0)


def test_an_unknown_name_raises():
    """An unknown name raises ``KeyError``."""
    with pytest.raises(KeyError):
        Tritons(1).replica("r9")
