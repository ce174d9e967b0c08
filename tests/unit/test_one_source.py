"""What stands in several places agrees: a pool's settings, policies, the verbs' options.

A failure names the file to change.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Le
from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError

from ext_proc.control.pools import pool_of
from ext_proc.routing.policies import POLICIES
from ext_proc.telemetry.dialects.custom import DECLARABLE
from support.fleets import endpoint, pool
from tidegate.cli.verbs.tuning import BREAKER, SLOW_START
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.pools import (
    POLICY_NAMES,
    AdapterMode,
    BodyMode,
    CustomReading,
    UnsoundMode,
    enum_numbers,
)
from xds_server.fleet.model.canary import AlertQuery, CanarySpec
from xds_server.fleet.model.fleet import Fleet, PoolSpec
from xds_server.fleet.model.resilience import CircuitBreaker, SlowStartSpec
from xds_server.fleet.view import View
from xds_server.resources.pools import pool_resource

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from pydantic.fields import FieldInfo

ENVOY_ALONE = {
    *(f"canary.{each}" for each in CanarySpec.model_fields if each != "alerts"),
    *(f"canary.alerts.{each}" for each in AlertQuery.model_fields),  # the control server's own
    "circuit_breaker.max_connections",
    "circuit_breaker.max_connections_per_endpoint",
    "circuit_breaker.max_pending",
    "circuit_breaker.max_requests",
    "circuit_breaker.min_retries",
    "circuit_breaker.retry_budget_percent",
    "cluster_patch",
    "connections.h2_keepalive",
    "connections.h2_keepalive_timeout",
    "connections.max_duration",
    "connections.max_requests",
    "default",  # pickers are sent what follows from it, and from the other pools
    "drained",  # of found replicas; they are sent with those of the pool
    "drop_overload",
    "endpoints.standby",  # pickers are sent one that is not in use as draining
    "health.healthy_after",
    "health.quorum",  # the control server's own
    "health.timeout",
    "health.unhealthy_after",
    "http_filters",
    "jwt.any_of",
    "jwt.audiences",
    "rate_limit.burst",
    "rate_limit.per",
    "rate_limit.requests",
    "routing.first_message",
    "routing.peek_bytes",
    "routing.retry_read",
    "routing.without_picker",
    "shadow.percent",
    "shadow.pool",
    "shadow.variant",
    "standby.below",  # the control server's own
    "standby.hold",
    "standby.until",
    "timeouts.idle",
    "variants.match.cookies",  # pickers see none
    "zones",
}
"""Settings of a pool that no field on the wire carries."""

OWN = {
    *("models", "default_for_grpc", "default_for_http", "variants", "endpoints", "slow_start"),
    *("log_slots", "describe_picks"),
}
"""Fields that every pool that is sent has of its own, or of its fleet."""

OFF_UNSENT = ("limit", "hold_s")
"""On by default in a fleet, off where an older control server sends nothing: its Envoys wait for no
request that the picker holds."""

SECRETS = {"tidegate.fleet.v1.Pool.seed"}
"""Fields on the wire that the control server fills by itself: no file may hold them."""

OF_THE_LISTENER = {f"tidegate.fleet.v1.Pool.{each}" for each in ("describe_picks", "needs_pick")}
"""Fields on the wire that follow from what Envoys are told."""

OF_OPERATIONS = {
    "tidegate.fleet.v1.Endpoint.leaving",
    "tidegate.fleet.v1.Pool.canary",
    *(f"tidegate.fleet.v1.Canary.{each}" for each in ("rollout", "canary", "stable", "step")),
}
"""Fields on the wire that follow from operations on models, rollouts and what sources find."""

UNREAD = {"endpoints.labels"}
"""Settings that the wire carries and the picker does not keep."""

SAMPLES: dict[str, Any] = {
    "match.models": ["llm-model", "other"],
    "match.paths": ["/v1/completions"],
    "routing.policy": "random",
    "routing.allow_override": ["random"],
    "routing.session_header": "x-other",
    "routing.low_objectives": ["batch"],
    "routing.timeout_header": "x-stainless-read-timeout",
    "routing.tokenizer": "/models/tokenizer.json",
    "routing.chat_template": "/models/tokenizer_config.json",
    "health.path": "/ready",
    "name": "other",
    "variants.name": "other",
    "variants.model_version": "7",
    "variants.match.headers": {"x-a": "b"},
    "model_needs.model": "other",
    "model_needs.device": "b200",
    "telemetry.custom.metric": "other",
    "telemetry.custom.labels": {"c": "d"},
    "endpoints.id": "other",
    "endpoints.http": "127.0.0.1:9",
    "endpoints.grpc": "127.0.0.1:9",
    "endpoints.metrics": "http://127.0.0.1:9/metrics",
    "endpoints.variant": "canary",
    "endpoints.zone": "b",
    "endpoints.labels": {"c": "d"},
    "endpoints.device": "b200",
    "endpoints.adapters": ["de"],
    "endpoints.telemetry.gpu_metrics": "http://127.0.0.1:9/gpu",
    "endpoints.telemetry.gpus": ["3"],
    "endpoints.telemetry.kv_events.address": "tcp://127.0.0.1:9000",
    "endpoints.telemetry.kv_events.replay": "tcp://127.0.0.1:9100",
    "endpoints.telemetry.kv_events.topic": "other",
    "endpoints.telemetry.kv_events.model": "other",
    "upstream_tls.ca": "/other/ca.crt",
    "upstream_tls.certificate": "/other/tls.crt",
    "upstream_tls.key": "/other/tls.key",
    "upstream_tls.server_name": "other.test",
}
"""Other values of settings that are neither numbers nor words of a closed set."""

FULL = pool(
    match={"models": ["llm-model"]},
    default=True,
    model_needs=[{"model": "llm-model", "memory_mib": 10, "device": "a100"}],
    outlier={"latency_factor": 3},
    timeouts={"request": 60},
    telemetry={"custom": [{"reading": "queued", "metric": "q", "labels": {"a": "b"}}]},
    upstream_tls={"ca": "/ca.crt", "certificate": "/tls.crt", "key": "/tls.key"},
    endpoints=[
        endpoint(
            1,
            device="a100",
            telemetry={"kv_events": {"address": "tcp://127.0.0.1:5557", "engines": 2}},
        ),
        endpoint(2, variant="canary"),
    ],
)
"""A pool that has one of each kind of part that pickers are told."""


def nested(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside an annotation such as ``tuple[Model, ...]`` or ``Model | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := nested(each))), None)


def settings(model: type[BaseModel] = PoolSpec, above: str = "") -> dict[str, FieldInfo]:
    """Return each setting of a pool that holds no further ones, by its path."""
    found = {}
    for name, field in model.model_fields.items():
        inner = nested(field.annotation)
        found |= settings(inner, f"{above}{name}.") if inner else {above + name: field}
    return found


SETTINGS = settings()
FINDING = {path for path in SETTINGS if path.startswith(("endpoints_from.", "membership."))}
"""Settings of the control server's own: pickers are sent what is found."""
ENVOY_ALONE |= FINDING
NUMBERS = {
    path: field
    for path, field in SETTINGS.items()
    if field.annotation in {int, float} and path not in ENVOY_ALONE
}


