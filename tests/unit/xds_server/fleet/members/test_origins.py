"""What a found replica becomes, by what its origin says."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleets import endpoint, pool
from xds_server.fleet.members.origins import Origin, Unfit, origins_of
from xds_server.fleet.model.fleet import PoolSpec

HTTP, GRPC = "10.0.0.1:8000", "10.0.0.1:8001"


def origins(**settings: Any) -> dict[str, Origin]:
    """Return the origins of a pool."""
    return origins_of(PoolSpec.model_validate(pool(**{"endpoints": [], **settings})))


def only(**settings: Any) -> Origin:
    """Return the one origin of a pool."""
    (origin,) = origins(**settings).values()
    return origin


def test_each_name_and_each_source_is_an_origin() -> None:
    """Written addresses are none; keys tell people which is which."""
    found = origins(
        endpoints=[endpoint(1), {"id": "n", "http": "Triton.example:80"}],
        endpoints_from=[{"file": "/f"}, {"dns": {"name": "t.example", "http": 1}}],
    )
    assert list(found) == ["name triton.example (n)", "file /f", "dns t.example:1/"]
    assert all(key == origin.key for key, origin in found.items())


def test_a_source_gives_what_its_replicas_do_not_tell() -> None:
    """And what they tell counts."""
    origin = only(
        endpoints_from=[
            {
                "file": "/f",
                "variant": "stable",
                "zone": "a",
                "device": "h100",
                "capacity": 2,
                "metrics_port": 8002,
            }
        ]
    )
    silent = origin.replica("r1", HTTP, GRPC)
    assert (silent.id, silent.http, silent.grpc) == ("r1", HTTP, GRPC)
    assert (silent.variant, silent.zone, silent.device) == ("stable", "a", "h100")
    assert (silent.capacity, silent.metrics) == (2, "http://10.0.0.1:8002/metrics")
    told = origin.replica("r2", HTTP, GRPC, variant="canary", zone="b", device="a100")
    assert (told.variant, told.zone, told.device) == ("canary", "b", "a100")
    six = origin.replica("r3", "[fd00::1]:8000", "[fd00::1]:8001")
    assert six.metrics == "http://[fd00::1]:8002/metrics"


@pytest.mark.parametrize(
    ("protocols", "http", "grpc", "reason"),
    [
        (["http"], None, GRPC, "no `http` address"),
        (["grpc"], HTTP, None, "no `grpc` address"),
        (["http", "grpc"], HTTP, None, "no `grpc` address"),
    ],
)
def test_a_replica_without_an_address_that_its_source_promises_is_unfit(
    protocols: list[str], http: str | None, grpc: str | None, reason: str
) -> None:
    """Clusters follow from what a source may find."""
    origin = only(endpoints_from=[{"file": "/f", "protocols": protocols}])
    with pytest.raises(Unfit, match=reason):
        origin.replica("r1", http, grpc)


def test_an_address_that_its_source_does_not_promise_is_ignored() -> None:
    """There is no cluster for it."""
    origin = only(endpoints_from=[{"file": "/f", "protocols": ["grpc"]}])
    assert origin.replica("r1", HTTP, GRPC).http is None


@pytest.mark.parametrize(
    ("identity", "more", "reason"),
    [
        ("no id!", {}, "id"),
        ("r1", {"zone": "x" * 999}, "zone"),
        ("r1", {"variant": "Ä"}, "variant"),
    ],
)
def test_what_is_no_endpoint_is_unfit(identity: str, more: dict[str, str], reason: str) -> None:
    """The message names the field."""
    origin = only(endpoints_from=[{"file": "/f"}])
    with pytest.raises(Unfit, match=f"^{reason}"):
        origin.replica(identity, HTTP, GRPC, **more)


@pytest.mark.parametrize(
    ("metrics", "becomes"),
    [
        (None, None),
        ("http://t.example:8002/metrics", "http://10.0.0.1:8002/metrics"),
        ("http://t.example:8002", "http://10.0.0.1:8002"),
        ("http://other.example:8002/metrics", "http://other.example:8002/metrics"),
        ("http://10.9.9.9:8002/metrics", "http://10.9.9.9:8002/metrics"),
    ],
)
def test_a_name_is_replaced_in_the_metrics_page_too(
    metrics: str | None, becomes: str | None
) -> None:
    """Where it is that of the replica; whether it drains is said elsewhere."""
    named = {"id": "n", "http": "t.example:8000", "zone": "z", "draining": True}
    origin = only(endpoints=[named if metrics is None else {**named, "metrics": metrics}])
    made = origin.replica("n-10.0.0.1", HTTP, GRPC, zone="ignored")
    assert (made.id, made.http, made.grpc, made.zone) == ("n-10.0.0.1", HTTP, None, "z")
    assert made.metrics == becomes
    assert not made.draining
