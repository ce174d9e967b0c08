"""Rules between a pool's routing settings and its endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.pools import ENVOY_POLICY
from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import PoolSpec


def constraints(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the conflicts between a pool's constraints and its replicas."""
    needs = pool.model_needs
    yield from repeated([each.model for each in needs], (*at, "model_needs"), "model", "model")
    endpoints = pool.endpoints if not pool.written.endpoints_from else ()
    devices = {endpoint.device for endpoint in endpoints}
    served = frozenset(pool.match.models)
    for position, each in enumerate(needs):
        here = (*at, "model_needs", position)
        if each.model not in served:
            yield Problem(
                (*here, "model"),
                f"pool '{pool.name}' does not serve '{each.model}'; "
                "write one of its match.models or remove the entry",
            )
        if each.device_required and not each.device:
            yield Problem(
                (*here, "device_required"),
                f"the device that '{each.model}' requires is missing; write `device`",
            )
        elif each.device_required and endpoints and each.device not in devices:
            yield Problem(
                (*here, "device"),
                f"'{each.model}' requires the device '{each.device}', but no replica of pool "
                f"'{pool.name}' has it; write `device: {each.device}` for one",
            )
    declared = any(endpoint.adapters for endpoint in endpoints)
    if pool.routing.adapters == "require" and endpoints and not declared:
        yield Problem(
            (*at, "routing", "adapters"),
            f"no replica of pool '{pool.name}' declares `adapters`, so every request for an "
            "adapter would be rejected; declare them or write `prefer`",
        )
    if pool.routing.prefer_zone and endpoints and not any(each.zone for each in endpoints):
        yield Problem(
            (*at, "routing", "prefer_zone"),
            f"no replica of pool '{pool.name}' has a `zone`; write zones or remove this",
        )
    yield from _chat_template(at, pool)
    yield from _without_effect(at, pool)


def _chat_template(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield what a chat template lacks."""
    routing = pool.routing
    if routing.chat_template is None:
        return
    here = (*at, "routing", "chat_template")
    if routing.tokenizer is None:
        yield Problem(here, "its text cannot be tokenized; write `tokenizer` too")
    if routing.body != "full":
        yield Problem(
            (*at, "routing", "body"),
            f"`{routing.body}` does not show whole chats to `chat_template`; remove this or write"
            " `full`",
        )


def _without_effect(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the settings of a pool without a picker that only a picker could keep."""
    if ENVOY_POLICY in pool.routing.allow_override:
        yield Problem(
            (*at, "routing", "allow_override"),
            "a request cannot choose `envoy`, which is a pool's own policy; remove it",
        )
    if pool.routing.policy != ENVOY_POLICY:
        return
    routing = pool.routing
    settings: list[tuple[Location, bool]] = [
        (("routing", "first_message"), routing.first_message == "duplex"),
        (("routing", "allow_override"), bool(routing.allow_override)),
        (("routing", "tokenizer"), routing.tokenizer is not None),
        (("routing", "chat_template"), routing.chat_template is not None),
        (("routing", "adapters"), routing.adapters == "require"),
        (("routing", "prefer_zone"), routing.prefer_zone),
        (("model_needs",), bool(pool.model_needs)),
        (
            ("circuit_breaker", "per_endpoint_in_flight"),
            pool.circuit_breaker.per_endpoint_in_flight > 0,
        ),
    ]
    for field, given in settings:
        if given:
            yield Problem(
                (*at, *field),
                f"pool '{pool.name}' has `policy: envoy`, and without a picker `{field[-1]}` has"
                " no effect; remove it or choose another policy",
            )