def changed(path: str, value: Any) -> PoolSpec:
    """Return ``FULL`` with another value at a path; of a list the first entry is meant."""
    data: dict[str, Any] = copy.deepcopy(FULL)
    part = data
    *parents, last = path.split(".")
    for name in parents:
        inner = part.setdefault(name, {})
        part = inner[0] if isinstance(inner, list) else inner
    part[last] = value
    return PoolSpec.model_validate(data)


def now(path: str) -> Any:
    """Return the value that ``FULL`` has at a path."""
    value: Any = PoolSpec.model_validate(FULL)
    for name in path.split("."):
        value = getattr(value[0] if isinstance(value, tuple) else value, name)
    return value


def otherwise(path: str) -> PoolSpec:
    """Return ``FULL`` with a valid other value at a path."""
    if path in SAMPLES:
        return changed(path, SAMPLES[path])
    was, annotation = now(path), SETTINGS[path].annotation
    if get_origin(annotation) is Literal:
        return changed(path, next(word for word in get_args(annotation) if word != was))
    assert isinstance(was, (int, float)), f"{path}: give it another value in SAMPLES of this file"
    values = [not was] if isinstance(was, bool) else [was + 1, was + 0.25, was / 2]
    for value in values:
        with contextlib.suppress(ValidationError):
            return changed(path, value)
    raise AssertionError(f"{path}: none of {values} is valid; give it one in SAMPLES of this file")


def sent(spec: PoolSpec) -> pool_pb2.Pool:
    """Return what pickers are sent of a pool."""
    made = Fleet(pools=(spec,))
    incarnations = {"r1": (2, 1000)}
    told = {spec.name: {"r1": ("sick",)}}
    return pool_pb2.Pool.FromString(pool_resource(View(made, incarnations, told), spec))


@pytest.mark.parametrize("path", sorted(SETTINGS.keys() - ENVOY_ALONE))
def test_a_setting_reaches_the_picker(path: str) -> None:
    """Each setting is copied to the wire and from there into the picker's pool."""
    before, after = sent(PoolSpec.model_validate(FULL)), sent(otherwise(path))
    assert before != after, (
        f"{path} is not sent to pickers: add it to protos/tidegate/fleet/v1/pool.proto, and to "
        "xds_server/resources/pools.py if its name there differs; or list it in ENVOY_ALONE"
    )
    if path not in UNREAD:
        assert pool_of(before) != pool_of(after), (
            f"the picker drops {path}: add it to ext_proc/routing/values/, and to "
            "ext_proc/control/pools.py if its name there differs; or list it in UNREAD"
        )


