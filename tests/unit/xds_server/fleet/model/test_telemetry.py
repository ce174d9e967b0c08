"""Telemetry settings of the fleet file, and their transfer to the pickers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ext_proc.control.fields import PoolError
from ext_proc.control.pools import pool_of
from ext_proc.routing.values.pool import KvEvents as PickerKvEvents
from ext_proc.routing.values.settings import CustomMetric
from ext_proc.telemetry.dialects.custom import DECLARABLE
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.pools import MAX_CUSTOM
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.model.telemetry import KvEventsSpec, PoolTelemetry
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.view import View
from xds_server.resources.pools import pool_resource


def custom(**changes):
    return {"reading": "queued", "metric": "my_queue", **changes}


def fleet(**telemetry):
    pools = [
        {
            "name": name,
            "match": {"models": [name]},
            "endpoints": [{"id": "r1", "http": "127.0.0.1:1", "telemetry": each}],
            "default": name == "a",
        }
        for name, each in telemetry.items()
    ]
    return Fleet.model_validate({"pools": pools})


@pytest.mark.parametrize(
    "wrong", [{"reading": "at"}, {"metric": "my queue"}, {"scale": 0}, {"labels": {"a": 1}}]
)
def test_invalid_declarations_are_rejected(wrong):
    """An unknown reading, an invalid name or a factor of 0 is rejected."""
    with pytest.raises(ValidationError):
        PoolTelemetry.model_validate({"custom": [custom(**wrong)]})


def test_bounds():
    """The file and the picker have the same bound, and the same names."""
    assert len(PoolTelemetry.model_validate({"custom": [custom()] * MAX_CUSTOM}).custom) == 32
    with pytest.raises(ValidationError):
        PoolTelemetry.model_validate({"custom": [custom()] * (MAX_CUSTOM + 1)})
    for name in DECLARABLE:
        PoolTelemetry.model_validate({"custom": [custom(reading=name)]})


KV = {"address": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5570", "engines": 2}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"address": "tcp://10.0.0.1"}, "write tcp://ip:port"),
        ({"address": "http://10.0.0.1:5557"}, "write tcp://ip:port"),
        ({"address": "tcp://0.0.0.0:5557"}, "no address to connect to"),
        ({"replay": "tcp://127.0.0.1:5558"}, "further apart"),
        ({"address": "tcp://127.0.0.1:65535"}, "above 65535"),
        ({"engines": 0}, "greater than or equal to 1"),
        ({"engines": 65}, "less than or equal to 64"),
    ],
)
def test_invalid_kv_events_are_rejected(wrong, says):
    """Unusable or overlapping addresses are rejected with a correction."""
    with pytest.raises(ValidationError, match=says):
        KvEventsSpec.model_validate({**KV, **wrong})


def test_the_model_of_kv_events_is_known_and_served():
    """It defaults to the pool's first model; it must be served, and given if in two pools."""
    declared = {"kv_events": KV}
    assert not problems(fleet(a=declared))
    (ambiguous,) = problems(fleet(a=declared, b=declared))
    assert ambiguous.location == ("pools", 1, "endpoints", 0, "telemetry", "kv_events", "model")
    named = {"kv_events": {**KV, "model": "b"}}
    assert not problems(fleet(a=named, b=named))
    (unserved,) = problems(fleet(a={"kv_events": {**KV, "model": "c"}}))
    assert "no pool serves model 'c'" in unserved.message


def test_kv_events_belong_to_one_replica():
    """Two replicas with one publisher are an error."""
    declared = Fleet.model_validate(
        {
            "pools": [
                {
                    "name": "a",
                    "match": {"models": ["m"]},
                    "endpoints": [
                        {"http": f"127.0.0.1:{port}", "telemetry": {"kv_events": KV}}
                        for port in (1, 2)
                    ],
                }
            ]
        }
    )
    (problem,) = problems(declared)
    assert "already belongs to endpoint '127.0.0.1:1'" in problem.message


def test_kv_events_reach_the_pickers():
    """The picker's pool has the values of the file, and the default model."""
    view = View(fleet=fleet(a={"kv_events": KV}))
    (endpoint,) = pool_of(
        pool_pb2.Pool.FromString(pool_resource(view, view.fleet.pools[0]))
    ).endpoints
    assert endpoint.kv_events == PickerKvEvents(
        "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5570", 2, "", "a"
    )


def test_a_picker_rejects_kv_events_without_an_address():
    """An invalid resource is rejected with its location."""
    message = pool_pb2.Pool(name="p", variants=[pool_pb2.Variant(name="v", weight=1)])
    endpoint = message.endpoints.add(id="r", variant="v", http_address="127.0.0.1:1")
    endpoint.kv_events.SetInParent()
    with pytest.raises(PoolError, match="endpoint 'r': kv_events needs an address"):
        pool_of(message)
    endpoint.kv_events.address, endpoint.kv_events.model = "tcp://127.0.0.1:1", "m"
    endpoint.kv_events.engines = 65
    with pytest.raises(PoolError, match="65 engines"):
        pool_of(message)


def test_a_replica_has_the_same_telemetry_in_all_pools():
    """A replica in two pools must have the same settings in both."""
    page = {"gpu_metrics": "http://127.0.0.1:9400/metrics"}
    assert not problems(fleet(a=page, b=page))
    assert [problem.location[-1] for problem in problems(fleet(a=page, b={}))] == ["telemetry"]


def test_pickers_get_the_telemetry_settings():
    """Declared series and GPUs are sent as declared; the default factor is 1."""
    message = pool_pb2.Pool(
        name="p",
        variants=[pool_pb2.Variant(name="stable", weight=1)],
        endpoints=[
            pool_pb2.Endpoint(
                id="r1",
                variant="stable",
                http_address="127.0.0.1:1",
                gpu_metrics_url="http://127.0.0.1:9400/metrics",
                gpus=["0", "1"],
            )
        ],
        custom_metrics=[pool_pb2.CustomMetric(reading="queued", metric="q", labels={"b": "1"})],
    )
    pool = pool_of(message)
    assert pool.custom_metrics == (CustomMetric("queued", "q", (("b", "1"),)),)
    assert pool.endpoints[0].gpu_metrics_url == "http://127.0.0.1:9400/metrics"
    assert pool.endpoints[0].gpus == {"0", "1"}


def test_pickers_reject_unknown_settings():
    """An unknown reading and more series than the bound are rejected with their name."""
    message = pool_pb2.Pool(name="p", variants=[pool_pb2.Variant(name="stable", weight=1)])
    message.custom_metrics.add(reading="mood", metric="q")
    with pytest.raises(PoolError, match="'mood'"):
        pool_of(message)
    del message.custom_metrics[:]
    for _ in range(MAX_CUSTOM + 1):
        message.custom_metrics.add(reading="queued", metric="q")
    with pytest.raises(PoolError, match="33 declared series"):
        pool_of(message)
