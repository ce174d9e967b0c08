"""Rules between a pool's routing settings and its endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.rules.problem import Location, Problem, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import PoolSpec


def constraints(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the conflicts between a pool's constraints and its replicas."""
    needs = pool.model_needs
    yield from repeated([each.model for each in needs], (*at, "model_needs"), "model", "model")
    devices = {endpoint.device for endpoint in pool.endpoints}
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
        elif each.device_required and pool.endpoints and each.device not in devices:
            yield Problem(
                (*here, "device"),
                f"'{each.model}' requires the device '{each.device}', but no replica of pool "
                f"'{pool.name}' has it; write `device: {each.device}` for one",
            )
    endpoints = pool.endpoints
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