def test_the_lists_of_this_file_name_settings() -> None:
    """A setting that was renamed or removed leaves no entry here."""
    stale = (ENVOY_ALONE | UNREAD | SAMPLES.keys()) - SETTINGS.keys()
    assert not stale, f"tests/unit/test_one_source.py lists settings that are no more: {stale}"


def fields_set(message: Message) -> set[str]:
    """Return the names of the fields that a message and those inside it have set."""
    found = set()
    for field, value in message.ListFields():
        found.add(field.full_name)
        for each in value if isinstance(value, Iterable) else (value,):
            if isinstance(each, Message):
                found |= fields_set(each)
    return found


def test_each_field_on_the_wire_is_filled() -> None:
    """No field of ``pool.proto`` is without a setting that fills it."""
    told = set()
    for path in SETTINGS.keys() - ENVOY_ALONE:
        told |= fields_set(sent(otherwise(path)))
    known = {
        field.full_name
        for message in pool_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    known -= SECRETS | OF_THE_LISTENER | OF_OPERATIONS
    assert not known - told, (
        f"xds_server/resources/pools.py fills none of {sorted(known - told)}; fill them, or remove "
        "them from protos/tidegate/fleet/v1/pool.proto"
    )


USUAL = pool_of(sent(PoolSpec.model_validate(pool())))


@pytest.mark.parametrize(
    ("made", "module"),
    [(USUAL, "pool"), (USUAL.outlier, "settings"), (USUAL.learned, "settings")],
    ids=lambda each: type(each).__name__,
)
def test_defaults_agree(made: Any, module: str) -> None:
    """A pool that says nothing is to the picker what its own defaults are."""
    differing = {
        field.name: (getattr(made, field.name), field.default)
        for field in dataclasses.fields(made)
        if field.default is not dataclasses.MISSING
        and getattr(made, field.name) != field.default
        # The ramp is there because one that is not sent is none.
        and field.name not in {*OWN, *OFF_UNSENT}
    }
    assert not differing, (
        f"ext_proc/routing/values/{module}.py has other defaults than xds_server/fleet/model/ "
        f"(model's, picker's): {differing}"
    )


@pytest.mark.parametrize("path", sorted(NUMBERS))
def test_pickers_accept_what_the_file_may_say(path: str) -> None:
    """The bounds of the fleet's models are within those of the picker."""
    bounds = [
        bound.ge if isinstance(bound, Ge) else bound.le
        for bound in NUMBERS[path].metadata
        if isinstance(bound, (Ge, Le))
    ]
    for value in bounds:
        with contextlib.suppress(ValidationError):  # another bound excludes it
            pool_of(sent(changed(path, value)))


def test_each_policy_is_made() -> None:
    """The picker makes the policies that a fleet file may name, and no others."""
    differing = POLICIES.keys() ^ set(POLICY_NAMES)
    assert not differing, (
        f"only one of tidegate_api/pools.py and ext_proc/routing/policies/__init__.py has "
        f"{sorted(differing)}"
    )


def test_each_declarable_reading_is_read() -> None:
    """The readings that a fleet file may declare are those that the picker refines."""
    differing = DECLARABLE ^ set(get_args(CustomReading))
    assert not differing, (
        "only one of tidegate_api/pools.py and ext_proc/telemetry/dialects/custom.py has "
        f"{sorted(differing)}"
    )


@pytest.mark.parametrize(
    ("words", "enum"),
    [
        (BodyMode, pool_pb2.BodyMode.DESCRIPTOR),
        (AdapterMode, pool_pb2.Adapters.DESCRIPTOR),
        (UnsoundMode, pool_pb2.Unsound.DESCRIPTOR),
    ],
    ids=["BodyMode", "AdapterMode", "UnsoundMode"],
)
def test_words_and_enums_agree(words: Any, enum: EnumDescriptor) -> None:
    """Each word of the fleet file is a value of its enum, and the other way round."""
    assert set(get_args(words)) == set(enum_numbers(enum)), (
        f"tidegate_api/pools.py and {enum.full_name} in protos/tidegate/fleet/v1/pool.proto differ"
    )


@pytest.mark.parametrize(
    ("words", "request_", "model"),
    [
        (BREAKER, admin_pb2.SetBreakerRequest, CircuitBreaker),
        (SLOW_START, admin_pb2.SetSlowStartRequest, SlowStartSpec),
    ],
    ids=["breaker", "slow-start"],
)
def test_tuning_verbs_have_each_setting(
    words: dict[str, str], request_: type[Message], model: type[BaseModel]
) -> None:
    """What a verb and its request can set is what the fleet file has in that section."""
    asked = set(request_.DESCRIPTOR.fields_by_name) - {"pool", "options"}
    assert asked == set(model.model_fields), (
        f"{request_.__name__} in protos/tidegate/admin/v1/admin.proto has not the fields of "
        f"{model.__module__}.{model.__name__}"
    )
    assert set(words.values()) == asked, (
        f"tidegate/cli/verbs/tuning.py does not name the fields of {request_.__name__}"
    )
