"""The local stack's fleet."""

import pytest

from tidegate.stack.fleet import apply_change, build_fleet
from tidegate.stack.tritons.replica import MODELS, TritonReplica
from xds_server.fleet.model.fleet import Fleet


def replicas(count: int = 3) -> list[TritonReplica]:
    """Return replicas, the last one the canary."""
    return [
        TritonReplica(
            name=f"r{number}",
            http=f"127.0.0.1:{number}00",
            grpc=f"127.0.0.1:{number}01",
            metrics=f"127.0.0.1:{number}02",
            variant="canary" if number == count else "stable",
        )
        for number in range(1, count + 1)
    ]


def fleet(models=MODELS, change=None, body="peek"):
    """Build a fleet over three replicas."""
    return build_fleet(
        replicas(),
        listener="127.0.0.1:10000",
        pickers=("127.0.0.1:18001",),
        models=models,
        body=body,
        change=change,
    )


def test_it_is_a_valid_fleet():
    """The fleet is valid for the control server."""
    parsed = Fleet.model_validate(fleet())
    assert [pool.name for pool in parsed.pools] == ["llm", "vision", "counter"]


@pytest.mark.parametrize(
    ("models", "default"), [(MODELS, "llm"), (("vision", "counter"), "vision")]
)
def test_exactly_one_pool_is_the_default(models, default):
    """Exactly one pool is the default pool."""
    pools = fleet(models)["pools"]
    assert [pool["name"] for pool in pools if pool.get("default")] == [default]


def test_a_mapping_changes_single_fields():
    """A mapping changes only the named fields."""
    changed = fleet(change={"pools": {"llm": {"routing": {"policy": "round-robin"}}}})
    assert changed["pools"][0]["routing"] == {"policy": "round-robin", "body": "peek"}
    assert changed["pools"][1:] == fleet()["pools"][1:]


def test_an_unknown_pool_in_a_change_raises():
    """An unknown pool in a change raises."""
    with pytest.raises(KeyError):
        fleet(change={"pools": {"lm": {}}})


def test_a_function_may_return_another_fleet():
    """The returned fleet is used."""
    assert apply_change({"a": 1}, lambda _: {"b": 2}) == {"b": 2}


def test_merging_leaves_the_callers_mapping_alone():
    """Merging does not modify the caller's mapping."""
    change = {"pools": {"llm": {"labels": {"a": ["x"]}}}}
    fleet(change=change)["pools"][0]["labels"]["a"].append("y")
    assert change == {"pools": {"llm": {"labels": {"a": ["x"]}}}}
