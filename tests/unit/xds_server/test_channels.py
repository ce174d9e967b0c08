"""Which channel each field of the fleet takes."""

from __future__ import annotations

import copy
import functools
import typing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from support.fleets import endpoint, pool
from tidegate_api.names import SHORT_TYPE
from xds_server.fleet.channels import CHANNELS, channels_of, drains
from xds_server.fleet.members.members import standing
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.snapshots.build import Memo, front_resources, picker_resources, upstream_resources
from xds_server.snapshots.preview import preview
from xds_server.snapshots.stages import plan

if TYPE_CHECKING:
    from collections.abc import Iterator

KV_EVENTS = {"address": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5567", "engines": 2}
URL = "type.googleapis.com/envoy."
RBAC = URL + "extensions.filters.http.rbac.v3.RBAC"
CLUSTER = URL + "config.cluster.v3.Cluster"
MANAGER = URL + "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
FLEET: dict[str, Any] = {
    "pickers": {"tls": {"ca": "/p.crt", "certificate": "/e.crt", "key": "/e.key"}},
    "gateway": {
        "http": ["127.0.0.1:18020"],
        "grpc": ["127.0.0.1:18021"],
        "operators": {"http": ["127.0.0.1:18030"], "grpc": ["127.0.0.1:18031"]},
        "tls": {"ca": "/p.crt", "certificate": "/e.crt", "key": "/e.key"},
    },
    "listener": {
        "tls": {"certificate": "/a.crt", "key": "/a.key", "client_ca": "/ca.crt"},
        "http3": True,
        "hosts": [{"names": ["a.example"], "pools": ["llm"]}],
        "further": [
            {
                "name": "inner",
                "address": "127.0.0.1:10002",
                "tls": {"certificate": "/a.crt", "key": "/a.key", "client_ca": "/ca.crt"},
                "hosts": [{"names": ["a.example"], "pools": ["llm"]}],
            }
        ],
        "jwt": [{"name": "corp", "issuer": "a", "jwks_url": "https://a.example/keys"}],
        "cors": {"origins": ["https://a.example"]},
        "compression": {},
        "access_log": {"stdout": True, "file": "/a.log", "otlp": "127.0.0.1:4317"},
        "tracing": {"otlp": "127.0.0.1:4317"},
        "rate_limit": {"requests": 9, "burst": 99},
        "client_rate_limit": {"requests": 9, "burst": 99},
        "connections": {"h2_keepalive": 9},
        "http_filters": {
            "before": [{"name": "a", "config": {"@type": RBAC}}],
            "after": [{"name": "b", "config": {"@type": RBAC}}],
        },
        "patch": [{"@type": MANAGER, "server_name": "a"}],
    },
    "pools": [
        pool(
            default=True,
            match={"models": ["llm-model"], "paths": ["/v1/completions"]},
            variants=[
                {
                    "name": "stable",
                    "weight": 90,
                    "model_version": "1",
                    "match": {"headers": {"x-ab": "a"}},
                },
                {"name": "canary", "weight": 10, "match": {"cookies": {"ab": "b"}}},
            ],
            endpoints=[
                endpoint(
                    1,
                    variant="stable",
                    zone="a",
                    telemetry={"gpu_metrics": "http://127.0.0.1:9/m", "kv_events": KV_EVENTS},
                ),
                endpoint(2, zone="b"),
                endpoint(3, variant="canary"),
            ],
            endpoints_from=[
                {"dns": {"name": "t.example", "http": 1, "grpc": 2}, "metrics_port": 3}
            ],
            model_needs=[{"model": "llm-model", "memory_mib": 1}],
            zones=["a", "b"],
            shadow={"variant": "canary", "pool": "second", "percent": 50},
            canary={"alerts": [{"url": "http://127.0.0.1:9090", "query": "up"}]},
            upstream_tls={"ca": "/b.crt", "certificate": "/c.crt", "key": "/c.key"},
            telemetry={"custom": [{"reading": "queued", "metric": "waiting"}]},
            routing={"tokenizer": "/t.json"},
            jwt={"any_of": ["corp"]},
            rate_limit={"requests": 9, "burst": 99},
            connections={"h2_keepalive": 9},
            http_filters={"b": {"@type": RBAC + "PerRoute"}},
            cluster_patch=[{"@type": CLUSTER, "connect_timeout": "1s"}],
        ),
        pool("second", variants=[{"name": "canary"}], endpoints=[endpoint(5)]),
    ],
}
"""A fleet with a value for each group of fields."""

VALUES: dict[str, Any] = {
    "gateway.operators.http": ["127.0.0.1:18040"],
    "gateway.operators.grpc": ["127.0.0.1:18041"],
    "reject_quorum": 0.25,
    "pools.standby.below": 0.25,
    "pools.standby.until": 0.75,
    "listener.address": "127.0.0.1:10001",
    "listener.client_headers": ["tidegate-model"],
    "listener.tls.certificate": "/other.crt",
    "listener.tls.key": "/other.key",
    "listener.tls.client_ca": "/other-ca.crt",
    "listener.pools": ["llm"],
    "listener.hosts.names": ["b.example"],
    "listener.hosts.pools": ["second"],
    "listener.further.name": "outer",
    "listener.further.address": "127.0.0.1:10003",
    "listener.further.tls.certificate": "/other.crt",
    "listener.further.tls.key": "/other.key",
    "listener.further.tls.client_ca": "/other-ca.crt",
    "listener.further.pools": ["llm"],
    "listener.further.hosts.names": ["b.example"],
    "listener.further.hosts.pools": ["second"],
    "listener.jwt.name": "other",
    "listener.jwt.issuer": "b",
    "listener.jwt.audiences": ["a"],
    "listener.jwt.jwks_url": "https://b.example/keys",
    "listener.jwt.jwks_ca": "/other-ca.crt",
    "listener.jwt.jwks_file": "/keys.json",
    "listener.jwt.jwks": '{"keys": []}',
    "listener.jwt.header": "x-token",
    "listener.cors.origins": ["*"],
    "listener.cors.methods": ["GET"],
    "listener.cors.headers": ["x-a"],
    "listener.cors.expose": ["x-a"],
    "listener.compression.algorithms": ["brotli"],
    "listener.compression.content_types": ["text/plain"],
    "listener.access_log.file": "/b.log",
    "listener.access_log.otlp": "otel.example:4317",
    "listener.tracing.otlp": "127.0.0.1:4318",
    "listener.tracing.service": "edge",
    "listener.http_filters.before.name": "c",
    "listener.http_filters.before.config": {"@type": RBAC, "rules_stat_prefix": "a"},
    "listener.http_filters.after.name": "d",
    "listener.http_filters.after.config": {"@type": RBAC, "rules_stat_prefix": "a"},
    "listener.patch": [{"@type": MANAGER, "server_name": "b"}],
    "pools.http_filters": {"b": {"@type": RBAC + "PerRoute", "rbac": {}}},
    "pools.cluster_patch": [{"@type": CLUSTER, "connect_timeout": "2s"}],
    "pools.jwt.any_of": ["other"],
    "pools.jwt.audiences": ["a"],
    "pickers.addresses": ["127.0.0.1:18001", "127.0.0.1:18002"],
    "pickers.tls.ca": "/other-p.crt",
    "pickers.tls.certificate": "/other-e.crt",
    "pickers.tls.key": "/other-e.key",
    "pickers.tls.server_name": "picker.tidegate",
    "gateway.http": ["127.0.0.1:18020", "127.0.0.1:18030"],
    "gateway.grpc": ["127.0.0.1:18021", "127.0.0.1:18031"],
    "gateway.tls.ca": "/other-p.crt",
    "gateway.tls.certificate": "/other-e.crt",
    "gateway.tls.key": "/other-e.key",
    "gateway.tls.server_name": "gateway.tidegate",
    "pools.name": "other",
    "pools.match.models": ["other-model"],
    "pools.match.paths": ["/v1/completions", "/v1/chat/completions"],
    "pools.variants.name": "blue",
    "pools.variants.model_version": "7",
    "pools.variants.match.headers": {"x-cd": "a"},
    "pools.variants.match.cookies": {"ab": "c"},
    "pools.endpoints.id": "r9",
    "pools.endpoints.http": "127.0.0.1:9000",
    "pools.endpoints.grpc": "127.0.0.1:9001",
    "pools.endpoints.metrics": "http://127.0.0.1:9002/metrics",
    "pools.endpoints.variant": "canary",
    "pools.endpoints.zone": "b",
    "pools.endpoints.labels": {"rack": "7"},
    "pools.endpoints.device": "a100",
    "pools.endpoints.adapters": ["lora"],
    "pools.endpoints.telemetry.gpu_metrics": "http://127.0.0.1:9003/metrics",
    "pools.endpoints.telemetry.gpus": ["GPU-1"],
    "pools.endpoints.telemetry.kv_events.address": "tcp://127.0.0.1:6557",
    "pools.endpoints.telemetry.kv_events.replay": "tcp://127.0.0.1:6558",
    "pools.endpoints.telemetry.kv_events.engines": 1,
    "pools.endpoints.telemetry.kv_events.topic": "kv",
    "pools.endpoints.telemetry.kv_events.model": "other-model",
    "pools.endpoints_from.dns.name": "u.example",
    "pools.endpoints_from.variant": "canary",
    "pools.endpoints_from.zone": "b",
    "pools.endpoints_from.device": "a100",
    "pools.drained": ["r9"],
    "pools.routing.allow_override": ["least-request"],
    "pools.routing.low_objectives": ["batch"],
    "pools.routing.session_header": "x-me",
    "pools.routing.timeout_header": "x-stainless-read-timeout",
    "pools.routing.retry_read": 0,
    "pools.routing.co_batch_hold_ms": 0.25,
    "pools.routing.load_factor": 2,
    "pools.routing.spill_factor": 2,
    "pools.routing.tokenizer": "/other.json",
    "pools.routing.chat_template": "/other.jinja",
    "pools.model_needs.model": "other-model",
    "pools.model_needs.device": "a100",
    "pools.health.path": "/up",
    "pools.zones": ["b", "a"],
    "pools.canary.alerts.url": "http://127.0.0.1:9091",
    "pools.canary.alerts.query": "down",
    "pools.canary.steps": [50, 100],
    "pools.canary.least_time": 60,
    "pools.canary.times": ["whole"],
    "pools.canary.failures": 2,
    "pools.canary.budget": 0.1,
    "pools.shadow.variant": "stable",
    "pools.shadow.pool": None,
    "pools.upstream_tls.ca": "/other-b.crt",
    "pools.upstream_tls.certificate": "/other-c.crt",
    "pools.upstream_tls.key": "/other-c.key",
    "pools.upstream_tls.server_name": "triton.internal",
    "pools.routing.without_picker": "closed",
    "pools.telemetry.custom.metric": "queue_length",
    "pools.telemetry.custom.labels": {"a": "b"},
}
"""Other values of the fields that are no numbers, switches or choices."""

INSTEAD: dict[str, dict[str, Any]] = {
    "listener.jwt.jwks_file": {"jwks_url": None},
    "listener.jwt.jwks": {"jwks_url": None},
}
"""Values of the fields beside a field that cannot stand together with it."""

SOURCES: dict[str, Any] = {
    "file": {"file": "/f", "protocols": ["http", "grpc"]},
    "protocols": {"file": "/f", "protocols": ["http", "grpc"]},
    "kubernetes": {"kubernetes": {"namespace": "n", "service": "s", "ports": {}}},
    "inference_pool": {"inference_pool": {"namespace": "n", "name": "p"}},
    "dns.srv": {"dns": {"name": "t.example", "srv": "http", "grpc": 2}},
}
"""Other sources for the fields that not all of them have."""


def leaves(model: type[BaseModel] = Fleet, at: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield path and annotation of each field that has no fields of its own."""
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is None:
            yield ".".join((*at, name)), field.annotation
        else:
            yield from leaves(inner, (*at, name))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(each) for each in typing.get_args(annotation))
    return next((each for each in found if each is not None), None)


LEAVES = dict(leaves())
MEMO = Memo()
"""Resources that a field does not touch are built once."""
FURTHER = "listener.further"


@functools.cache
def before_of(*, further: bool) -> tuple[Fleet, dict[str, Any]]:
    """Return the fleet before each change, and its JSON.

    Without further listeners it is built in half of the time: they have the resources of the first.
    """
    more = FLEET["listener"]["further"] if further else []
    fleet = Fleet.model_validate({**FLEET, "listener": {**FLEET["listener"], "further": more}})
    return fleet, fleet.model_dump(mode="json")


def changed(path: str) -> tuple[Fleet, Fleet]:
    """Return a fleet, and the same with another value of one field."""
    before, read = before_of(further=path.startswith(FURTHER))
    after = copy.deepcopy(read)
    place: Any = after
    kind = path.removeprefix("pools.endpoints_from.")
    whole = kind.partition(".")[0]
    source = SOURCES.get(whole if whole in ("kubernetes", "inference_pool") else kind)
    if source is not None:
        after["pools"][0]["endpoints_from"][0] = source
        return before, Fleet.model_validate(after)
    *outer, last = path.split(".")
    for name in outer:
        place = place[name]
        place = place[0] if isinstance(place, list) else place
    place[last] = VALUES[path] if path in VALUES else _other(LEAVES[path], place[last])
    place.update(INSTEAD.get(path, {}))
    return before, Fleet.model_validate(after)


def _other(annotation: Any, value: Any) -> Any:
    if typing.get_origin(annotation) is typing.Literal:
        return next(each for each in typing.get_args(annotation) if each != value)
    if annotation is bool:
        return not value
    if isinstance(value, str):  # a duration
        return "7s"
    return value - 1 if value > 1 else value + 1


def sent(before: Fleet, after: Fleet) -> set[str]:
    """Return the short names of the types whose resources differ."""
    known = next((each for each in (True, False) if before is before_of(further=each)[0]), None)
    was = resources(before) if known is None else resources_before(further=known)
    now = resources(after)
    return {SHORT_TYPE[url] for url in was if was[url] != now[url]}


def resources(given: Fleet) -> dict[str, Any]:
    """Return all resources of a fleet, by type."""
    fleet = standing(given, {})
    return {
        **upstream_resources(fleet, MEMO),
        **front_resources(fleet, memo=MEMO),
        **picker_resources(View(fleet)),
    }


@functools.cache
def resources_before(*, further: bool) -> dict[str, Any]:
    """Return those of a fleet before each change, built once."""
    return resources(before_of(further=further)[0])


@pytest.mark.parametrize("path", LEAVES)
def test_a_field_takes_the_channels_that_are_documented(path: str) -> None:
    """What an operator plans with; a field that is not listed fails here."""
    before, after = changed(path)
    found = sent(before, after)
    assert found == set(channels_of(path))
    # Operators are not told that connections drain where none do, and the reverse.
    assert ("LDS" in found) == bool(drains(before, after))


@pytest.mark.parametrize(
    "path",
    [
        *("listener.address", "listener.jwt.issuer", "pools.variants.weight"),
        *("pools.endpoints.draining", "pools.timeouts.request", "pools.routing.policy"),
    ],
)
def test_a_dry_run_names_the_channels_of_a_field(path: str) -> None:
    """The stages on the way may need more of them, but no listener that need not drain."""
    before, after = changed(path)
    memo = Memo()
    held = {stage.audience: stage.snapshot for stage in plan(None, View(before), memo)}
    stages = plan(View(before), View(after), memo)
    told = preview(stages, held["envoy"], held["picker"], before, after)
    assert set(told.channels) >= set(channels_of(path))
    assert ("LDS" in told.channels) == bool(told.drains) == bool(drains(before, after))


def test_every_field_that_has_a_channel_exists() -> None:
    """A renamed field leaves no entry behind."""
    parts = {".".join(path.split(".")[:n]) for path in LEAVES for n in range(1, 7)}
    assert set(CHANNELS) <= parts


@pytest.mark.parametrize(
    ("tls", "names"),
    [
        (None, ("listener.tls", "listener.tls.client_ca")),
        ({"certificate": "/a.crt", "key": "/a.key"}, ("listener.tls.client_ca",)),
        ({"certificate": "/b.crt", "key": "/b.key", "client_ca": "/b"}, ()),
    ],
)
def test_tls_drains_where_it_is_switched(
    tls: dict[str, str] | None, names: tuple[str, ...]
) -> None:
    """Another file is another secret, which is read without touching connections."""
    before = Fleet.model_validate(FLEET)
    after = Fleet.model_validate({**FLEET, "listener": {**FLEET["listener"], "tls": tls}})
    assert drains(before, after) == names
    assert ("LDS" in sent(before, after)) == bool(names)


def test_a_path_of_no_field_is_an_error() -> None:
    """An entry is never guessed."""
    with pytest.raises(KeyError):
        channels_of("nothing.like.it")


@pytest.mark.parametrize(
    ("off", "names"),
    [
        ({"jwt": []}, ("listener.jwt",)),
        ({"cors": None}, ()),
        ({"compression": None}, ()),
        ({"rate_limit": None, "client_rate_limit": None}, ()),
    ],
)
def test_checks_of_tokens_that_are_switched_on_drain(
    off: dict[str, object], names: tuple[str, ...]
) -> None:
    """The listener has all other filters of its own whether they are in use or not."""
    pools = [{**pool, "jwt": None, "rate_limit": None} for pool in FLEET["pools"]]
    on = {**FLEET, "pools": pools}
    after = Fleet.model_validate(on)
    before = Fleet.model_validate({**on, "listener": {**FLEET["listener"], **off}})
    assert drains(before, after) == names
    assert ("LDS" in sent(before, after)) == bool(names)


def test_the_first_limit_of_a_pool_drains_nothing() -> None:
    """Its filter stands in the listener, disabled, before it is needed."""
    pools = [{**pool, "rate_limit": None} for pool in FLEET["pools"]]
    before, after = Fleet.model_validate({**FLEET, "pools": pools}), Fleet.model_validate(FLEET)
    assert drains(before, after) == ()
    assert "LDS" not in sent(before, after)
