"""Which channel each field of the fleet takes."""

from __future__ import annotations

import copy
import typing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from support.fleets import endpoint, pool
from tidegate_api.names import SHORT_TYPE
from xds_server.fleet.channels import CHANNELS, channels_of, drains
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.snapshots.build import front_resources, picker_resources, upstream_resources
from xds_server.snapshots.memo import Memo

if TYPE_CHECKING:
    from collections.abc import Iterator

KV_EVENTS = {"address": "tcp://127.0.0.1:5557", "replay": "tcp://127.0.0.1:5567", "engines": 2}
FLEET: dict[str, Any] = {
    "listener": {"tls": {"certificate": "/a.crt", "key": "/a.key", "client_ca": "/ca.crt"}},
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
            model_needs=[{"model": "llm-model", "memory_mib": 1}],
            zones=["a", "b"],
            shadow={"variant": "canary", "pool": "second", "percent": 50},
            upstream_tls={"ca": "/b.crt", "certificate": "/c.crt", "key": "/c.key"},
            telemetry={"custom": [{"reading": "queued", "metric": "waiting"}]},
            routing={"tokenizer": "/t.json"},
        ),
        pool("second", variants=[{"name": "canary"}], endpoints=[endpoint(5)]),
    ],
}
"""A fleet with a value for each group of fields."""

VALUES: dict[str, Any] = {
    "reject_quorum": 0.25,
    "listener.address": "127.0.0.1:10001",
    "listener.client_headers": ["tidegate-model"],
    "listener.tls.certificate": "/other.crt",
    "listener.tls.key": "/other.key",
    "listener.tls.client_ca": "/other-ca.crt",
    "pickers.addresses": ["127.0.0.1:18001", "127.0.0.1:18002"],
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
    "pools.routing.allow_override": ["least-request"],
    "pools.routing.session_header": "x-me",
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
    "pools.shadow.variant": "stable",
    "pools.shadow.pool": None,
    "pools.upstream_tls.ca": "/other-b.crt",
    "pools.upstream_tls.certificate": "/other-c.crt",
    "pools.upstream_tls.key": "/other-c.key",
    "pools.upstream_tls.server_name": "triton.internal",
    "pools.telemetry.custom.metric": "queue_length",
    "pools.telemetry.custom.labels": {"a": "b"},
}
"""Other values of the fields that are no numbers, switches or choices."""


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


def changed(path: str) -> tuple[Fleet, Fleet]:
    """Return a fleet, and the same with another value of one field."""
    before = Fleet.model_validate(FLEET)
    after = copy.deepcopy(before.model_dump(mode="json"))
    place: Any = after
    *outer, last = path.split(".")
    for name in outer:
        place = place[name]
        place = place[0] if isinstance(place, list) else place
    place[last] = VALUES[path] if path in VALUES else _other(LEAVES[path], place[last])
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
    was, now = (
        {
            **upstream_resources(fleet, MEMO),
            **front_resources(fleet, memo=MEMO),
            **picker_resources(View(fleet)),
        }
        for fleet in (before, after)
    )
    return {SHORT_TYPE[url] for url in was if was[url] != now[url]}


@pytest.mark.parametrize("path", LEAVES)
def test_a_field_takes_the_channels_that_are_documented(path: str) -> None:
    """What an operator plans with; a field that is not listed fails here."""
    before, after = changed(path)
    found = sent(before, after)
    assert found == set(channels_of(path))
    # Nobody is told that connections drain where none do, and the reverse.
    assert ("LDS" in found) == bool(drains(before, after))


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
    after = Fleet.model_validate({**FLEET, "listener": {"tls": tls}})
    assert drains(before, after) == names
    assert ("LDS" in sent(before, after)) == bool(names)


def test_a_path_of_no_field_is_an_error() -> None:
    """An entry is never guessed."""
    with pytest.raises(KeyError):
        channels_of("nothing.like.it")
